// SPDX-License-Identifier: Apache-2.0

package presets

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// maxStatus is the most of a status that is kept. The controller writes far less. Where a tenant may write it, another is written anew.
const maxStatus = 64 << 10

// Cached keeps the DevicePresets in the manager's cache to what reconcilers read, within the shares of their namespaces. Tenants make them
// as many and as large as the API server takes them. It notes presets in shares, and the reconciler forgets those that are gone.
func Cached(byObject map[client.Object]cache.ByObject, shares *preset.Shares) {
	byObject[&v1alpha1.DevicePreset{}] = cache.ByObject{Transform: func(object any) (any, error) {
		p, ok := object.(*v1alpha1.DevicePreset)
		if !ok {
			return object, nil
		}
		return trim(p, shares), nil
	}}
}

func trim(p *v1alpha1.DevicePreset, shares *preset.Shares) *v1alpha1.DevicePreset {
	kept := &v1alpha1.DevicePreset{TypeMeta: p.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Generation: p.Generation,
		CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp,
	}}
	kept.Spec.PresetRules = p.Spec.Kept(func(size int) bool { return shares.Note(p.Namespace, p.UID, size) })
	if p.Status.Size() <= maxStatus {
		kept.Status = p.Status
	}
	return kept
}

// wasLeftOut says whether a preset is only in part in the cache because of its namespace, and not because it is too large by itself.
func wasLeftOut(p v1alpha1.CommonDevicePreset) bool {
	return p.Spec.LeftOut > 0 && p.Spec.LeftOut <= v1alpha1.MaxPresetSize
}
