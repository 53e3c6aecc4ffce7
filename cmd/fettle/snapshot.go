// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/fettle-dev/fettle/pkg/plan/saved"
)

const snapshotHelp = `
Saves as one file what decides which pod gets which devices: the version of Kubernetes and its feature gates, nodes, ResourceSlices,
DeviceClasses, claims, templates, DeviceTaintRules, pods, their groups, quotas and namespaces. fettle plan -f reads it, also where there is
no cluster.

Of the objects it has only the fields that decide: no images, commands, environment, volumes, Secrets or managed fields. With --redact it
can be sent to others. Every text is replaced, the same by the same, but for those that are known to tell nothing: the API's own words,
names of Fettle and of models of devices, and numbers as values of labels. CEL expressions become lists of the groups of devices that they
select; opaque configurations and annotations are removed. A plan of it is the same but for the names.

What may not be read is named on stderr and in the file.`

const snapshotExamples = `
fettle snapshot -o cluster.yaml
fettle snapshot --redact -o report.yaml
fettle snapshot -f cluster.yaml --redact -o report.yaml`

func saveSnapshot(flags *arguments) action {
	f := flags.snapshot()
	output := flags.StringP("output", "o", "", "`file` to write, - for standard output")
	redact := flags.Bool("redact", false, "replace every text that is not known to tell nothing")
	return func(ctx context.Context, _ []string, stdout, stderr io.Writer) error {
		if *output == "" {
			return flags.misused(fmt.Errorf("want --output FILE"))
		}
		f.fromCluster = f.fromCluster || len(f.files) == 0
		if err := f.check(flags); err != nil {
			return flags.misused(err)
		}
		snapshot, problems, err := f.read(ctx)
		if err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		for _, p := range problems {
			if _, err := fmt.Fprintf(stderr, "%s: %s\n", p.Object, p.Message); err != nil {
				return err
			}
		}
		snapshot = saved.Trim(snapshot)
		if *redact {
			saved.Redact(ctx, snapshot)
			problems = saved.RedactProblems(problems)
		}
		if err := ctx.Err(); err != nil { // a selector may not have been evaluated for all devices
			return fmt.Errorf("snapshot: %w", err)
		}
		var text bytes.Buffer
		if err := saved.Write(&text, snapshot, problems); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		if *output == "-" {
			_, err = stdout.Write(text.Bytes())
			return err
		}
		if err := os.WriteFile(*output, text.Bytes(), 0o600); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		return nil
	}
}
