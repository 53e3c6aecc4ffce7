// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/test/objects"
)

// gpuNodes is a cluster of nodes with 8 GPUs each, and of pods that ask for one GPU of a template each.
func gpuNodes(nodes, pods int) plan.Snapshot {
	const driver = "gpu.example.com"
	s := plan.Snapshot{
		Classes: []*resourceapi.DeviceClass{{
			ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
			Spec:       resourceapi.DeviceClassSpec{Selectors: objects.Selectors(`device.driver == "gpu.example.com"`)},
		}},
		Templates: []*resourceapi.ResourceClaimTemplate{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "one"},
			Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
				Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: "gpu",
					Selectors:       objects.Selectors(`device.attributes["gpu.example.com"].model == "h100"`),
				}}},
			}}},
		}},
	}
	for n := range nodes {
		name := fmt.Sprintf("node-%04d", n)
		labels := map[string]string{corev1.LabelHostname: name}
		s.Nodes = append(s.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
		slice := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-gpus"},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
			},
		}
		for d := range 8 {
			slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
				Name: fmt.Sprintf("gpu-%d", d),
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					"model": {StringValue: ptr.To("h100")},
					"index": {IntValue: ptr.To(int64(d))},
					"uuid":  {StringValue: ptr.To(fmt.Sprintf("GPU-%s-%d", name, d))},
				},
			})
		}
		s.Slices = append(s.Slices, slice)
	}
	for p := range pods {
		s.Pods = append(s.Pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("pod-%04d", p)},
			Spec: corev1.PodSpec{
				ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("one")}},
				Containers: []corev1.Container{{
					Name: "c", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
				}},
			},
		})
	}
	return s
}

// BenchmarkPlan plans 5,000 claims on 500 nodes with 8 devices each. Of the pods 1,000 find no device.
func BenchmarkPlan(b *testing.B) {
	const claims = 5000
	s := gpuNodes(500, claims)
	for b.Loop() {
		cluster, _, err := plan.NewCluster(s)
		if err != nil {
			b.Fatal(err)
		}
		report, err := plan.Run(b.Context(), cluster, cluster.Pending(), plan.Options{})
		if err != nil {
			b.Fatal(err)
		}
		without := 0
		for _, pod := range report.Pods {
			if pod.Node == nil {
				without++
			}
		}
		if without != claims-500*8 || len(report.Free) != 0 {
			b.Fatalf("%d pods have no node and %d devices are free, want %d and 0", without, len(report.Free), claims-500*8)
		}
	}
	b.ReportMetric(float64(claims*b.N)/b.Elapsed().Seconds(), "claims/s")
}
