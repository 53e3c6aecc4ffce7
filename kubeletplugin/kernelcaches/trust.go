// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/trustpolicies"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/trust"
)

// verification records that an object's credentials could read its image and that policies accepted the signatures. It holds for these
// versions of the object and of the policies.
type verification struct {
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
	// Digest is the digest that the object resolved to, Tree that of the image for this node's platform.
	Digest artifact.Digest `json:"digest"`
	Tree   artifact.Digest `json:"tree"`
	// Repository is the image's. Policies has all that applied to it, and Mode is the mode that the object asked for beside them.
	Repository string                    `json:"repository"`
	Policies   []trustpolicies.Version   `json:"policies,omitempty"`
	Mode       v1alpha1.VerificationMode `json:"mode,omitempty"`
}

// matches reports whether the verification is of this version of the object.
func (g *verification) matches(o *object) bool {
	return g != nil && g.UID == o.GetUID() && g.Generation == o.GetGeneration() && g.Digest.String() == o.Status.ResolvedDigest
}

// newVerifications returns the records of verifications, by the UIDs of their objects.
func newVerifications(dir string) *trustpolicies.Records[verification] {
	return trustpolicies.NewRecords(dir, func(g *verification) string { return string(g.UID) })
}

// isSameImage reports whether g is a verification of the same image by the same policies. Its result then holds for both objects, as far as
// the credentials of both could read the image.
func (g *verification) isSameImage(other *verification) bool {
	return g.Digest == other.Digest && g.Repository == other.Repository && g.Mode == other.Mode && slices.Equal(g.Policies, other.Policies)
}

// policiesFor returns the policies that are for an object's image, and their versions.
func (f *fetcher) policiesFor(
	ctx context.Context, o *object, ref artifact.Reference,
) ([]*trust.Policy, []trustpolicies.Version, error) {
	policies, versions, err := f.Policies.For(ctx, ref, o.GetNamespace())
	if err != nil {
		return nil, nil, fmt.Errorf("%s %w: %w", o, cachemount.ErrNotReady, err)
	}
	return policies, versions, nil
}

// currentVerification returns the verification of an object, nil if there is none for the present versions of object and policies.
func (f *fetcher) currentVerification(ctx context.Context, o *object, ref artifact.Reference) (*verification, error) {
	found := f.verified.Get(string(o.GetUID()))
	if !found.matches(o) {
		return nil, nil //nolint:nilnil // documented above
	}
	_, versions, err := f.policiesFor(ctx, o, ref)
	if err != nil || !slices.Equal(versions, found.Policies) {
		return nil, err
	}
	return found, nil
}
