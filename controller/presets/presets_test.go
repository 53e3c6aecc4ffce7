// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/grant"
	"github.com/fettle-dev/fettle/pkg/message"
	"github.com/fettle-dev/fettle/pkg/preset"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const anyGPU = "deviceSelector: {deviceClassNames: [gpu.fettle.dev]}\n"

// cluster is a ClusterDevicePreset of a spec in YAML.
func cluster(t *testing.T, name, spec string) *v1alpha1.ClusterDevicePreset {
	t.Helper()
	p := &v1alpha1.ClusterDevicePreset{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1, CreationTimestamp: metav1.NewTime(start)}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	return p
}

// named is a preset; with a namespace in its name, team/a, it is a DevicePreset.
func named(t *testing.T, name, spec string) preset.Preset {
	t.Helper()
	namespace, own, found := strings.Cut(name, "/")
	if !found {
		return preset.Of(cluster(t, name, spec).Common())
	}
	p := &v1alpha1.DevicePreset{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: own, Generation: 1, CreationTimestamp: metav1.NewTime(start),
	}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	return preset.Of(p.Common())
}

func keyOf(p *preset.Preset) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// filled is an index of presets by name.
func filled(t *testing.T, specs map[string]string) *Index {
	t.Helper()
	x := &Index{}
	now, all := map[types.NamespacedName]Version{}, map[types.NamespacedName]preset.Preset{}
	for name, spec := range specs {
		p := named(t, name, spec)
		now[keyOf(&p)], all[keyOf(&p)] = Version{UID: types.UID(name), Generation: 1}, p
	}
	x.Sync(t.Context(), now, func(key types.NamespacedName) preset.Preset { return all[key] })
	for key := range all {
		if faults := x.Faults(key); len(faults) > 0 {
			t.Fatalf("%s: %v", key, faults)
		}
	}
	return x
}

func (x *Index) said(key string) (out []string) {
	namespace, name, found := strings.Cut(key, "/")
	if !found {
		namespace, name = "", key
	}
	for _, c := range x.Conflicts(types.NamespacedName{Namespace: namespace, Name: name}).Shown {
		winner := "wins over"
		if c.Wins {
			winner = "loses to"
		}
		out = append(out, fmt.Sprintf("%s %s: %s", winner, c.With, strings.Join(c.Settings, ", ")))
	}
	return out
}

// TestThings: what two presets decide otherwise, each the way it can be said.
func TestThings(t *testing.T) {
	for _, test := range []struct{ name, a, b, want string }{
		{"set and set", "env: [{name: A, value: x}]", "env: [{name: A, value: v}]", "variable A"},
		{"the same", "env: [{name: A, value: x}]", "env: [{name: A, value: x, mode: set}]", ""},
		{"other variables", "env: [{name: A, value: x}]", "env: [{name: B, value: v}]", ""},
		{"joined", "env: [{name: A, value: x}]", "env: [{name: A, value: v, mode: append}]", ""},
		{"a default gives way", "env: [{name: A, value: x}]", "env: [{name: A, value: v, mode: default}]", ""},
		{
			"from a ConfigMap", "env: [{name: A, value: x}]",
			"env: [{name: A, valueFrom: {configMapKeyRef: {name: c, key: k}}}]", "variable A",
		},
		{
			"from the same key", "env: [{name: A, valueFrom: {configMapKeyRef: {name: c, key: k}}}]",
			"env: [{name: A, valueFrom: {configMapKeyRef: {name: c, key: k, optional: true}}}]", "",
		},
		{
			"from another key", "env: [{name: A, valueFrom: {configMapKeyRef: {name: c, key: k}}}]",
			"env: [{name: A, valueFrom: {configMapKeyRef: {name: c, key: l}}}]", "variable A",
		},
		{"the last of a preset counts", "env: [{name: A, value: x}, {name: A, value: v}]", "env: [{name: A, value: v}]", ""},
		{
			"mounts", "mounts: [{hostPath: /a, containerPath: /mnt/x}]", "mounts: [{hostPath: /b, containerPath: /mnt/x}]",
			"mount /mnt/x",
		},
		{
			"the same mount", "mounts: [{hostPath: /a, containerPath: /mnt/x, readOnly: true, propagation: None}]",
			"mounts: [{hostPath: /a, containerPath: /mnt/x, optional: true}]", "",
		},
		{
			"writable here", "mounts: [{hostPath: /a, containerPath: /mnt/x, readOnly: false}]",
			"mounts: [{hostPath: /a, containerPath: /mnt/x}]", "mount /mnt/x",
		},
		{
			"scratch", "mounts: [{scratch: {sizeLimit: 1Gi}, containerPath: /mnt/x}]",
			"mounts: [{scratch: {sizeLimit: 2Gi}, containerPath: /mnt/x}]", "mount /mnt/x",
		},
		{"nodes", "deviceNodes: [{path: /dev/kfd}]", "deviceNodes: [{path: /dev/kfd, readOnly: true}]", "device node /dev/kfd"},
		{"the same node", "deviceNodes: [{path: /dev/kfd}]", "deviceNodes: [{path: /dev/kfd, optional: true}]", ""},
		{"tools", "tools: [{names: [x, w]}]", "tools: [{names: [w], root: /opt}]", "tool w"},
		{"the same tools", "tools: [{names: [x, w]}]", "tools: [{names: [w], root: /, optional: true}]", ""},
		{
			"libraries", "libraries: [{names: [libx.so.1, liby.so.*]}]", "libraries: [{names: [liby.so.*], directories: [/opt/l]}]",
			"library liby.so.*",
		},
		{"a tool is no library", "libraries: [{names: [x]}]", "tools: [{names: [x], root: /opt}]", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := filled(t, map[string]string{"a": anyGPU + test.a, "b": anyGPU + test.b})
			var wantA, wantB []string
			if test.want != "" {
				wantA = []string{"loses to ClusterDevicePreset b: " + test.want}
				wantB = []string{"wins over ClusterDevicePreset a: " + test.want}
			}
			if diff := cmp.Diff([][]string{wantA, wantB}, [][]string{x.said("a"), x.said("b")}); diff != "" {
				t.Errorf("conflicts (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMeets: presets collide only where both may be for one request.
func TestMeets(t *testing.T) {
	type selectors struct{ a, b string }
	const both, onlyB, none = "both", "told of at b only", "none"
	const nvidia, amd = `device.attributes["fettle.dev"].vendor == "nvidia"`, `device.attributes["fettle.dev"].vendor == "amd"`
	cel := func(text string) string { return "deviceSelector: {cel: '" + text + "'}" }
	absent := func(text string) string {
		return "deviceSelector: {deviceClassNames: [gpu.fettle.dev], absent: {cel: '" + text + "'}}"
	}
	for _, test := range []struct {
		name string
		selectors
		want string
	}{
		{"same class", selectors{"deviceSelector: {deviceClassNames: [x, w]}", "deviceSelector: {deviceClassNames: [w, z]}"}, both},
		{"other classes", selectors{"deviceSelector: {deviceClassNames: [x]}", "deviceSelector: {deviceClassNames: [z]}"}, none},
		{"a class more", selectors{"deviceSelector: {deviceClassNames: [x]}", "deviceSelector: {deviceClassNames: [w, x]}"}, onlyB},
		{"class and condition", selectors{"deviceSelector: {deviceClassNames: [x]}", cel(nvidia)}, both},
		{
			"kept away by a class",
			selectors{"deviceSelector: {deviceClassNames: [x]}", "deviceSelector: {deviceClassNames: [w], absent: {deviceClassNames: [x]}}"},
			none,
		},
		{"vendors", selectors{cel(nvidia), cel(amd)}, none},
		{"vendors and more", selectors{cel(nvidia + ` && device.attributes["fettle.dev"].productName == "x"`), cel(amd)}, none},
		{"one vendor", selectors{cel(nvidia), cel(nvidia + ` && device.attributes["fettle.dev"].productName == "x"`)}, both},
		{"not told by the vendor", selectors{cel(`device.attributes["fettle.dev"].productName == "x"`), cel(amd)}, both},
		{"an unknown vendor", selectors{cel(`device.attributes["fettle.dev"].vendor == "new"`), cel(amd)}, both},
		{"kinds", selectors{cel(`device.attributes["fettle.dev"].type == "gpu"`), cel(`device.attributes["fettle.dev"].type == "fpga"`)}, none},
		{"kept away by a condition", selectors{cel(nvidia), absent(`device.attributes["fettle.dev"].vendor == "nvidia"`)}, none},
		{"perhaps kept away", selectors{cel(nvidia), absent(nvidia + ` && device.attributes["fettle.dev"].productName == "x"`)}, both},
		{"more devices", selectors{anyGPU, "deviceSelector: {deviceClassNames: [gpu.fettle.dev], minCount: 2}"}, onlyB},
		{"pods", selectors{"podSelector: {matchLabels: {app: x}}", "podSelector: {matchLabels: {app: w}}"}, none},
		{"other labels of pods", selectors{"podSelector: {matchLabels: {app: x}}", "podSelector: {matchLabels: {tier: w}}"}, both},
		{"some pods", selectors{anyGPU, anyGPU + "podSelector: {matchLabels: {app: w}}"}, onlyB},
		{
			"values", selectors{
				"podSelector: {matchExpressions: [{key: app, operator: In, values: [x, w]}]}",
				"podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [x, w]}]}",
			}, none,
		},
		{
			"fewer values", selectors{
				"podSelector: {matchExpressions: [{key: app, operator: In, values: [x, w]}]}",
				"podSelector: {matchExpressions: [{key: app, operator: In, values: [w]}]}",
			}, onlyB,
		},
		{
			"there and not", selectors{
				"podSelector: {matchExpressions: [{key: app, operator: Exists}]}",
				"podSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}",
			}, none,
		},
		{
			"namespaces", selectors{
				anyGPU + "namespaceSelector: {matchLabels: {env: dev}}", anyGPU + "namespaceSelector: {matchLabels: {env: prod}}",
			}, none,
		},
		{"some namespaces", selectors{anyGPU, anyGPU + "namespaceSelector: {matchLabels: {env: prod}}"}, onlyB},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := filled(t, map[string]string{
				"a": test.a + "\nenv: [{name: A, value: x}]", "b": test.b + "\nenv: [{name: A, value: v}]",
			})
			got := map[[2]bool]string{{true, true}: both, {false, true}: onlyB, {true, false}: "told of at a only"}[[2]bool{
				len(x.said("a")) > 0, len(x.said("b")) > 0,
			}]
			if got == "" {
				got = none
			}
			if got != test.want {
				t.Errorf("told of: %s, want %s", got, test.want)
			}
		})
	}
}

// TestNamespaces: presets of a namespace are compared with each other and with those of the cluster that may be for it; an exception
// reports the conflict, not the rule.
func TestNamespaces(t *testing.T) {
	set := func(value string) string { return anyGPU + "env: [{name: A, value: " + value + "}]" }
	x := filled(t, map[string]string{
		"all": set("x"), "team-a/own": set("v"), "team-a/same": set("x"), "team-b/own": set("z"),
		"others": "namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [team-a]}]}\n" + set("w"),
		"labels": "namespaceSelector: {matchLabels: {env: dev}}\n" + set("x"),
	})
	for name, want := range map[string][]string{
		"all": nil,
		"team-a/own": {
			"loses to DevicePreset team-a/same: variable A",
			"wins over ClusterDevicePreset labels: variable A", "wins over ClusterDevicePreset all: variable A",
		},
		"team-a/same": {"wins over DevicePreset team-a/own: variable A"},
		"team-b/own": {
			"wins over ClusterDevicePreset others: variable A",
			"wins over ClusterDevicePreset labels: variable A", "wins over ClusterDevicePreset all: variable A",
		},
		"others": {"wins over ClusterDevicePreset labels: variable A", "wins over ClusterDevicePreset all: variable A"},
		"labels": {
			"loses to DevicePreset team-b/own: variable A", "loses to DevicePreset team-a/own: variable A",
			"loses to ClusterDevicePreset others: variable A",
		},
	} {
		if diff := cmp.Diff(want, x.said(name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestWhy(t *testing.T) {
	older, high, own := named(t, "older", anyGPU), named(t, "high", anyGPU+"priority: 7"), named(t, "team/own", anyGPU+"priority: -1")
	young := named(t, "a-young", anyGPU)
	young.Created = start.Add(time.Hour)
	zed := named(t, "zed", anyGPU)
	for _, test := range []struct {
		a, b preset.Preset
		want string
	}{
		{own, high, "presets of a namespace come after those of the cluster"},
		{high, young, "its priority is 7, the other's 0"},
		{young, older, "it is the younger at equal priority"},
		{zed, older, "its name is the later at equal priority and age"},
	} {
		if got, back := why(&test.a, &test.b), why(&test.b, &test.a); got != test.want || back != test.want {
			t.Errorf("%s over %s: %q and %q, want %q", test.a.Name, test.b.Name, got, back, test.want)
		}
	}
}

// TestSync: the index has added, changed and removed presets, and returns the others whose conflicts changed.
func TestSync(t *testing.T) {
	specs := map[string]string{}
	x, parsed := &Index{}, 0
	sync := func(generation map[string]int64) []types.NamespacedName {
		now := map[types.NamespacedName]Version{}
		for name, g := range generation {
			now[types.NamespacedName{Name: name}] = Version{UID: "u", Generation: g}
		}
		return x.Sync(t.Context(), now, func(key types.NamespacedName) preset.Preset {
			parsed++
			return named(t, key.Name, specs[key.Name])
		})
	}
	expect := func(what string, got []types.NamespacedName, wantParsed int, want ...string) {
		t.Helper()
		var names []string
		for _, key := range got {
			names = append(names, key.Name)
		}
		if diff := cmp.Diff(want, names); diff != "" || parsed != wantParsed {
			t.Errorf("%s: %d parsed, want %d; touched (-want +got):\n%s", what, parsed, wantParsed, diff)
		}
	}
	specs["a"], specs["b"] = anyGPU+"env: [{name: A, value: x}]", anyGPU+"env: [{name: B, value: x}]"
	expect("two", sync(map[string]int64{"a": 1, "b": 1}), 2)
	expect("nothing new", sync(map[string]int64{"a": 1, "b": 1}), 2)
	specs["c"] = anyGPU + "env: [{name: A, value: z}]"
	expect("another", sync(map[string]int64{"a": 1, "b": 1, "c": 1}), 3, "a")
	specs["c"] = anyGPU + "env: [{name: B, value: z}]"
	expect("changed", sync(map[string]int64{"a": 1, "b": 1, "c": 2}), 4, "a", "b")
	expect("gone", sync(map[string]int64{"a": 1, "b": 1}), 4, "b")
	specs["b"] = "deviceSelector: {cel: 'x ='}\nenv: [{name: A, value: z}]"
	expect("not valid any more", sync(map[string]int64{"a": 1, "b": 2}), 5)
	if got := x.Faults(types.NamespacedName{Name: "b"}); len(got) != 1 || got[0].Field != "spec.deviceSelector.cel" {
		t.Errorf("faults: %v", got)
	}
	if got := x.said("b"); got != nil {
		t.Errorf("what is refused collides: %q", got)
	}
	expect("all gone", sync(nil), 5)
	if len(x.entries)+len(x.deciders) > 0 {
		t.Errorf("left: %v %v", x.entries, x.deciders)
	}
}

// TestMany: with a thousand presets that all meet, and a thousand that decide the same settings for different pods, all are counted and no
// message grows.
func TestMany(t *testing.T) {
	const many = 1000
	for _, test := range []struct {
		name, selector string
		collide        int
	}{{"all collide", anyGPU, many - 1}, {"none does", "podSelector: {matchLabels: {app: x%d}}\n", 0}} {
		t.Run(test.name, func(t *testing.T) {
			specs := map[string]string{}
			for i := range many {
				spec := test.selector
				if strings.Contains(spec, "%d") {
					spec = fmt.Sprintf(spec, i)
				}
				specs[fmt.Sprintf("p%d", i)] = spec + fmt.Sprintf("env: [{name: A, value: x%d}, {name: B, value: x%[1]d}]", i)
			}
			began := time.Now()
			x := filled(t, specs)
			for i := 0; i < many; i += 10 { // each looks at all
				conflicts := x.Conflicts(types.NamespacedName{Name: fmt.Sprintf("p%d", i)})
				if conflicts.Count != test.collide {
					t.Fatalf("%d conflicts, want %d", conflicts.Count, test.collide)
				}
				if text := conflicts.String(); len(text) > message.ReadableCondition {
					t.Fatalf("%d bytes: %s", len(text), text)
				}
			}
			t.Logf("took %v", time.Since(began))
		})
	}
}

func TestDescribe(t *testing.T) {
	x := filled(t, map[string]string{
		"base": anyGPU + "priority: 5\nenv: [{name: A, value: x}, {name: B, value: x}]\nmounts: [{hostPath: /a, containerPath: /mnt}]",
		"site": anyGPU + "env: [{name: B, value: v}, {name: A, value: v}]",
	})
	want := "variable A, variable B: ClusterDevicePreset base says something else, and the other wins, since its priority is 5, the other's 0"
	if got := x.Conflicts(types.NamespacedName{Name: "site"}).String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	many := Conflicts{Count: maxConflicts + 2}
	for i := range maxConflicts {
		c := Conflict{With: preset.Origin{Name: fmt.Sprint(i)}, Why: "so"}
		for j := range maxSettings + 3 {
			c.Settings = append(c.Settings, fmt.Sprintf("tool %d", j))
		}
		many.Shown = append(many.Shown, c)
	}
	got := many.String()
	if !strings.Contains(got, "tool 3 and 3 more: ClusterDevicePreset 5") || !strings.HasSuffix(got, "; and 2 more presets") {
		t.Errorf("got %s", got)
	}
}

func TestRecord(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "roles"}, "x", errors.New("no"))
	o := Object{ConfigMapNamespace: "team"}
	fault := field.ErrorList{field.Required(field.NewPath("spec"), "x")}
	for _, test := range []struct {
		name               string
		found              Findings
		valid, conflicting string
		message            string
	}{
		{"well", Findings{Claims: 3, Nodes: 2}, "True Valid", "False NoConflict", "every field"},
		{"faulty", Findings{Faults: fault, Conflicts: Conflicts{Count: 1}}, "False Invalid", "Unknown NotValid", "spec: Required value: x"},
		{
			"namespace is not listed",
			Findings{NotGranted: Explain(o, fmt.Errorf("x: %w", forbidden))},
			"False ConfigMapsNotGranted",
			"False NoConflict", "namespace team, or not grant that to the nodes; an administrator adds it to presets.configMapNamespaces",
		},
		{
			"foreign Role",
			Findings{NotGranted: Explain(o, fmt.Errorf("Role x %w", grant.ErrForeign))},
			"False ConfigMapsNotGranted",
			"False NoConflict", "Role x is not of this object",
		},
		{
			"overlaps",
			Findings{Conflicts: Conflicts{Count: 1, Shown: []Conflict{{Settings: []string{"tool x"}}}}},
			"True Valid",
			"True Overlaps", "every field",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var status v1alpha1.DevicePresetStatus
			Record(&status, 4, test.found, start)
			text := func(kind string) string {
				c := meta.FindStatusCondition(status.Conditions, kind)
				if c.ObservedGeneration != 4 || !c.LastTransitionTime.Time.Equal(start) {
					t.Errorf("%s is of generation %d at %v", kind, c.ObservedGeneration, c.LastTransitionTime)
				}
				return string(c.Status) + " " + c.Reason
			}
			if got := text(v1alpha1.ConditionValid); got != test.valid {
				t.Errorf("Valid is %s, want %s", got, test.valid)
			}
			if got := text(v1alpha1.ConditionConflicting); got != test.conflicting {
				t.Errorf("Conflicting is %s, want %s", got, test.conflicting)
			}
			if got := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionValid).Message; !strings.Contains(got, test.message) {
				t.Errorf("message %q, want it to have %q", got, test.message)
			}
			if status.ObservedGeneration != 4 || *status.Claims != test.found.Claims || *status.Nodes != test.found.Nodes {
				t.Errorf("status %+v", status)
			}
			before := status.DeepCopy()
			Record(&status, 4, test.found, start.Add(time.Hour))
			if diff := cmp.Diff(before, &status); diff != "" {
				t.Errorf("the same an hour later (-before +after):\n%s", diff)
			}
		})
	}
	if err := Explain(o, errors.New("timeout")); NotGranted(err) {
		t.Error("trouble with the API server is taken for the object's")
	}
}

func TestCount(t *testing.T) {
	node := func(presets ...v1alpha1.NodePreset) v1alpha1.AcceleratorNode {
		return v1alpha1.AcceleratorNode{Status: v1alpha1.AcceleratorNodeStatus{Presets: presets}}
	}
	nodes := []v1alpha1.AcceleratorNode{
		node(), node(v1alpha1.NodePreset{Name: "a", Claims: 2}, v1alpha1.NodePreset{Namespace: "t", Name: "a", Claims: 5}),
		node(v1alpha1.NodePreset{Name: "a", Claims: 1}, v1alpha1.NodePreset{Name: "b", Claims: 9}),
	}
	for _, test := range []struct {
		namespace, name string
		claims, nodes   int32
	}{{"", "a", 3, 2}, {"t", "a", 5, 1}, {"", "b", 9, 1}, {"t", "b", 0, 0}} {
		if claims, on := Count(nodes, test.namespace, test.name); claims != test.claims || on != test.nodes {
			t.Errorf("%s/%s: %d claims on %d nodes, want %d on %d", test.namespace, test.name, claims, on, test.claims, test.nodes)
		}
	}
}

func TestGrant(t *testing.T) {
	p := cluster(t, "p", anyGPU+`
env:
- {name: A, valueFrom: {configMapKeyRef: {name: b, key: k}}}
- {name: B, value: x}
- {name: C, valueFrom: {configMapKeyRef: {name: a, key: k}}}
envFrom: [{configMapRef: {name: b}}, {configMapRef: {name: c}}]`)
	got := Of(p.Common(), "fettle-system").Grant()
	want := grant.Request{
		Owner: p, Kind: "ClusterDevicePreset", Resource: "configmaps", Namespace: "fettle-system", Names: []string{"a", "b", "c"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("grant (-want +got):\n%s", diff)
	}
	if got.Name() != "fettle.dev:clusterdevicepreset:p" {
		t.Errorf("name %s", got.Name())
	}
}

// TestMissing: a class is reported if its devices need something that no preset could give.
func TestMissing(t *testing.T) {
	class := func(name string, expressions ...string) resourceapi.DeviceClass {
		c := resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, e := range expressions {
			c.Spec.Selectors = append(c.Spec.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
		}
		return c
	}
	const attributes = `device.attributes["fettle.dev"]`
	classes := []resourceapi.DeviceClass{
		class("gpu.fettle.dev", `device.driver == "fettle.dev" && "type" in `+attributes+` && `+attributes+`.type == "gpu"`),
		class("fpga.fettle.dev", `device.driver == "fettle.dev"`, attributes+`.type == "fpga"`),
		class("mig.gpu.fettle.dev", `device.driver == "fettle.dev" && "type" in `+attributes+` && `+attributes+`.type == "mig"`),
		class("vfio.gpu.fettle.dev", `device.driver == "fettle.dev" && "type" in `+attributes+` && `+attributes+`.type == "vfio"`),
		class("h100", attributes+`.vendor == "nvidia" && `+attributes+`.productName == "H100"`),
		class("mi300", attributes+`.vendor == "amd"`),
		class("all"),
		class("foreign", `device.driver == "gpu.example"`),
		class("foreign-attributes", `device.attributes["gpu.example"].type == "gpu"`),
	}
	const libraries = "\nlibraries: [{names: [libcuda.so.1]}]"
	lacking := []string{"gpu.fettle.dev", "h100", "mig.gpu.fettle.dev"}
	for _, test := range []struct {
		name    string
		vendors string
		presets map[string]string
		want    []string
	}{
		{"none", "nvidia", nil, lacking},
		{"no such vendor", "amd", nil, nil},
		{"for all", "nvidia", map[string]string{"p": "deviceSelector: {cel: '" + attributes + `.vendor == "nvidia"'}` + libraries}, nil},
		{"for others", "nvidia", map[string]string{"p": "deviceSelector: {cel: '" + attributes + `.vendor == "amd"'}` + libraries}, lacking},
		{"for a class", "nvidia", map[string]string{"p": anyGPU + libraries}, []string{"h100", "mig.gpu.fettle.dev"}},
		{"for whole GPUs", "nvidia", map[string]string{"p": "deviceSelector: {cel: '" + attributes + `.type == "gpu"'}` + libraries}, []string{
			"h100", "mig.gpu.fettle.dev", // which may give instances
		}},
		{"by mounts, in a namespace", "nvidia", map[string]string{
			"team/p": "podSelector: {matchLabels: {a: b}}\nmounts: [{hostPath: /a, containerPath: /mnt}]",
		}, nil},
		{"without files", "nvidia", map[string]string{"p": anyGPU + "env: [{name: A, value: b}]"}, lacking},
		{"not valid", "nvidia", map[string]string{"p": "deviceSelector: {cel: 'x ='}" + libraries}, lacking},
		{"kept away", "nvidia", map[string]string{
			"p": "deviceSelector: {absent: {deviceClassNames: [h100], cel: '" + attributes + `.vendor == "amd"'}}` + libraries,
		}, []string{"h100"}},
		{"kept away by a condition", "nvidia", map[string]string{
			"p": "deviceSelector: {absent: {cel: '" + attributes + `.type == "gpu"'}}` + libraries,
		}, []string{"gpu.fettle.dev", "h100"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var all []preset.Preset
			for name, spec := range test.presets {
				all = append(all, named(t, name, spec))
			}
			lacks := Missing(t.Context(), classes, all, map[string]bool{test.vendors: true}, &preset.Conditions{})
			want := map[string][]Need{}
			for _, name := range test.want {
				want[name] = []Need{{Vendor: "nvidia", Needs: "the libraries of the node's driver"}}
			}
			if diff := cmp.Diff(want, lacks); diff != "" {
				t.Errorf("lacks (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLongSelectors: a tenant has presets whose selectors list as many values as a preset has room for, and more. Other presets wait while
// they are compared: each value with each takes minutes here.
func TestLongSelectors(t *testing.T) {
	values := func(from int) (all []string) {
		for i := range 60_000 {
			all = append(all, fmt.Sprintf("%06d", from+i))
		}
		return all
	}
	selects := func(operator metav1.LabelSelectorOperator, from int) labelRequirements {
		return labelsOf(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "app", Operator: operator, Values: values(from)}, {Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values(0)},
		}})
	}
	a, b, c := selects(metav1.LabelSelectorOpIn, 0), selects(metav1.LabelSelectorOpIn, 59_999), selects(metav1.LabelSelectorOpNotIn, 0)
	if !b.implies(a) || a.implies(b) || a.excludes(b) || !a.excludes(c) || !c.implies(a) {
		t.Errorf("implied %t, %t, %t; excluded %t, %t", b.implies(a), a.implies(b), c.implies(a), a.excludes(b), a.excludes(c))
	}
}
