// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/lone"
)

// pools are the names of a node's devices by pool, sorted.
type pools map[string][]string

// published waits until the API server has the node's slices, with so many devices in all of them, and returns the devices as the
// scheduler sees them.
func (api *controlPlane) published(ctx context.Context, p *plugin, devices int) (pools, error) {
	var found pools
	_, err := lone.Await(ctx, p.Begin, fmt.Sprintf("%d devices of node %s in slices", devices, p.node.Name), func() (bool, error) {
		if err := p.Running(); err != nil {
			return false, err
		}
		own := metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + p.node.Name}
		list, err := api.Kube.ResourceV1().ResourceSlices().List(ctx, own)
		if err != nil {
			return false, err
		}
		var whole bool
		found, whole = poolsOf(list.Items)
		return whole && found.count() == devices, nil
	})
	return found, err
}

// poolsOf takes the newest generation of each pool. They are whole when all slices of it are there, in each pool that is.
func poolsOf(slicesOfNode []resourceapi.ResourceSlice) (found pools, whole bool) {
	newest := map[string]int64{}
	for i := range slicesOfNode {
		pool := &slicesOfNode[i].Spec.Pool
		newest[pool.Name] = max(newest[pool.Name], pool.Generation)
	}
	found = pools{}
	missing := map[string]int64{}
	for i := range slicesOfNode {
		spec := &slicesOfNode[i].Spec
		if spec.Pool.Generation != newest[spec.Pool.Name] {
			continue
		}
		if _, ok := missing[spec.Pool.Name]; !ok {
			missing[spec.Pool.Name] = spec.Pool.ResourceSliceCount
		}
		missing[spec.Pool.Name]--
		for j := range spec.Devices {
			found[spec.Pool.Name] = append(found[spec.Pool.Name], spec.Devices[j].Name)
		}
	}
	for _, names := range found {
		slices.Sort(names)
	}
	whole = len(newest) > 0
	for _, n := range missing {
		whole = whole && n == 0
	}
	return found, whole
}

func (p pools) count() int {
	n := 0
	for _, names := range p {
		n += len(names)
	}
	return n
}

// of are the devices of one kind.
func (p pools) of(kind string) []string {
	for pool, names := range p {
		if strings.HasSuffix(pool, "/"+kind) {
			return names
		}
	}
	return nil
}
