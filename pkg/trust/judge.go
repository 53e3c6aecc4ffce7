// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"context"
	"errors"
	"fmt"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
)

// Verdict is that an image may be used.
type Verdict struct {
	// Results are those of the policies that were satisfied.
	Results []Result
	// Skipped are the policies that let the image pass without a look.
	Skipped []string
	// Warnings are the refusals of policies that only warn.
	Warnings []error
}

// Judge asks every policy that is for the image and the namespace, which is empty for an object of the cluster. Each has to be satisfied,
// and where there is none the image is refused. asked is the mode that the object wants, empty where it wants none; it counts only where
// it is stricter than the policy's.
func Judge(
	ctx context.Context, src Source, d artifact.Digest, namespace string, policies []*Policy, asked v1alpha1.VerificationMode,
) (Verdict, error) {
	var verdict Verdict
	var errs []error
	applied := false
	for _, p := range policies {
		if !p.Applies(src.Reference(), namespace) {
			continue
		}
		applied = true
		mode := p.mode.Stricter(asked)
		if mode == v1alpha1.VerificationSkip {
			verdict.Skipped = append(verdict.Skipped, p.name)
			continue
		}
		result, err := Verify(ctx, src, d, p)
		switch {
		case err == nil:
			verdict.Results = append(verdict.Results, result)
		case mode == v1alpha1.VerificationWarn && errors.Is(err, ErrRefused):
			verdict.Warnings = append(verdict.Warnings, err)
		default:
			errs = append(errs, err)
		}
	}
	if !applied {
		object := "objects of the cluster"
		if namespace != "" {
			object = "namespace " + namespace
		}
		errs = append(errs, fmt.Errorf("%s is %w: no TrustPolicy is for this repository and %s: make one that names who signs it",
			src.Reference().WithDigest(d), ErrRefused, object))
	}
	if len(errs) > 0 {
		return Verdict{}, errors.Join(errs...)
	}
	return verdict, nil
}
