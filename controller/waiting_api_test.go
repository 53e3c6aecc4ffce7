// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fettle-dev/fettle/controller/waiting"
	"github.com/fettle-dev/fettle/test/apitest"
	"github.com/fettle-dev/fettle/test/objects"
)

// waitingPod creates a pod that waits for a GPU, of which the node's only one is held by a claim of another namespace.
func (c cluster) waitingPod(t *testing.T) *corev1.Pod {
	t.Helper()
	c.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "waited-for"}})
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "holders-team"}})
	c.create(t, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "waited-for-gpu"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "fettle.dev", NodeName: ptr.To("waited-for"),
		Pool: resourceapi.ResourcePool{Name: "waited-for/gpu", Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{
			Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: ptr.To("gpu")}},
		}},
	}})
	claim := func(namespace, name string) *resourceapi.ResourceClaim {
		out := objects.Claim(namespace, name, objects.Request("gpu", "gpu.fettle.dev"))
		c.create(t, out)
		return out
	}
	held := claim("holders-team", "holders-claim")
	held.Status.Allocation = objects.Allocation(objects.Result("gpu", "fettle.dev", "waited-for/gpu", "gpu-0"))
	if err := c.client.Status().Update(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	claim("default", "waits")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "waits"}, Spec: corev1.PodSpec{
		Containers:     []corev1.Container{{Name: "c", Image: "registry.example/c"}},
		Tolerations:    []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, // no kubelet makes the node ready
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("waits")}},
	}}
	c.create(t, pod)
	return pod
}

// testWaiting: the running controller posts to a waiting pod why it waits, and names nothing of another namespace.
func (c cluster) testWaiting(t *testing.T, pod *corev1.Pod) {
	apitest.Eventually(t, func() string { // the controller waits for 30 seconds itself
		var all eventsv1.EventList
		if err := c.client.List(t.Context(), &all, client.InNamespace(pod.Namespace)); err != nil {
			t.Fatal(err)
		}
		for i := range all.Items {
			event := &all.Items[i]
			if event.Reason != waiting.EventReason || event.Regarding.UID != pod.UID {
				continue
			}
			if !strings.Contains(event.Note, "is held: by a claim of another namespace") || strings.Contains(event.Note, "holders-") {
				t.Fatalf("the Event says %q", event.Note)
			}
			return ""
		}
		return "the pod has no Event " + waiting.EventReason
	})
}
