// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/follow"
)

// bitstreamsAhead are the bitstreams that fit a node's regions.
type bitstreamsAhead struct {
	bitstreams *bitstreams
	files      *artifacts
	// objects are what the API server has of both kinds.
	objects []cache.Store
}

// forerunner fetches them.
func (b *bitstreamsAhead) forerunner() forerunner {
	return forerunner{
		what: "bitstream", needed: func(v *view) bool { return len(interfacesOf(v)) > 0 }, watch: b.watch, wanted: b.wanted,
	}
}

// watch follows both kinds of objects until ctx ends; stopped waits for that.
func (b *bitstreamsAhead) watch(ctx context.Context, changed func()) (stopped func(), err error) {
	var informers []cache.SharedIndexInformer
	for _, resource := range []string{"clusterfpgabitstreams", "fpgabitstreams"} {
		informer, err := follow.Own(b.bitstreams.dynamic, resource, trimBitstream, changed)
		if err != nil {
			return nil, err
		}
		informers = append(informers, informer)
		b.objects = append(b.objects, informer.GetStore())
	}
	return follow.Run(ctx, informers...), nil
}

// trimBitstream keeps of an object in memory only what says which files it has and how to fetch them.
func trimBitstream(object any) (any, error) {
	from, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	kept := &unstructured.Unstructured{Object: map[string]any{}}
	for _, path := range [][]string{
		{"apiVersion"},
		{"kind"},
		{"metadata", "namespace"},
		{"metadata", "name"},
		{"metadata", "uid"},
		{"metadata", "resourceVersion"},
		{"metadata", "generation"},
		{"spec", "image"},
		{"spec", "imagePullSecrets"},
		{"status", "observedGeneration"},
		{"status", "images"},
	} {
		if value, found, err := unstructured.NestedFieldNoCopy(from.Object, path...); found && err == nil {
			if err := unstructured.SetNestedField(kept.Object, value, path...); err != nil {
				return nil, fmt.Errorf("%s %s: %w", from.GetKind(), from.GetName(), err)
			}
		}
	}
	return kept, nil
}

// wanted are the files of all objects that fit one of the node's regions.
func (b *bitstreamsAhead) wanted(v *view) []job {
	ids := interfacesOf(v)
	var out []job
	for _, store := range b.objects {
		for _, object := range store.List() {
			o, ok := object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			for _, p := range b.bitstreams.filesOf(o, ids) {
				out = append(out, job{
					key: fmt.Sprint(p), reference: p.Reference, digest: p.Digest,
					bring: func(ctx context.Context) error { return b.files.bringSpare(ctx, &p) },
				})
			}
		}
	}
	return out
}

// filesOf are the files that claims of this node would fetch if they named the object: none of one that is not resolved, is for other
// interfaces, or whose files are on the hosts.
func (b *bitstreams) filesOf(o *unstructured.Unstructured, ids []string) []fetchParams {
	if image, _, _ := unstructured.NestedString(o.Object, "spec", "image"); image == "" {
		return nil
	}
	object, err := v1alpha1.DecodeFPGABitstream(o)
	if err != nil {
		return nil
	}
	var out []fetchParams
	for _, id := range ids {
		if found, err := b.of(object, id); err == nil && found.fetch != nil {
			out = append(out, *found.fetch)
		}
	}
	return out
}

// interfacesOf are the interface ids of the node's regions, sorted. There are none before the first look.
func interfacesOf(v *view) []string {
	if v == nil {
		return nil
	}
	ids := map[string]bool{}
	for _, d := range v.All() {
		if d.Region != nil && d.Region.InterfaceID != "" {
			ids[d.Region.InterfaceID] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}
