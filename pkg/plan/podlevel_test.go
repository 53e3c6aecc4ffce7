// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/plan"
)

// TestLimitsOfWholePods: a pod of a file that says only limits for the whole pod requests what the API server will make of them: what its
// containers request of a resource, and the limit where none requests it.
func TestLimitsOfWholePods(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limits, container corev1.ResourceList
		fits              bool
	}{
		"more CPU than the node has": {limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}},
		"more memory beside requests for CPU": {
			limits: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("64Gi"),
			},
			container: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
		},
		"what the container requests": {
			limits:    corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
			container: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			fits:      true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := gpuNodes(1, 1)
			s.Nodes[0].Status.Allocatable = corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("8Gi"),
				corev1.ResourcePods: resource.MustParse("10"),
			}
			spec := &s.Pods[0].Spec
			spec.Resources = &corev1.ResourceRequirements{Limits: test.limits}
			spec.Containers[0].Resources.Requests = test.container
			if pod := planOf(t, t.Context(), s, plan.Options{}).Pods["team/pod-0000"]; (pod.Node != nil) != test.fits {
				t.Errorf("node %v, reason %q, want it to fit: %t", pod.Node, pod.Reason, test.fits)
			}
		})
	}
}
