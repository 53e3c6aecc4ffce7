// SPDX-License-Identifier: Apache-2.0

package fpgas

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/artifacts"
	"github.com/fettle-dev/fettle/kubeletplugin/follow"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
)

// prefetchSource lists the bitstreams that fit a node's regions.
type prefetchSource struct {
	*Feature
	// objects has the watched objects of both kinds.
	objects []cache.Store
}

// Source lists the bitstreams that fit the node's regions to a prefetcher.
func (f *Feature) Source() artifacts.Source {
	p := &prefetchSource{Feature: f}
	return artifacts.Source{
		What: "bitstream", Needed: func(s *inventory.Snapshot) bool { return len(interfacesOf(s)) > 0 }, Watch: p.watch, Jobs: p.jobs,
	}
}

// watch watches both kinds of objects until ctx ends. stopped waits for its end.
func (p *prefetchSource) watch(ctx context.Context, changed func()) (stopped func(), err error) {
	var informers []*follow.Informer
	for _, resource := range []string{"clusterfpgabitstreams", "fpgabitstreams"} {
		informer, err := follow.Own(p.Dynamic, resource, trimBitstream, changed)
		if err != nil {
			return nil, err
		}
		informers = append(informers, informer)
		p.objects = append(p.objects, informer.GetStore())
	}
	return follow.Run(ctx, informers...), nil
}

// trimBitstream keeps only the fields of an object that name its files and how to fetch them.
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
		{"status", "digest"},
		{"status", "images"},
		{"status", "verification", "digest"},
		{"status", "verification", "result"},
	} {
		if value, found, err := unstructured.NestedFieldNoCopy(from.Object, path...); found && err == nil {
			if err := unstructured.SetNestedField(kept.Object, value, path...); err != nil {
				return nil, fmt.Errorf("%s %s: %w", from.GetKind(), from.GetName(), err)
			}
		}
	}
	return kept, nil
}

// jobs returns a job for each file that fits one of the node's regions.
func (p *prefetchSource) jobs(s *inventory.Snapshot) []artifacts.Job {
	ids := interfacesOf(s)
	var out []artifacts.Job
	for _, store := range p.objects {
		for _, object := range store.List() {
			o, ok := object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			for _, file := range p.bitstreams.filesOf(o, ids) {
				out = append(out, artifacts.Job{
					Key: fmt.Sprint(file), Reference: file.Reference, Digest: file.Digest,
					Fetch: func(ctx context.Context) error { return p.Artifacts.EnsureOpportunistic(ctx, &file) },
				})
			}
		}
	}
	return out
}

// filesOf returns the files that this node would fetch for claims that name the object. It returns none if the object is not resolved, is
// refused by a TrustPolicy, is for other interfaces, or names files on the hosts.
func (b *bitstreams) filesOf(o *unstructured.Unstructured, ids []string) []pin.Params {
	if image, _, _ := unstructured.NestedString(o.Object, "spec", "image"); image == "" {
		return nil
	}
	object, err := v1alpha1.DecodeFPGABitstream(o)
	if err != nil {
		return nil
	}
	var out []pin.Params
	for _, id := range ids {
		if found, err := b.fromObject(object, id); err == nil && found.fetch != nil && found.refused == nil {
			out = append(out, *found.fetch)
		}
	}
	return out
}

// interfacesOf returns the interface ids of the node's regions, sorted. It returns none before the first scan.
func interfacesOf(s *inventory.Snapshot) []string {
	if s == nil {
		return nil
	}
	ids := map[string]bool{}
	for _, d := range s.Devices {
		if d.Region != nil && d.Region.InterfaceID != "" {
			ids[d.Region.InterfaceID] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}
