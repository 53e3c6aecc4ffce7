// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func quantity(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }

// cutRequests returns the resource of pods that a resource of a quota counts.
func cutRequests(name corev1.ResourceName) (corev1.ResourceName, bool) {
	rest, ok := strings.CutPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
	return corev1.ResourceName(rest), ok
}

// sorted returns objects in the order of their namespaces and names.
func sorted[T metav1.Object](objects []T) []T {
	return slices.SortedStableFunc(slices.Values(objects), func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}

// deviceID names a device.
type deviceID struct{ driver, pool, device string }

// memoryOf returns the memory of every device that publishes it. Of a pool the newest generation counts.
func memoryOf(all []*resourceapi.ResourceSlice) map[deviceID]*resource.Quantity {
	newest := map[[2]string]int64{}
	for _, s := range all {
		key := [2]string{s.Spec.Driver, s.Spec.Pool.Name}
		newest[key] = max(newest[key], s.Spec.Pool.Generation)
	}
	out := map[deviceID]*resource.Quantity{}
	for _, s := range all {
		if s.Spec.Pool.Generation < newest[[2]string{s.Spec.Driver, s.Spec.Pool.Name}] {
			continue
		}
		for i := range s.Spec.Devices {
			capacity := map[resourceapi.QualifiedName]resource.Quantity{}
			for name, c := range s.Spec.Devices[i].Capacity {
				capacity[name] = c.Value
			}
			if memory := memoryIn(s.Spec.Driver, capacity); memory != nil {
				out[deviceID{s.Spec.Driver, s.Spec.Pool.Name, s.Spec.Devices[i].Name}] = memory
			}
		}
	}
	return out
}

// memoryIn returns the capacity that a driver calls memory, or nil.
func memoryIn(driver string, capacity map[resourceapi.QualifiedName]resource.Quantity) *resource.Quantity {
	for _, name := range []resourceapi.QualifiedName{"memory", resourceapi.QualifiedName(driver + "/memory")} {
		if q, ok := capacity[name]; ok {
			return &q
		}
	}
	return nil
}
