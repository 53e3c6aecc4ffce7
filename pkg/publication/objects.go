// SPDX-License-Identifier: Apache-2.0

package publication

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// Objects returns the ResourceSlices of a node as they are in the API server once they were published for the first time. What only the
// server sets is missing: the random end of the name, in place of which the pool and the slice's number stand, and the UID of the Node that
// owns the slice, without which no owner can be named.
func Objects(node string, pools []Pool) []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	for _, pool := range pools {
		for i, s := range pool.Slices {
			slice := &resourceapi.ResourceSlice{
				TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSlice"},
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%d", node, pool.Name[len(node)+1:], i)},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: v1alpha1.DriverName, NodeName: &node, SharedCounters: s.SharedCounters, Devices: s.Devices,
					Pool: resourceapi.ResourcePool{Name: pool.Name, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
				},
			}
			out = append(out, slice)
		}
	}
	return out
}
