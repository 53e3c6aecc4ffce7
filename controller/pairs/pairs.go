// SPDX-License-Identifier: Apache-2.0

// Package pairs reads the kinds that exist for a namespace and for the cluster, both in the form that they have in common.
package pairs

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// member is an object of either kind of a pair.
type member[C any] interface {
	client.Object
	Common() C
}

// Preset reads the preset of a key. Only a ClusterDevicePreset has no namespace.
func Preset(ctx context.Context, r client.Reader, key types.NamespacedName) (v1alpha1.CommonDevicePreset, error) {
	return get[v1alpha1.CommonDevicePreset](ctx, r, key, &v1alpha1.DevicePreset{}, &v1alpha1.ClusterDevicePreset{})
}

// Bitstream reads the bitstream of a key. Only a ClusterFPGABitstream has no namespace.
func Bitstream(ctx context.Context, r client.Reader, key types.NamespacedName) (v1alpha1.CommonFPGABitstream, error) {
	return get[v1alpha1.CommonFPGABitstream](ctx, r, key, &v1alpha1.FPGABitstream{}, &v1alpha1.ClusterFPGABitstream{})
}

// KernelCache reads the cache of a key. Only a ClusterGPUKernelCache has no namespace.
func KernelCache(ctx context.Context, r client.Reader, key types.NamespacedName) (v1alpha1.CommonGPUKernelCache, error) {
	return get[v1alpha1.CommonGPUKernelCache](ctx, r, key, &v1alpha1.GPUKernelCache{}, &v1alpha1.ClusterGPUKernelCache{})
}

func get[C any](ctx context.Context, r client.Reader, key types.NamespacedName, own, ofCluster member[C]) (C, error) {
	if key.Namespace == "" {
		own = ofCluster
	}
	err := r.Get(ctx, key, own)
	return own.Common(), err
}

// Scope selects the kinds of a pair.
type Scope int

// The scopes.
const (
	Both Scope = iota
	OfNamespaces
	OfCluster
)

// Presets lists presets.
func Presets(ctx context.Context, r client.Reader, s Scope, options ...client.ListOption) ([]v1alpha1.CommonDevicePreset, error) {
	return list[v1alpha1.CommonDevicePreset](ctx, r, s.of(&v1alpha1.DevicePresetList{}, &v1alpha1.ClusterDevicePresetList{}), options)
}

// Bitstreams lists bitstreams.
func Bitstreams(ctx context.Context, r client.Reader, s Scope, options ...client.ListOption) ([]v1alpha1.CommonFPGABitstream, error) {
	return list[v1alpha1.CommonFPGABitstream](ctx, r, s.of(&v1alpha1.FPGABitstreamList{}, &v1alpha1.ClusterFPGABitstreamList{}), options)
}

// KernelCaches lists caches.
func KernelCaches(ctx context.Context, r client.Reader, s Scope, options ...client.ListOption) ([]v1alpha1.CommonGPUKernelCache, error) {
	return list[v1alpha1.CommonGPUKernelCache](ctx, r, s.of(&v1alpha1.GPUKernelCacheList{}, &v1alpha1.ClusterGPUKernelCacheList{}), options)
}

func (s Scope) of(own, ofCluster client.ObjectList) []client.ObjectList {
	switch s {
	case OfNamespaces:
		return []client.ObjectList{own}
	case OfCluster:
		return []client.ObjectList{ofCluster}
	default:
		return []client.ObjectList{own, ofCluster}
	}
}

func list[C any](ctx context.Context, r client.Reader, lists []client.ObjectList, options []client.ListOption) (all []C, err error) {
	for _, l := range lists {
		if err := r.List(ctx, l, options...); err != nil {
			return nil, fmt.Errorf("list %T: %w", l, err)
		}
		err := meta.EachListItem(l, func(o runtime.Object) error {
			if m, ok := o.(member[C]); ok {
				all = append(all, m.Common())
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
