// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestOwnerPodFromMemory: the pod of a claim is read from the API server's memory, and once more where that is behind.
func TestOwnerPodFromMemory(t *testing.T) {
	whole := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "pod", UID: "p1"},
			Spec: corev1.PodSpec{NodeName: nodefixture.Node, ResourceClaims: []corev1.PodResourceClaim{
				{Name: "gpu", ResourceClaimTemplateName: new("t")},
				{Name: "other", ResourceClaimName: new("other")},
				{Name: "needless", ResourceClaimTemplateName: new("t")},
			}},
			Status: corev1.PodStatus{ResourceClaimStatuses: []corev1.PodResourceClaimStatus{
				{Name: "gpu", ResourceClaimName: new("c1")}, {Name: "needless"},
			}},
		}
	}
	for name, tc := range map[string]struct {
		stale  func(*corev1.Pod)
		absent bool
		want   []string
	}{
		"current":            {func(*corev1.Pod) {}, false, []string{"0"}},
		"not there yet":      {nil, true, []string{"0", ""}},
		"an earlier pod":     {func(p *corev1.Pod) { p.UID = "p0" }, false, []string{"0", ""}},
		"not bound yet":      {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false, []string{"0", ""}},
		"without this claim": {func(p *corev1.Pod) { p.Status.ResourceClaimStatuses[0].ResourceClaimName = nil }, false, []string{"0", ""}},
		"without other claims": {
			func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = p.Status.ResourceClaimStatuses[:1] }, false, []string{"0", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPresetWorld(t)
			var asked []string
			w.kube.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				version := action.(clienttesting.GetActionImpl).GetOptions.ResourceVersion
				asked = append(asked, version)
				pod := whole()
				if version == "0" && tc.absent {
					return true, nil, errors.New("not there yet")
				}
				if version == "0" {
					tc.stale(pod)
				}
				return true, pod, nil
			})
			c := nodefixture.Allocated("u1")
			c.Name = "c1"
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "pod", UID: "p1", Controller: new(true)}}
			pod, err := w.ownerPod(t.Context(), c)
			check.Must(t, err)
			if pod.UID != "p1" || pod.Spec.NodeName == "" || !slices.Equal(asked, tc.want) {
				t.Errorf("asked for versions %q, want %q; got %+v", asked, tc.want, pod)
			}
		})
	}
}
