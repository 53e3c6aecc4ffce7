// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
)

// TestTaints: what the controller noted is taken off nodes, and nothing else.
func TestTaints(t *testing.T) {
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	node := func(name, noted string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"a": "b"}}}
		n.Spec.Taints = []corev1.Taint{
			{Key: "x", Effect: corev1.TaintEffectNoSchedule}, {Key: "y", Value: "1", Effect: corev1.TaintEffectNoExecute},
		}
		if noted != "" {
			n.Annotations[v1alpha1.TaintsAnnotation] = noted
		}
		return n
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(node("ours", "y=1:NoExecute"), node("theirs", "")).Build()
	if err := (Uninstall{Client: c}).taints(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"ours": 1, "theirs": 2} {
		var n corev1.Node
		if err := c.Get(t.Context(), client.ObjectKey{Name: name}, &n); err != nil {
			t.Fatal(err)
		}
		if len(n.Spec.Taints) != want || n.Spec.Taints[0].Key != "x" || len(n.Annotations) != 1 {
			t.Errorf("%s has %v, %v", name, n.Spec.Taints, n.Annotations)
		}
	}
}

// TestPresets: what was shipped goes, what an administrator changed or made stays.
func TestPresets(t *testing.T) {
	scheme, err := reconciler.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	shipped := shippedpresets.Presets([]string{"amd", "intel", "nvidia"})
	shipped[0].Spec.Priority = 1
	delete(shipped[1].Labels, names.ManagedByLabel)
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(shipped[0], shipped[1], shipped[2]).Build()
	if err := (Uninstall{Client: c}).presets(t.Context()); err != nil {
		t.Fatal(err)
	}
	var list v1alpha1.ClusterDevicePresetList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 2 || list.Items[0].Name != "amd.fettle.dev" || list.Items[1].Name != "intel.fettle.dev" {
		t.Errorf("left are %v", list.Items)
	}
}
