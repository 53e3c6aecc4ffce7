// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

const cacheVerifyHelp = `
Checks by TrustPolicies in files who signed an image, as the controller and the nodes do, and says who. Nothing but the image's registry, or
its directory, is asked. A policy counts if it is for the image's repository and the namespace; each that counts has to be satisfied, and
where none is for it the image is refused. The exit status is 1 with the reason if it is.`

// cacheVerified is the result.
type cacheVerified struct {
	Reference string          `json:"reference"`
	Digest    artifact.Digest `json:"digest"`
	Policies  []policyVerdict `json:"policies"`
}

const cacheVerifyExamples = `
fettle cache verify registry.example/team/kernels:v1 --policy policy.yaml
fettle cache verify oci:kernels:v1 --policy policy.yaml --as registry.example/team/kernels`

func cacheVerify(flags *arguments) action {
	access, policies := flags.cacheAccess(), flags.policies()
	format := flags.format()
	return func(ctx context.Context, operands []string, stdout, _ io.Writer) error {
		if len(policies.files) == 0 {
			return flags.misused(errors.New("want --policy FILE"))
		}
		place, err := parsePlace(operands[0])
		if err != nil {
			return flags.misused(err)
		}
		as, err := policies.reference(place)
		if err != nil {
			return flags.misused(err)
		}
		source, err := access.source(place, as)
		if err != nil {
			return fmt.Errorf("cache verify: %w", err)
		}
		d, verdict, err := policies.judge(ctx, source, access)
		if err != nil {
			return fmt.Errorf("cache verify: %w", err)
		}
		result := &cacheVerified{place.named(d.Digest), d.Digest, verdicts(verdict)}
		return show(*format, result, stdout, result.table)
	}
}

func (r *cacheVerified) table(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := lineWriter(table)
	line("REFERENCE", r.Reference)
	policyLines(r.Policies, line)
	return table.Flush()
}
