// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/artifacts"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/kernelcache/gpu"
)

// Source is what a prefetcher fetches: the caches for the node's GPUs. They are followed in any case, for claims.
func (f *Feature) Source() artifacts.Source {
	return artifacts.Source{
		What:   "kernel cache",
		Needed: func(s *inventory.Snapshot) bool { return len(s.GPUs()) > 0 },
		Watch: func(_ context.Context, wake func()) (stopped func(), err error) {
			f.objects.onChange(wake)
			return func() {}, nil
		},
		Wanted: func(s *inventory.Snapshot) []artifacts.Job { return f.wanted(s.GPUs()) },
	}
}

// wanted are the caches that a node with these GPUs should have, as far as they can be had now. Which of them fit is found out on the way.
func (f *Feature) wanted(gpus []device.Device) []artifacts.Job {
	if !f.Enabled || len(gpus) == 0 || !f.objects.synced() {
		return nil
	}
	var out []artifacts.Job
	for _, o := range f.objects.all() {
		how := o.Prewarm()
		if how == v1alpha1.CachePrewarmNone || o.usable() != nil {
			continue
		}
		ref, err := reference(o)
		if err != nil {
			continue
		}
		versions, _, err := f.applying(f.base, o, ref)
		if err != nil {
			continue // the same for all claims: they say so
		}
		out = append(out, artifacts.Job{
			Key: fmt.Sprint(o.fetchKey(), versions, how), Reference: ref.String(), Digest: ref.Digest().String(),
			Fetch: func(ctx context.Context) error { return f.prefetch(ctx, o, how, gpus) },
		})
	}
	return out
}

// prefetch makes sure that a cache is here if it is for one of the GPUs.
func (f *Feature) prefetch(ctx context.Context, o *object, how v1alpha1.CachePrewarm, gpus []device.Device) error {
	ref, err := reference(o)
	if err != nil {
		return err
	}
	if found, err := f.granted(ctx, o, ref); err != nil || found != nil && f.holds(found.Tree) {
		return err
	}
	fits := func(image *artifact.Image) bool { return how == v1alpha1.CachePrewarmAll || fitsAny(image, gpus) }
	e := f.startFetch(o, fetchOptions{opportunistic: true, fits: fits}) //nolint:contextcheck // it outlives the call
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f *Feature) holds(tree artifact.Digest) bool {
	store, err := f.Store()
	if err != nil {
		return false
	}
	_, err = store.PeekTree(tree)
	return err == nil
}

// fitsAny says whether the image's labels name one of the GPUs, or none at all.
func fitsAny(image *artifact.Image, gpus []device.Device) bool {
	labels, err := kernelcache.ReadLabels(image.Labels)
	if err != nil || len(labels.Targets) == 0 {
		return true // its files may tell
	}
	cache := kernelcache.Cache{Type: kernelcache.Triton, Targets: labels.Targets, Labels: labels}
	return slices.ContainsFunc(gpus, func(d device.Device) bool {
		fitted, err := gpu.Of(d)
		return err == nil && len(cache.Fits(fitted)) == 0
	})
}

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
