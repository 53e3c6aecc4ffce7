// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/pkg/manifest"
	"github.com/fettle-dev/fettle/pkg/plan"
	"github.com/fettle-dev/fettle/pkg/plan/gates"
	"github.com/fettle-dev/fettle/test/check"
)

// TestOf compares what is counted in the files of testdata with golden files. NAME.yaml is the cluster, NAME.ask.yaml what is asked about.
func TestOf(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files (%v)", err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, ".ask.yaml") {
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			name := strings.TrimSuffix(path, ".yaml")
			var asked *plan.Snapshot
			if _, err := os.Stat(name + ".ask.yaml"); err == nil {
				asked = read(t, name+".ask.yaml")
			}
			report, err := Of(read(t, path), asked, "")
			if err != nil {
				t.Fatal(err)
			}
			check.GoldenJSON(t, name+".golden.json", report)
		})
	}
}

// read reads a snapshot of objects that have a namespace.
func read(t *testing.T, path string) *plan.Snapshot {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &plan.Snapshot{}
	for _, document := range manifest.Split(data) {
		var kind struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal(document.Text, &kind); err != nil {
			t.Fatalf("%s:%d: %v", path, document.Line, err)
		}
		into := map[string]func() any{
			"Pod":                   func() any { return add(&s.Pods) },
			"ResourceQuota":         func() any { return add(&s.Quotas) },
			"ResourceSlice":         func() any { return add(&s.Slices) },
			"DeviceClass":           func() any { return add(&s.Classes) },
			"ResourceClaim":         func() any { return add(&s.Claims) },
			"ResourceClaimTemplate": func() any { return add(&s.Templates) },
		}[kind.Kind]
		if into == nil {
			t.Fatalf("%s:%d: unknown kind %q", path, document.Line, kind.Kind)
		}
		if err := yaml.UnmarshalStrict(document.Text, into()); err != nil {
			t.Fatalf("%s:%d: %v", path, document.Line, err)
		}
	}
	return s
}

func add[T any](list *[]*T) *T {
	*list = append(*list, new(T))
	return (*list)[len(*list)-1]
}

// TestDevicesByClass: what core quota charges for each form of a request.
func TestDevicesByClass(t *testing.T) {
	exactly := func(r resourceapi.ExactDeviceRequest) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: "r", Exactly: &r}
	}
	yes := true
	for _, tc := range []struct {
		name     string
		requests []resourceapi.DeviceRequest
		want     map[string]int64
	}{
		{"none", nil, map[string]int64{}},
		{"defaults", []resourceapi.DeviceRequest{exactly(resourceapi.ExactDeviceRequest{DeviceClassName: "a"})}, map[string]int64{"a": 1}},
		{"count", []resourceapi.DeviceRequest{
			exactly(resourceapi.ExactDeviceRequest{DeviceClassName: "a", AllocationMode: "ExactCount", Count: 2}),
			exactly(resourceapi.ExactDeviceRequest{DeviceClassName: "a", Count: 3}),
		}, map[string]int64{"a": 5}},
		{"all", []resourceapi.DeviceRequest{
			exactly(resourceapi.ExactDeviceRequest{DeviceClassName: "a", AllocationMode: "All"}),
		}, map[string]int64{"a": 32}},
		{"admin access", []resourceapi.DeviceRequest{
			exactly(resourceapi.ExactDeviceRequest{DeviceClassName: "a", AllocationMode: "All", AdminAccess: &yes}),
		}, map[string]int64{"a": 32}},
		{"a mode that core does not know", []resourceapi.DeviceRequest{
			exactly(resourceapi.ExactDeviceRequest{DeviceClassName: "a", AllocationMode: "Some", Count: 4}),
		}, map[string]int64{"a": 0}},
		{"alternatives", []resourceapi.DeviceRequest{{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
			{Name: "two", DeviceClassName: "a", Count: 2},
			{Name: "one", DeviceClassName: "a", Count: 1},
			{Name: "four", DeviceClassName: "b", Count: 4},
		}}, exactly(resourceapi.ExactDeviceRequest{DeviceClassName: "a", Count: 1})}, map[string]int64{"a": 3, "b": 4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			claim := &resourceapi.ResourceClaim{}
			claim.Spec.Devices.Requests = tc.requests
			s := defaulted(&plan.Snapshot{Claims: []*resourceapi.ResourceClaim{claim}})
			if diff := cmp.Diff(tc.want, devicesByClass(&s.Claims[0].Spec)); diff != "" {
				t.Errorf("wrong devices (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExtended: containers that run together add up, and an init container counts if it needs more.
func TestExtended(t *testing.T) {
	set, _, err := gates.For("", nil)
	if err != nil {
		t.Fatal(err)
	}
	rules := newRules(set, []*resourceapi.DeviceClass{class("gpus", "example.com/gpu")})
	always := corev1.ContainerRestartPolicyAlways
	container := func(n string, policy *corev1.ContainerRestartPolicy) corev1.Container {
		c := corev1.Container{RestartPolicy: policy}
		c.Resources.Limits = corev1.ResourceList{"example.com/gpu": *quantity(int64(len(n))), "example.com/other": *quantity(9)}
		return c
	}
	for _, tc := range []struct {
		name string
		spec corev1.PodSpec
		want charges
	}{
		{"none", corev1.PodSpec{Containers: []corev1.Container{{}}}, charges{}},
		{"two containers", corev1.PodSpec{
			Containers: []corev1.Container{container("1", nil), container("22", nil)},
		}, charges{"example.com/gpu": 3}},
		{"a large init container", corev1.PodSpec{
			InitContainers: []corev1.Container{container("55555", nil), container("22", nil)}, Containers: []corev1.Container{container("1", nil)},
		}, charges{"example.com/gpu": 5}},
		{"an init container after a sidecar", corev1.PodSpec{
			InitContainers: []corev1.Container{container("22", &always), container("333", nil)}, Containers: []corev1.Container{container("1", nil)},
		}, charges{"example.com/gpu": 5}},
		{"sidecars run on", corev1.PodSpec{
			InitContainers: []corev1.Container{container("333", nil), container("22", &always)},
			Containers:     []corev1.Container{container("22", nil)},
		}, charges{"example.com/gpu": 4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := defaulted(&plan.Snapshot{Pods: []*corev1.Pod{{Spec: tc.spec}}}).Pods[0]
			if diff := cmp.Diff(tc.want, rules.extended(pod)); diff != "" {
				t.Errorf("wrong resources (-want +got):\n%s", diff)
			}
		})
	}
}

func class(name, resource string) *resourceapi.DeviceClass {
	c := &resourceapi.DeviceClass{}
	c.Name, c.Spec.ExtendedResourceName = name, &resource
	return c
}
