// SPDX-License-Identifier: Apache-2.0

package nodetaints

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/test/check"
)

// TestAcceleratorNodeGone: a tainted node whose AcceleratorNode is deleted keeps its taints while its plugin publishes slices.
// While a driver is changed, these may be of host devices only.
func TestAcceleratorNodeGone(t *testing.T) {
	slice := func(driver string, kind device.Kind, node string) *resourceapi.ResourceSlice {
		s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
		s.Spec.Driver, s.Spec.NodeName, s.Spec.Pool.Name = driver, &node, device.PoolName(node, kind)
		return s
	}
	for name, tc := range map[string]struct {
		slice *resourceapi.ResourceSlice
		noted string
		keeps bool
	}{
		"GPUs are published":           {slice: slice(v1alpha1.DriverName, device.KindGPU, "n"), noted: "gpu=:NoSchedule", keeps: true},
		"FPGAs are published":          {slice: slice(v1alpha1.DriverName, device.KindFPGA, "n"), noted: "gpu=:NoSchedule", keeps: true},
		"host devices are published":   {slice: slice(v1alpha1.DriverName, device.KindHost, "n"), noted: "gpu=:NoSchedule", keeps: true},
		"another driver publishes":     {slice: slice("other.example", device.KindGPU, "n"), noted: "gpu=:NoSchedule"},
		"another node's are published": {slice: slice(v1alpha1.DriverName, device.KindGPU, "m"), noted: "gpu=:NoSchedule"},
		"nothing is published":         {noted: "gpu=:NoSchedule"},
		"it was not tainted":           {slice: slice(v1alpha1.DriverName, device.KindGPU, "n")},
	} {
		t.Run(name, func(t *testing.T) {
			scheme, err := reconciler.Scheme()
			check.Must(t, err)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			if tc.noted != "" {
				node.Annotations = map[string]string{v1alpha1.TaintsAnnotation: tc.noted}
				node.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
			}
			p := &v1alpha1.PartitionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
			p.Spec.Nodes = &v1alpha1.NodePartition{Taints: []v1alpha1.NodeTaint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}}
			objects := []client.Object{node, p}
			if tc.slice != nil {
				objects = append(objects, tc.slice)
			}
			api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
				WithIndex(&resourceapi.ResourceSlice{}, resourceapi.ResourceSliceSelectorNodeName, func(o client.Object) []string {
					s, _ := o.(*resourceapi.ResourceSlice)
					return []string{*s.Spec.NodeName}
				}).Build()
			k := &keeper{Services: reconciler.Services{Client: api, Live: api}}
			result, err := k.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(node)})
			check.Must(t, err)
			check.Must(t, api.Get(t.Context(), client.ObjectKeyFromObject(node), node))
			if keeps := len(node.Spec.Taints) == 1; keeps != tc.keeps || (result.RequeueAfter == publishedPause) != tc.keeps {
				t.Errorf("taints %v, looked at again after %s", node.Spec.Taints, result.RequeueAfter)
			}
		})
	}
}
