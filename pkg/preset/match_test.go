// SPDX-License-Identifier: Apache-2.0

package preset_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// TestOrder gives one variable by presets that differ in one thing at a time.
func TestOrder(t *testing.T) {
	at := func(p preset.Preset, priority int32, age int) preset.Preset {
		p.Rules.Priority, p.Created = priority, birth().Add(-time.Duration(age)*time.Hour)
		return p
	}
	cluster := func(name string) preset.Preset { return ofCluster(t, name, forGPU+"env: [{name: A, value: "+name+"}]") }
	mine := func(name string) preset.Preset { return own(t, name, forGPU+"env: [{name: A, value: "+name+"}]") }
	all := []preset.Preset{
		at(cluster("z"), 1, 0),
		at(cluster("old"), 2, 9), at(cluster("a"), 2, 5), at(cluster("b"), 2, 5), at(cluster("young"), 2, 1),
		at(mine("low"), -7, 0), at(mine("first"), 0, 9), at(mine("a"), 0, 5), at(mine("b"), 0, 5), at(mine("last"), 1, 9),
	}
	want := []preset.Origin{}
	for _, p := range all {
		want = append(want, p.Origin())
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		got := resolve(t, simple(all...)).Requests[0]
		if diff := cmp.Diff(want, got.Presets); diff != "" {
			t.Fatalf("order (-want +got):\n%s", diff)
		}
		value := []preset.Variable{{Name: "A", Value: "last", From: want[len(want)-1:], Overrode: want[:len(want)-1]}}
		if diff := cmp.Diff(value, got.Env); diff != "" {
			t.Fatalf("value (-want +got):\n%s", diff)
		}
	}
}

func TestDeviceSelector(t *testing.T) {
	// The claim has two NVIDIA GPUs by one request, an AMD one by another, an FPGA and a network card of another driver.
	in := input(pod(container("main", "a")), nil, claim("a",
		device("fast", gpu, "vendor=nvidia", "model=h100"), device("fast", gpu, "vendor=nvidia"), device("slow", gpu, "vendor=amd"),
		device("card", fpga)))
	in.Claims[0].Classes = append(in.Claims[0].Classes, "rdma.example.com")
	const (
		nvidia = `has(device.attributes["fettle.dev"].vendor) && device.attributes["fettle.dev"].vendor == "nvidia"`
		field  = "p a spec.deviceSelector: "
	)
	for _, test := range []struct {
		name, selector string
		want           []string // requests
		refused        []string
	}{
		{name: "class", selector: "{deviceClassNames: [gpu.fettle.dev]}", want: []string{"fast", "slow"}},
		{name: "two classes", selector: "{deviceClassNames: [fpga.fettle.dev, gpu.fettle.dev]}", want: []string{"card", "fast", "slow"}},
		{name: "one of them not asked for", selector: "{deviceClassNames: [gpu.fettle.dev, host.fettle.dev]}"},
		{name: "beside another driver's", selector: "{deviceClassNames: [gpu.fettle.dev, rdma.example.com]}", want: []string{"fast", "slow"}},
		{name: "another driver's alone", selector: "{deviceClassNames: [rdma.example.com]}"},
		{name: "condition", selector: "{cel: '" + nvidia + "'}", want: []string{"fast"}},
		{name: "class and condition", selector: "{deviceClassNames: [fpga.fettle.dev], cel: '" + nvidia + "'}"},
		{name: "driver", selector: `{cel: 'device.driver == "fettle.dev"'}`, want: []string{"card", "fast", "slow"}},
		{name: "enough", selector: "{cel: '" + nvidia + "', minCount: 2}", want: []string{"fast"}},
		{name: "not enough", selector: "{cel: '" + nvidia + "', minCount: 3}"},
		{name: "enough of a class", selector: "{deviceClassNames: [gpu.fettle.dev], minCount: 3}", want: []string{"fast", "slow"}},
		{name: "not enough of a class", selector: "{deviceClassNames: [gpu.fettle.dev], minCount: 4}"},
		{name: "absent class", selector: "{absent: {deviceClassNames: [host.fettle.dev]}}", want: []string{"card", "fast", "slow"}},
		{name: "class that is there", selector: "{absent: {deviceClassNames: [host.fettle.dev, gpu.fettle.dev]}}"},
		{name: "absent, but another driver's is there", selector: "{absent: {deviceClassNames: [rdma.example.com]}}"},
		{name: "absent condition", selector: "{deviceClassNames: [gpu.fettle.dev], absent: {cel: 'false'}}", want: []string{"fast", "slow"}},
		{name: "condition that is there", selector: "{deviceClassNames: [fpga.fettle.dev], absent: {cel: '" + nvidia + "'}}"},
		{name: "does not compile", selector: "{cel: 'device.nothing'}", refused: []string{field + `CEL "device.nothing": `}},
		{name: "no truth", selector: "{cel: '1'}", refused: []string{field + `CEL "1": must evaluate to bool`}},
		{
			name: "fails on a device", selector: `{cel: 'device.attributes["fettle.dev"].model == "h100"'}`,
			refused: []string{field + `CEL "device.attributes[\"fettle.dev\"].model == \"h100\"": no such key: model`},
		},
		{
			name: "fails where it has to be absent", selector: `{absent: {cel: 'device.attributes["fettle.dev"].model == "a100"'}}`,
			refused: []string{field + "CEL "},
		},
		{
			name: "would fail on a device of a class that is not meant", want: []string{"fast", "slow"},
			selector: `{deviceClassNames: [gpu.fettle.dev], cel: 'device.attributes["fettle.dev"].vendor != ""'}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			in.Presets = []preset.Preset{own(t, "p", "deviceSelector: "+test.selector)}
			got := resolve(t, in)
			want := []string{}
			for _, request := range test.want {
				want = append(want, "a/"+request+": p")
			}
			if diff := cmp.Diff(want, names(got)); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			wantLines(t, "refusals", told(got.Refusals), test.refused...)
		})
	}
}

func TestPodAndNamespaceSelector(t *testing.T) {
	const (
		train  = "podSelector: {matchLabels: {app: train}}\n"
		serve  = "podSelector: {matchLabels: {app: serve}}\n"
		broken = "deviceSelector: {cel: 'device.nothing'}\n"
		pods   = "p a spec.podSelector: selects pods, and the claim is not of one pod alone"
	)
	for _, test := range []struct {
		name    string
		preset  preset.Preset
		change  func(*preset.Input)
		applied bool
		refused []string
	}{
		{name: "pod", preset: own(t, "p", train), applied: true},
		{name: "all pods", preset: own(t, "p", "podSelector: {}"), applied: true},
		{name: "another pod", preset: own(t, "p", serve)},
		{name: "both", preset: own(t, "p", forGPU+train), applied: true},
		{name: "devices but not the pod", preset: own(t, "p", forGPU+serve)},
		{name: "pod but not the devices", preset: own(t, "p", "deviceSelector: {deviceClassNames: [fpga.fettle.dev]}\n"+train)},
		{name: "another pod, and CEL that fails", preset: own(t, "p", broken+serve)},
		{name: "no claim of one pod", preset: own(t, "p", forGPU+train), change: share, refused: []string{pods}},
		{name: "no claim of one pod, nor the devices", preset: own(t, "p", "deviceSelector: {deviceClassNames: [x]}\n"+train), change: share},
		{name: "devices of a shared claim", preset: own(t, "p", forGPU), change: share, applied: true},
		{name: "opted out", preset: own(t, "p", forGPU), change: exclude("true")},
		{name: "opted out of CEL that fails", preset: own(t, "p", broken), change: exclude("true")},
		{name: "opted out by another word", preset: own(t, "p", forGPU), change: exclude("yes"), applied: true},
		{name: "opted out, but the claim is shared", preset: own(t, "p", forGPU), applied: true, change: func(in *preset.Input) {
			exclude("true")(in)
			in.Claims[0].Owned = false
		}},
		{name: "namespace", preset: ofCluster(t, "p", forGPU+"namespaceSelector: {matchLabels: {stage: dev}}"), applied: true},
		{name: "another namespace's labels", preset: ofCluster(t, "p", forGPU+"namespaceSelector: {matchLabels: {stage: prod}}")},
		{name: "all namespaces", preset: ofCluster(t, "p", forGPU+"namespaceSelector: {}"), applied: true},
		{
			name: "bad namespace selector", preset: ofCluster(t, "p", forGPU+"namespaceSelector: {matchLabels: {stage: 'a b'}}"),
			refused: []string{"p a spec.namespaceSelector.matchLabels: the preset is not valid: "},
		},
		{
			name: "bad namespace selector that nobody validated", preset: unvalidated("stage", "a b"),
			refused: []string{"p a spec.namespaceSelector: "},
		},
		{name: "another namespace", preset: own(t, "p", forGPU), change: func(in *preset.Input) { in.Namespace = "other" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := simple(test.preset)
			if test.change != nil {
				test.change(&in)
			}
			got := resolve(t, in)
			want := []string{}
			if test.applied {
				want = append(want, "a/gpu: p")
			}
			if diff := cmp.Diff(want, names(got)); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			wantLines(t, "refusals", told(got.Refusals), test.refused...)
		})
	}
}

// TestPodAsAWhole: classes, minCount and absent count over all claims of a pod, also those that it shares. A claim that pods share counts
// alone, and so does each claim if no pod is known.
func TestPodAsAWhole(t *testing.T) {
	const both = "{deviceClassNames: [fpga.fettle.dev, gpu.fettle.dev]}"
	a, b := claim("a", device("gpu", gpu, "vendor=nvidia")), claim("b", device("gpu", gpu, "vendor=amd"), device("card", fpga))
	others := claim("c")
	others.Classes = []string{"rdma.example.com"}
	for _, test := range []struct {
		name, selector string
		claims, shared []preset.Claim
		nobodys        bool
		want, refused  []string
	}{
		{name: "classes", selector: both, claims: []preset.Claim{a, b}, want: []string{"a/gpu: p", "b/card: p", "b/gpu: p"}},
		{name: "one claim alone", selector: both, claims: []preset.Claim{a}},
		{name: "a shared claim counts", selector: both, claims: []preset.Claim{a}, shared: []preset.Claim{shared(b)}, want: []string{"a/gpu: p"}},
		{name: "as shared claim alone", selector: both, claims: []preset.Claim{shared(a)}, shared: []preset.Claim{b}, nobodys: true},
		{
			name: "another driver's claim", selector: "{deviceClassNames: [gpu.fettle.dev, rdma.example.com]}",
			claims: []preset.Claim{a, others}, want: []string{"a/gpu: p"},
		},
		{
			name: "enough together", selector: "{deviceClassNames: [gpu.fettle.dev], minCount: 2}", claims: []preset.Claim{a, b},
			want: []string{"a/gpu: p", "b/gpu: p"},
		},
		{name: "not enough together", selector: "{deviceClassNames: [gpu.fettle.dev], minCount: 3}", claims: []preset.Claim{a, b}},
		{
			name: "enough with a shared one", selector: "{deviceClassNames: [gpu.fettle.dev], minCount: 2}",
			claims: []preset.Claim{a}, shared: []preset.Claim{shared(b)}, want: []string{"a/gpu: p"},
		},
		{name: "not absent in another claim", selector: "{absent: {deviceClassNames: [fpga.fettle.dev]}}", claims: []preset.Claim{a, b}},
		{
			name: "not absent in a shared claim", selector: "{absent: {deviceClassNames: [fpga.fettle.dev]}}",
			claims: []preset.Claim{a}, shared: []preset.Claim{shared(b)},
		},
		{name: "another driver's is not absent", selector: "{absent: {deviceClassNames: [rdma.example.com]}}", claims: []preset.Claim{a, others}},
		{
			name:     "not absent by condition",
			selector: `{absent: {cel: 'device.attributes["fettle.dev"].?vendor.orValue("") == "amd"'}}`, claims: []preset.Claim{a, b},
		},
		{
			name:     "a condition that fails on another claim's device",
			selector: `{deviceClassNames: [gpu.fettle.dev], absent: {cel: 'device.attributes["fettle.dev"].vendor == "x"'}}`,
			claims:   []preset.Claim{a, b}, refused: []string{"p a spec.deviceSelector: CEL ", "p b spec.deviceSelector: CEL "},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			owner := pod(container("main", "a", "b", "c"))
			if test.nobodys {
				owner = nil
			}
			in := input(owner, []preset.Preset{own(t, "p", "deviceSelector: "+test.selector)}, test.claims...)
			in.Shared = test.shared
			got := resolve(t, in)
			wantLines(t, "requests", names(got), test.want...)
			wantLines(t, "refusals", told(got.Refusals), test.refused...)
		})
	}
}

func share(in *preset.Input) { in.Claims[0].Owned, in.Pod = false, nil }

func exclude(value string) func(*preset.Input) {
	return func(in *preset.Input) {
		in.Pod.Annotations = map[string]string{v1alpha1.ExcludePresetsAnnotation: value}
	}
}

func unvalidated(key, value string) preset.Preset {
	return preset.Preset{
		Name: "p", NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}},
		Rules: v1alpha1.PresetRules{DeviceSelector: &v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{gpu}}},
	}
}

// TestOr wants each of two presets for the claim that it selects, and both for the one that both do.
func TestOr(t *testing.T) {
	in := input(pod(container("main", "a", "b", "c")), []preset.Preset{
		own(t, "p", forGPU), own(t, "q", "deviceSelector: {deviceClassNames: [fpga.fettle.dev]}"),
	}, claim("a", device("gpu", gpu)), claim("b", device("card", fpga)), claim("c", device("x", gpu), device("y", fpga)))
	wantLines(t, "requests", names(resolve(t, in)), "a/gpu: p", "b/card: q", "c/x: p", "c/y: q")
}

// TestInvalid wants a preset that is not valid to be told of where it would be applied, and to keep no other from it.
func TestInvalid(t *testing.T) {
	in := simple(
		own(t, "bad", forGPU+"env: [{name: A-B, value: c}, {name: A, value: bad}]"),
		own(t, "worse", forGPU+"env: [{name: PATH, value: /x}]"),
		own(t, "elsewhere", "deviceSelector: {deviceClassNames: [x]}\nenv: [{name: '1', value: c}]"),
		own(t, "cel", "deviceSelector: {cel: '('}\nenv: [{name: A, value: cel}]"),
		own(t, "fine", forGPU+"env: [{name: A, value: fine}]"),
	)
	got := resolve(t, in)
	wantLines(t, "requests", names(got), "a/gpu: fine")
	wantLines(t, "refusals", told(got.Refusals),
		`bad a spec.env[0].name: the preset is not valid: spec.env[0].name: Invalid value: "A-B"`,
		`cel a spec.deviceSelector: CEL "(": `, "worse a spec.env[0]: the preset is not valid: spec.env[0]: Forbidden: PATH takes only")
	if v := got.Requests[0].Env; len(v) != 1 || v[0].Value != "fine" {
		t.Errorf("variables %+v, want A=fine alone", v)
	}
}

// TestUsers maps containers to requests in each way that a pod can say it, and sees by the pod's own value who is judged.
func TestUsers(t *testing.T) {
	set := own(t, "p", forAll+"env: [{name: A, value: x, mode: default}]")
	two := claim("a", device("one", gpu), device("two", gpu))
	fromTemplate := pod(with(container("main", "entry"), "A=pod"))
	fromTemplate.Spec.ResourceClaims[0].ResourceClaimName = nil
	fromTemplate.Spec.ResourceClaims[0].ResourceClaimTemplateName = new("template")
	notYet := fromTemplate.DeepCopy()
	fromTemplate.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "entry", ResourceClaimName: new("a")}}
	extended := pod(with(container("main"), "A=pod"), container("other"))
	extended.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		ResourceClaimName: "a", RequestMappings: []corev1.ContainerExtendedResourceRequest{
			{ContainerName: "main", ResourceName: "example.com/gpu", RequestName: "one"},
			{ContainerName: "other", ResourceName: "example.com/gpu", RequestName: "two"},
		},
	}
	another := extended.DeepCopy()
	another.Status.ExtendedResourceClaimStatus.ResourceClaimName = "b"
	initial := pod()
	initial.Spec.InitContainers = []corev1.Container{with(container("init", "a/two"), "A=pod")}
	initial.Spec.Containers = []corev1.Container{container("main", "a/one")}
	initial.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: new("a")}}
	for _, test := range []struct {
		name string
		pod  *corev1.Pod
		want []string // requests that get the default
	}{
		{name: "whole claim", pod: pod(with(container("main", "a"), "A=pod"))},
		{name: "one request", pod: pod(with(container("main", "a/one"), "A=pod")), want: []string{"two"}},
		{name: "both requests", pod: pod(with(container("main", "a/one", "a/two"), "A=pod"))},
		{name: "another container", pod: pod(with(container("main", "a/one"), "A=pod"), container("other", "a/two")), want: []string{"two"}},
		{
			name: "a container without the claim",
			pod:  pod(with(container("main"), "A=pod"), container("other", "a")), want: []string{"one", "two"},
		},
		{name: "template", pod: fromTemplate},
		{name: "template whose claim is not known yet", pod: notYet, want: []string{"one", "two"}},
		{name: "extended resource", pod: extended, want: []string{"two"}},
		{name: "extended resource of another claim", pod: another, want: []string{"one", "two"}},
		{name: "init container", pod: initial, want: []string{"one"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := []string(nil)
			for _, request := range resolve(t, input(test.pod, []preset.Preset{set}, two)).Requests {
				if len(request.Env) > 0 {
					got = append(got, request.Request)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("requests that get the default (-want +got):\n%s", diff)
			}
		})
	}
}
