// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/trust"
)

const cacheVerifyHelp = `
Checks by TrustPolicies in files who signed an image, as the controller and the nodes do, and says who. Nothing but the image's registry, or
its directory, is asked. A policy counts if it is for the image's repository and the namespace; each that counts has to be satisfied, and
where none is for it the image is refused. The exit status is 1 with the reason if it is.`

// cacheVerified is the result.
type cacheVerified struct {
	Reference string          `json:"reference"`
	Digest    artifact.Digest `json:"digest"`
	Policies  []cacheVerdict  `json:"policies"`
}

// cacheVerdict is what one policy says.
type cacheVerdict struct {
	Policy     string                      `json:"policy,omitempty"`
	Result     v1alpha1.VerdictResult `json:"result"`
	Signatures []cacheSignature            `json:"signatures,omitempty"`
	Message    string                      `json:"message,omitempty"`
}

type cacheSignature struct {
	Format    v1alpha1.SignatureFormat `json:"format"`
	Authority string                   `json:"authority"`
	Signer    string                   `json:"signer"`
	Time      *time.Time               `json:"time,omitempty"`
}

func runCacheVerify(ctx context.Context, args []string, stdout, _ io.Writer) error {
	flags := newArguments("cache verify REF", cacheVerifyHelp)
	access, policies := flags.cacheAccess(), flags.policies()
	format := flags.format()
	operands, err := flags.parse(args, stdout)
	if err != nil {
		return err
	}
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
	d, verdict, err := policies.judge(ctx, source)
	if err != nil {
		return fmt.Errorf("cache verify: %w", err)
	}
	result := &cacheVerified{place.named(d.Digest), d.Digest, verdicts(verdict)}
	return show(*format, result, stdout, result.table)
}

func verdicts(v trust.Verdict) []cacheVerdict {
	var all []cacheVerdict
	for _, r := range v.Results {
		one := cacheVerdict{Policy: r.Policy, Result: v1alpha1.VerdictVerified}
		for _, s := range r.Signatures {
			signature := cacheSignature{Format: s.Format, Authority: s.Authority, Signer: s.Signer.String()}
			if !s.LogTime.IsZero() {
				signature.Time = new(s.LogTime.UTC())
			}
			one.Signatures = append(one.Signatures, signature)
		}
		all = append(all, one)
	}
	for _, name := range v.Skipped {
		all = append(all, cacheVerdict{Policy: name, Result: v1alpha1.VerdictSkipped, Message: "the policy looks at no signature"})
	}
	for _, err := range v.Warnings {
		one := cacheVerdict{Result: v1alpha1.VerdictWarned, Message: err.Error()}
		var refusal *trust.Refusal
		if errors.As(err, &refusal) {
			one.Policy = refusal.Policy
		}
		all = append(all, one)
	}
	return all
}

func (r *cacheVerified) table(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := lineWriter(table)
	line("REFERENCE", r.Reference)
	for _, p := range r.Policies {
		line("POLICY", fmt.Sprintf("%s: %s", p.Policy, p.Result))
		for _, s := range p.Signatures {
			text := fmt.Sprintf("%s by %s of authority %s", s.Format, s.Signer, s.Authority)
			if s.Time != nil {
				text += " at " + s.Time.Format(time.RFC3339)
			}
			line("SIGNED", text)
		}
		line("WARNING", p.Message)
	}
	return table.Flush()
}
