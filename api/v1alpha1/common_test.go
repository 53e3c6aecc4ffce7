// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestCommonObject: both objects of a pair say alike what they are and where the things are that they name.
func TestCommonObject(t *testing.T) {
	t.Parallel()
	own, ofCluster := metav1.ObjectMeta{Namespace: "team", Name: "x"}, metav1.ObjectMeta{Name: "x"}
	for _, test := range []struct {
		object            CommonObject
		text, key, secret string
	}{
		{(&DevicePreset{ObjectMeta: own}).Common().CommonObject, "DevicePreset team/x", "team/x", "team"},
		{(&ClusterDevicePreset{ObjectMeta: ofCluster}).Common().CommonObject, "ClusterDevicePreset x", "/x", "fettle"},
		{(&FPGABitstream{ObjectMeta: own}).Common().CommonObject, "FPGABitstream team/x", "team/x", "team"},
		{(&ClusterFPGABitstream{ObjectMeta: ofCluster}).Common().CommonObject, "ClusterFPGABitstream x", "/x", "fettle"},
		{(&GPUKernelCache{ObjectMeta: own}).Common().CommonObject, "GPUKernelCache team/x", "team/x", "team"},
		{(&ClusterGPUKernelCache{ObjectMeta: ofCluster}).Common().CommonObject, "ClusterGPUKernelCache x", "/x", "fettle"},
	} {
		o := test.object
		if o.String() != test.text || o.Key().String() != test.key || o.ReferenceNamespace("fettle") != test.secret {
			t.Errorf("%s, key %s, secrets in %s: want %s, %s, %s", o, o.Key(), o.ReferenceNamespace("fettle"), test.text, test.key, test.secret)
		}
	}
}

// TestCommonStatus: what is written to the common form is written to the object.
func TestCommonStatus(t *testing.T) {
	t.Parallel()
	preset, bitstream, cache := &ClusterDevicePreset{}, &FPGABitstream{}, &ClusterGPUKernelCache{}
	preset.Common().Status.ObservedGeneration = 1
	bitstream.Common().Status.ObservedGeneration = 2
	cache.Common().Status.ObservedGeneration = 3
	got := []int64{preset.Status.ObservedGeneration, bitstream.Status.ObservedGeneration, cache.Status.ObservedGeneration}
	if !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("the objects have %v", got)
	}
}

// TestAllowsNamespace: an object of a namespace is for that alone, one of the cluster for those that it lists.
func TestAllowsNamespace(t *testing.T) {
	t.Parallel()
	own := metav1.ObjectMeta{Namespace: "team", Name: "x"}
	bitstream, cache := (&FPGABitstream{ObjectMeta: own}).Common(), (&GPUKernelCache{ObjectMeta: own}).Common()
	listing := func(list ...string) []bool {
		b, c := &ClusterFPGABitstream{}, &ClusterGPUKernelCache{}
		b.Spec.Namespaces, c.Spec.WorkloadNamespaces = list, list
		return []bool{b.Common().AllowsNamespace("team"), c.Common().AllowsNamespace("team")}
	}
	for name, test := range map[string]struct {
		got  []bool
		want bool
	}{
		"own":        {[]bool{bitstream.AllowsNamespace("team"), cache.AllowsNamespace("team")}, true},
		"another's":  {[]bool{bitstream.AllowsNamespace("b"), cache.AllowsNamespace("b")}, false},
		"listed":     {listing("a", "team"), true},
		"every":      {listing("*"), true},
		"not listed": {listing("a"), false},
		"no list":    {listing(), false},
	} {
		for _, got := range test.got {
			if got != test.want {
				t.Errorf("%s: allowed %v, want %v", name, test.got, test.want)
			}
		}
	}
	c := &ClusterGPUKernelCache{Spec: ClusterGPUKernelCacheSpec{WorkloadNamespaces: []string{"a", "*", "b"}}}
	if got := c.Common().NamedNamespaces(); !slices.Equal(got, []string{"a", "b"}) || len(c.Spec.WorkloadNamespaces) != 3 {
		t.Errorf("named %q of %q", got, c.Spec.WorkloadNamespaces)
	}
}

// TestCommonDecode: the content says which kind it is, and the kind which rules are checked.
func TestCommonDecode(t *testing.T) {
	t.Parallel()
	content := func(kind, namespace string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": GroupVersion.String(), "kind": kind, "metadata": map[string]any{"name": "x", "namespace": namespace}, "spec": spec,
		}}
	}
	mount := map[string]any{
		"podSelector": map[string]any{},
		"mounts":      []any{map[string]any{"hostPath": "/srv", "containerPath": "/usr/lib/x"}},
	}
	for kind, faults := range map[string]int{KindDevicePreset: 1, KindClusterDevicePreset: 0} {
		namespace := map[string]string{KindDevicePreset: "team"}[kind]
		p, err := DecodeDevicePreset(content(kind, namespace, mount))
		if err != nil || p.Kind != kind || p.GetName() != "x" || len(p.Spec.Mounts) != 1 {
			t.Fatalf("%s, %v", p, err)
		}
		if got := p.Validate(field.NewPath("spec")); len(got) != faults {
			t.Errorf("%s has the faults %v, want %d", p, got, faults)
		}
	}
	for kind, namespaces := range map[string]int{KindFPGABitstream: 0, KindClusterFPGABitstream: 1} {
		b, err := DecodeFPGABitstream(content(kind, "", map[string]any{"image": "registry.example/x:v1", "namespaces": []any{"team"}}))
		if err != nil || b.Kind != kind || b.Spec.Image != "registry.example/x:v1" || len(b.Spec.Namespaces) != namespaces {
			t.Errorf("%s: %+v, %v", kind, b.Spec, err)
		}
	}
	if _, err := DecodeDevicePreset(content(KindDevicePreset, "a", map[string]any{"env": 1})); err == nil {
		t.Error("a preset that is none has no error")
	}
}
