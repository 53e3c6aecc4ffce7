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
DeviceClasses, claims, templates, DeviceTaintRules, pods, quotas and namespaces. fettle plan -f reads it, also where there is no cluster.

Of the objects it has only the fields that decide: no images, commands, environment, volumes, Secrets or managed fields. With --redact it
can be sent to others: names of namespaces, nodes, pools, pods, claims, templates, quotas and owners, values of labels and taints, and
serial numbers and UUIDs of devices are replaced, the same by the same, and opaque configurations and annotations are removed. A plan of
it is the same but for the names.

What may not be read is named on stderr and in the file.`

const snapshotExamples = `
fettle snapshot -o cluster.yaml
fettle snapshot --redact -o report.yaml
fettle snapshot -f cluster.yaml --redact -o report.yaml`

func saveSnapshot(flags *arguments) action {
	f := flags.snapshot()
	output := flags.StringP("output", "o", "", "`file` to write, - for standard output")
	redact := flags.Bool("redact", false, "replace names and identities, and remove configurations and annotations")
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
			saved.Redact(snapshot)
			problems = saved.RedactProblems(problems)
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
