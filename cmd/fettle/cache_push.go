// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/push"
)

const cachePushHelp = `
Copies an image with its signatures, of both of cosign's forms, between registries and directories: REF and DEST are
REGISTRY/REPOSITORY:TAG or oci:DIR[:TAG]. The digest stays, and so the signatures hold; the tag of DEST comes last. Nothing is verified
but digests.`

// cachePushed is the result.
type cachePushed struct {
	Reference string `json:"reference"`
	push.Copied
}

const cachePushExamples = `
fettle cache push oci:kernels:v1 registry.example/team/kernels:v1`

func cachePush(flags *arguments) action {
	access := flags.cacheAccess()
	format := flags.format()
	return func(ctx context.Context, operands []string, stdout, _ io.Writer) error {
		from, err := parsePlace(operands[0])
		if err != nil {
			return flags.misused(err)
		}
		to, err := writable(operands[1])
		if err != nil {
			return flags.misused(err)
		}
		source, err := access.source(from, artifact.Reference{})
		if err != nil {
			return fmt.Errorf("cache push: %w", err)
		}
		target, err := access.target(to)
		if err != nil {
			return fmt.Errorf("cache push: %w", err)
		}
		copied, err := readTwice(source, func(source imageSource) (push.Copied, error) {
			return push.Copy(ctx, source, target, tagOf(to))
		})
		if err != nil {
			return fmt.Errorf("cache push: %w", err)
		}
		result := &cachePushed{to.named(copied.Digest), copied}
		return show(*format, result, stdout, func(w io.Writer) error {
			table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			line := lineWriter(table)
			line("REFERENCE", result.Reference)
			for _, d := range result.Signatures {
				line("SIGNATURE", d.String())
			}
			return table.Flush()
		})
	}
}
