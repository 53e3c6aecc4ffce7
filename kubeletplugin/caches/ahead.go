// SPDX-License-Identifier: Apache-2.0

package caches

import (
	"context"
	"fmt"
	"slices"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
)

// Errand is a cache that the node fetches before a claim asks for it.
type Errand struct {
	// Key changes with whatever would have another outcome.
	Key, Reference, Digest string
	Bring                  func(ctx context.Context) error
}

// Wanted are the caches that a node with these GPUs should have, as far as they can be had now. Which of them fit is found out on the way.
func (k *Keeper) Wanted(gpus []device.Device) []Errand {
	if !k.Enabled || len(gpus) == 0 || !k.objects.synced() {
		return nil
	}
	var out []Errand
	for _, o := range k.objects.all() {
		how := prewarm(o)
		if how == v1alpha1.CachePrewarmNone || o.usable() != nil {
			continue
		}
		ref, err := reference(o)
		if err != nil {
			continue
		}
		versions, _, err := k.applying(k.base, o, ref)
		if err != nil {
			continue // the same for all claims: they say so
		}
		out = append(out, Errand{
			Key: fmt.Sprint(o.fetchKey(), versions, how), Reference: ref.String(), Digest: ref.Digest().String(),
			Bring: func(ctx context.Context) error { return k.bringAhead(ctx, o, how, gpus) },
		})
	}
	return out
}

func prewarm(o *object) v1alpha1.CachePrewarm {
	if o.spec.Distribution == nil || o.spec.Distribution.Prewarm == "" {
		return v1alpha1.CachePrewarmMatching
	}
	return o.spec.Distribution.Prewarm
}

// bringAhead makes sure that a cache is here if it is for one of the GPUs.
func (k *Keeper) bringAhead(ctx context.Context, o *object, how v1alpha1.CachePrewarm, gpus []device.Device) error {
	ref, err := reference(o)
	if err != nil {
		return err
	}
	if found, err := k.granted(ctx, o, ref); err != nil || found != nil && k.holds(found.Tree) {
		return err
	}
	fits := func(image *artifact.Image) bool { return how == v1alpha1.CachePrewarmAll || fitsAny(image, gpus) }
	e := k.begin(o, wish{spare: true, fits: fits}) //nolint:contextcheck // it outlives the call
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (k *Keeper) holds(tree artifact.Digest) bool {
	store, err := k.Store()
	if err != nil {
		return false
	}
	_, err = store.LookTree(tree)
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
		gpu, err := kernelcache.OfDevice(d)
		return err == nil && len(cache.Fits(gpu)) == 0
	})
}
