// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/names"
	"github.com/fettle-dev/fettle/controller/reconciler"
	"github.com/fettle-dev/fettle/controller/shippedpresets"
	"github.com/fettle-dev/fettle/test/large"
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

// TestGrantsOfLargeObjects: little is kept of what tenants made, however large it is.
func TestGrantsOfLargeObjects(t *testing.T) {
	for _, o := range []client.Object{&v1alpha1.DevicePreset{}, &v1alpha1.FPGABitstream{}, &v1alpha1.GPUKernelCache{}} {
		large.KeepsLittle(t, o, func(object any) (any, error) {
			o, is := object.(runtime.Object)
			if !is {
				return nil, fmt.Errorf("it is a %T", object)
			}
			r, _ := Uninstall{Namespace: "fettle-system"}.grantOf(o)
			return r, nil
		})
	}
	p := &v1alpha1.DevicePreset{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", UID: "uid"}}
	p.Spec.EnvFrom = []v1alpha1.PresetEnvFrom{{}}
	p.Spec.EnvFrom[0].ConfigMapRef.Name = "settings"
	r, granted := Uninstall{Namespace: "fettle-system"}.grantOf(p)
	if !granted || r.Name() != "fettle.dev:devicepreset:p" || r.Namespace != "team" || r.Owner.GetUID() != "uid" {
		t.Errorf("granted %t: %+v", granted, r)
	}
}
