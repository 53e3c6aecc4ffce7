// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"fmt"
	"slices"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/artifacts"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/artifact"
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
		how := prewarm(o)
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

func prewarm(o *object) v1alpha1.CachePrewarm {
	if o.Spec.Distribution == nil || o.Spec.Distribution.Prewarm == "" {
		return v1alpha1.CachePrewarmMatching
	}
	return o.Spec.Distribution.Prewarm
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
