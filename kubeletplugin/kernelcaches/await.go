// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/claim"
)

// awaitPatience is how long Await waits for what is on its way: others have to be seen to as well.
const awaitPatience = 5 * time.Second

var errUnderway = errors.New("ask again soon")

// IsUnderway says whether a cache is on its way, so that it is neither here nor did anything fail.
func IsUnderway(err error) bool { return errors.Is(err, errUnderway) }

// BindAfter is Fetched where the claim or a class wants to wait for one of its caches before the pod is bound.
func BindAfter(a claim.Allocation) v1alpha1.BindAfter {
	for _, r := range requestsOf(a) {
		for i := range r.config.KernelCaches {
			if r.config.KernelCaches[i].BindAfter != "" {
				return v1alpha1.BindAfterFetched
			}
		}
	}
	return ""
}

// Await brings the caches that a pod wants on the node before it is bound, and is Decide for these: what would be refused then is refused
// now. What is on its way after a moment is IsUnderway. A cache that the claim can do without is waited for as any other, but keeps no pod
// from a node.
func (f *Feature) Await(ctx context.Context, c *resourceapi.ResourceClaim, a claim.Allocation, find prepare.Find) error {
	patient, cancel := context.WithTimeoutCause(ctx, awaitPatience, errUnderway)
	defer cancel()
	var errs []error
	for _, r := range f.requests(patient, c, a) {
		for _, source := range r.config.KernelCaches {
			if source.BindAfter == "" {
				continue
			}
			optional := source.Optional
			source.Optional = false // decideOne would wait less, and say that the claim goes without
			_, err := f.decideOne(patient, c, &r, source, find)
			if err != nil && (!optional || IsUnderway(err)) {
				errs = append(errs, fmt.Errorf("request %s: %w", r.base, err))
			}
		}
	}
	return errors.Join(errs...)
}
