// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// claim is allocated from the given drivers, unless there are none, and reserved for the pods.
func claim(namespace, name string, drivers, pods []string) resourceapi.ResourceClaim {
	c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if len(drivers) > 0 {
		c.Status.Allocation = &resourceapi.AllocationResult{}
	}
	for _, d := range drivers {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Driver: d})
	}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID("uid-" + p)})
	}
	return c
}

func TestHolds(t *testing.T) {
	t.Parallel()
	fettle, foreign := []string{"fettle.dev"}, []string{"x.dev"}
	group := claim("ns", "group", fettle, nil)
	group.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
		{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g"},
	}
	pods := func(names ...string) (list []Consumer) {
		for _, n := range names {
			list = append(list, Consumer{Name: n, UID: types.UID("uid-" + n)})
		}
		return list
	}
	key := func(namespace, name string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	tests := []struct {
		name   string
		claims []resourceapi.ResourceClaim
		want   []Hold
	}{
		{"none", nil, nil},
		{"not allocated", []resourceapi.ResourceClaim{claim("ns", "a", nil, nil)}, nil},
		{"allocated, not reserved", []resourceapi.ResourceClaim{claim("ns", "a", fettle, nil)}, nil},
		{"another driver's", []resourceapi.ResourceClaim{claim("ns", "a", foreign, []string{"p"})}, nil},
		{
			"sorted, mixed drivers",
			[]resourceapi.ResourceClaim{
				claim("z", "a", fettle, []string{"q", "p"}),
				claim("ns", "b", []string{"x.dev", "fettle.dev"}, []string{"p"}),
				claim("ns", "a", fettle, []string{"p"}),
			},
			[]Hold{
				{Claim: key("ns", "a"), Pods: pods("p")},
				{Claim: key("ns", "b"), Pods: pods("p")},
				{Claim: key("z", "a"), Pods: pods("p", "q")},
			},
		},
		{
			"reserved for no pod",
			[]resourceapi.ResourceClaim{group},
			[]Hold{{Claim: key("ns", "group"), Others: []string{"podgroups/g"}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, holds(tt.claims)); diff != "" {
				t.Errorf("holds (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInUseError(t *testing.T) {
	t.Parallel()
	err := &InUseError{
		Holds: []Hold{
			{Claim: types.NamespacedName{Namespace: "ml", Name: "train"}, Pods: []Consumer{{Name: "train-0"}, {Name: "train-1"}}},
			{Claim: types.NamespacedName{Namespace: "ml", Name: "gang"}, Others: []string{"podgroups/g"}},
		},
		Nodes: []string{"node1"},
	}
	want := `Fettle is not uninstalled, because devices are in use:
  claim ml/train pod ml/train-0 pod ml/train-1
  claim ml/gang podgroups/g
  node node1 still has prepared claims
Delete these pods and try again. To have them evicted instead, set the chart's value uninstall.force=true ` +
		`(helm upgrade with --reuse-values) and uninstall again; the flag of fettle-controller uninstall is --force.`
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
}

func TestFleet(t *testing.T) {
	t.Parallel()
	accelerator := func(name string, prepared int32, retired metav1.ConditionStatus) v1alpha1.AcceleratorNode {
		a := v1alpha1.AcceleratorNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		a.Status.PreparedClaims = prepared
		if retired != "" {
			a.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRetired, Status: retired}}
		}
		return a
	}
	node := func(name string, ready corev1.ConditionStatus) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if ready != "" {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		}
		return n
	}
	f := newFleet(
		[]v1alpha1.AcceleratorNode{
			accelerator("new", 1, ""), accelerator("retired", 0, metav1.ConditionTrue), accelerator("busy", 2, metav1.ConditionFalse),
			accelerator("gone", 1, ""), accelerator("down", 1, ""), accelerator("unknown", 1, ""),
		},
		[]corev1.Node{
			node("new", corev1.ConditionTrue), node("retired", corev1.ConditionTrue), node("busy", corev1.ConditionTrue),
			node("down", corev1.ConditionUnknown), node("unknown", ""), node("bystander", corev1.ConditionFalse),
		},
	)
	wantSilent := map[string]string{"gone": nodeGone, "down": nodeNotReady, "unknown": nodeNotReady}
	if diff := cmp.Diff(wantSilent, f.silent); diff != "" {
		t.Errorf("silent (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"busy", "new"}, f.unretired()); diff != "" {
		t.Errorf("unretired (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"busy", "down", "new", "unknown"}, preparing(f.all, f.gone())); diff != "" {
		t.Errorf("preparing without force (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"busy", "new"}, preparing(f.all, f.silent)); diff != "" {
		t.Errorf("preparing with force (-want +got):\n%s", diff)
	}
}
