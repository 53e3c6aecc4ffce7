// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Trim keeps of AcceleratorNodes in the manager's cache only the fields that a reconciler reads. Of other objects it drops the managed
// fields.
func Trim(object any) (any, error) {
	node, ok := object.(*v1alpha1.AcceleratorNode)
	if !ok {
		return cache.TransformStripManagedFields()(object)
	}
	kept := &v1alpha1.AcceleratorNode{Status: v1alpha1.AcceleratorNodeStatus{
		Vendors: node.Status.Vendors, Bitstreams: node.Status.Bitstreams, Presets: node.Status.Presets, KernelCaches: node.Status.KernelCaches,
	}}
	for i := range node.Status.Pools {
		p := &node.Status.Pools[i]
		kept.Status.Pools = append(kept.Status.Pools, v1alpha1.PoolStatus{Name: p.Name, Kind: p.Kind, Devices: p.Devices, Withheld: p.Withheld})
	}
	kept.Name, kept.UID, kept.ResourceVersion = node.Name, node.UID, node.ResourceVersion
	return kept, nil
}
