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
	"github.com/fettle-dev/fettle/pkg/rollout"
)

// Source lists the caches for the node's GPUs to a prefetcher. The objects are watched in any case, for claims.
func (f *Feature) Source() artifacts.Source {
	return artifacts.Source{
		What:   "kernel cache",
		Needed: func(s *inventory.Snapshot) bool { return len(s.GPUs()) > 0 },
		Watch: func(_ context.Context, wake func()) (stopped func(), err error) {
			f.objects.listeners.Add(wake)
			return func() {}, nil
		},
		Jobs: func(s *inventory.Snapshot) []artifacts.Job { return f.prefetchJobs(s.GPUs()) },
	}
}

// prefetchJobs returns a job for each cache that is ready and to be prefetched. The job itself finds out whether the cache fits the GPUs.
func (f *Feature) prefetchJobs(gpus []device.Device) []artifacts.Job {
	if !f.Enabled || len(gpus) == 0 || !f.objects.synced() || !f.Policies.Synced() {
		return nil
	}
	var out []artifacts.Job
	for _, o := range f.objects.list() {
		how := o.Prewarm()
		if how == v1alpha1.CachePrewarmNone || o.checkReady() != nil || !admitted(o, f.Node, f.Clock.Now()) {
			continue
		}
		ref, err := reference(o)
		if err != nil {
			continue
		}
		_, versions, err := f.policiesFor(f.base, o, ref)
		if err != nil {
			continue // claims report the same error
		}
		out = append(out, artifacts.Job{
			Key: fmt.Sprint(o.fetchKey(), versions, how), Reference: ref.String(), Digest: ref.Digest().String(),
			Fetch: func(ctx context.Context) error { return f.prefetch(ctx, o, how, gpus) },
		})
	}
	return out
}

// admitted says whether it is a node's turn to fetch a cache ahead. Claims that ask for it do not wait for that. A status without waves
// is that of a controller that knows none, and one that did not change for long may be of one that is gone.
func admitted(o *object, node string, now time.Time) bool {
	s := o.Status
	return s.Admitted == nil || s.AdmittedSince == nil || rollout.Admits(*s.Admitted, node, s.ResolvedDigest) ||
		now.Sub(s.AdmittedSince.Time) >= rollout.Stale
}

// prefetch fetches a cache if it fits one of the GPUs.
func (f *Feature) prefetch(ctx context.Context, o *object, how v1alpha1.CachePrewarm, gpus []device.Device) error {
	ref, err := reference(o)
	if err != nil {
		return err
	}
	if found, err := f.currentVerification(ctx, o, ref); err != nil || found != nil && f.hasTree(found.Tree) {
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

func (f *fetcher) hasTree(tree artifact.Digest) bool {
	store, err := f.Store()
	if err != nil {
		return false
	}
	_, err = store.PeekTree(tree)
	return err == nil
}

// fitsAny reports whether the image's labels fit one of the GPUs, or name no target at all.
func fitsAny(image *artifact.Image, gpus []device.Device) bool {
	labels, err := kernelcache.ReadLabels(image.Labels)
	if err != nil || len(labels.Targets) == 0 {
		return true // the files may name targets
	}
	cache := kernelcache.Cache{Type: kernelcache.Triton, Targets: labels.Targets, Labels: labels}
	return slices.ContainsFunc(gpus, func(d device.Device) bool {
		fitted, err := gpu.Of(d)
		return err == nil && len(cache.Fits(fitted)) == 0
	})
}

// awaitTimeout is how long Await waits for a fetch in progress. The binder has other claims to serve.
const awaitTimeout = 5 * time.Second

var errUnderway = errors.New("ask again soon")

// IsUnderway reports whether err means that a cache is still being fetched, which is no failure.
func IsUnderway(err error) bool { return errors.Is(err, errUnderway) }

// BindAfter returns Fetched if the claim or a class asks to fetch one of its caches before the pod is bound, else "".
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

// Await fetches the caches that a pod waits for before it is bound, and refuses what Plan would refuse. A cache that is still being fetched
// after awaitTimeout gives an error that IsUnderway recognises. Optional caches are waited for too, but their failure does not keep the pod
// from the node.
func (f *Feature) Await(ctx context.Context, c *resourceapi.ResourceClaim, a claim.Allocation, find prepare.Find) error {
	ctx, cancel := context.WithTimeoutCause(ctx, awaitTimeout, errUnderway)
	defer cancel()
	var errs []error
	for _, r := range f.requests(ctx, c, a) {
		for _, source := range r.config.KernelCaches {
			if source.BindAfter == "" {
				continue
			}
			optional := source.Optional
			source.Optional = false // decideOne would wait less, and make an Event that the claim goes without it
			_, err := f.decideOne(ctx, c, &r, source, find)
			if err != nil && (!optional || IsUnderway(err)) {
				errs = append(errs, fmt.Errorf("request %s: %w", r.base, err))
			}
		}
	}
	err := errors.Join(errs...)
	if err != nil && errors.Is(context.Cause(ctx), errUnderway) && !IsUnderway(err) { // not everything that was asked says why it gave up
		err = fmt.Errorf("%w: %w", errUnderway, err)
	}
	return err
}
