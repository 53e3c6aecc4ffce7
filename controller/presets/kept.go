// SPDX-License-Identifier: Apache-2.0

package presets

import (
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// maxStatus is the largest status that is kept. The controller writes far less. A larger one is a tenant's, and the controller replaces it.
const maxStatus = 64 << 10

// Transform keeps the DevicePresets in the manager's cache to what reconcilers read, within the shares of their namespaces, and leaves
// other objects to another transform. Tenants make presets as many and as large as the API server takes them. It notes presets in shares,
// and the reconciler forgets those that are gone.
//
// It takes objects of all kinds. A cache with options for one kind asks the API server for that kind when the cache is made, which fails:
// the controller applies its definitions later.
func Transform(shares *preset.Shares, others toolscache.TransformFunc) toolscache.TransformFunc {
	return func(object any) (any, error) {
		if p, ok := object.(*v1alpha1.DevicePreset); ok {
			return trim(p, shares), nil
		}
		return others(object)
	}
}

func trim(p *v1alpha1.DevicePreset, shares *preset.Shares) *v1alpha1.DevicePreset {
	kept := &v1alpha1.DevicePreset{TypeMeta: p.TypeMeta, ObjectMeta: v1alpha1.KeptMeta(&p.ObjectMeta)}
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
