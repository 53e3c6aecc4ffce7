// SPDX-License-Identifier: Apache-2.0

package preset_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/fettle-dev/fettle/pkg/preset"
)

// valueFrom gives a container a variable that only kubelet knows.
func valueFrom(c corev1.Container, name string) corev1.Container {
	c.Env = append(c.Env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "x"}}})
	return c
}

// envFrom gives a container all of a ConfigMap.
func envFrom(c corev1.Container, prefix string) corev1.Container {
	c.EnvFrom = append(c.EnvFrom, corev1.EnvFromSource{
		Prefix: prefix, ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "m"}},
	})
	return c
}

// values are a variable's, as CLAIM/REQUEST=VALUE, with what it has or hides of the pod's.
func values(r preset.Resolution, name string) []string {
	out := []string{}
	for _, request := range r.Requests {
		for _, v := range request.Env {
			if v.Name != name {
				continue
			}
			line := request.Claim + "/" + request.Request + "=" + v.Value
			if v.FromPod {
				line += " with the pod's"
			}
			if v.OverrodePod {
				line += " over the pod's"
			}
			out = append(out, line)
		}
	}
	return out
}

// TestEnvModes is the table of modes and of who else sets the variable.
func TestEnvModes(t *testing.T) {
	const (
		elsewhere = "A: container main sets it from elsewhere, so nothing can be joined to it"
		refers    = "A: container main sets it by way of other variables, so nothing"
		maybe     = "A: container main may have it from its envFrom, so nothing"
		disagree  = "A: containers main and side, which share the request, set it differently, so nothing"
		notOne    = "A: mode default depends on the pod"
		unset     = "<none>"
	)
	main := container("main", "a")
	side := container("side", "a")
	for _, test := range []struct {
		name   string
		pod    *corev1.Pod // nil: pods share the claim
		before string      // of another preset
		// What mode set, default, prepend and append of x become, and why prepend and append are refused.
		set, byDefault, prepend, join string
		refused, refusedDefault       string
	}{
		{name: "nobody", pod: pod(main), set: "x", byDefault: "x", prepend: "x", join: "x"},
		{
			name: "pod", pod: pod(with(main, "B=other", "A=pod")),
			set: "x over the pod's", byDefault: unset, prepend: "x:pod with the pod's", join: "pod:x with the pod's",
		},
		{
			name: "pod, to the same",
			pod:  pod(with(main, "A=x")), set: "x", byDefault: unset, prepend: "x:x with the pod's", join: "x:x with the pod's",
		},
		{
			name: "pod, to nothing", pod: pod(with(main, "A=")),
			set: "x over the pod's", byDefault: unset, prepend: "x with the pod's", join: "x with the pod's",
		},
		{
			name: "pod, twice", pod: pod(with(main, "A=first", "A=last")),
			set: "x over the pod's", byDefault: unset, prepend: "x:last with the pod's", join: "last:x with the pod's",
		},
		{
			name: "pod, with dollars", pod: pod(with(main, "A=$$a$b$")),
			set: "x over the pod's", byDefault: unset, prepend: "x:$a$b$ with the pod's", join: "$a$b$:x with the pod's",
		},
		{
			name: "pod, with what only looks like a reference", pod: pod(with(main, "A=$$(B)")),
			set: "x over the pod's", byDefault: unset, prepend: "x:$(B) with the pod's", join: "$(B):x with the pod's",
		},
		{
			name: "pod, by reference", pod: pod(with(main, "A=$(B)")),
			set: "x over the pod's", byDefault: unset, prepend: unset, join: unset, refused: refers,
		},
		{
			name: "pod, from elsewhere", pod: pod(valueFrom(main, "A")),
			set: "x over the pod's", byDefault: unset, prepend: unset, join: unset, refused: elsewhere,
		},
		{
			name: "pod, all of a ConfigMap", pod: pod(envFrom(main, "")),
			set: "x over the pod's", byDefault: unset, prepend: unset, join: unset, refused: maybe,
		},
		{name: "pod, all of a ConfigMap with another prefix", pod: pod(envFrom(main, "B")), set: "x", byDefault: "x", prepend: "x", join: "x"},
		{
			name: "pod, all of a ConfigMap with the whole name as prefix",
			pod:  pod(envFrom(main, "A")), set: "x", byDefault: "x", prepend: "x", join: "x",
		},
		{
			name: "pod, itself and from a ConfigMap", pod: pod(with(envFrom(main, ""), "A=pod")),
			set: "x over the pod's", byDefault: unset, prepend: "x:pod with the pod's", join: "pod:x with the pod's",
		},
		{
			name: "both containers, the same", pod: pod(with(main, "A=pod"), with(side, "A=pod")),
			set: "x over the pod's", byDefault: unset, prepend: "x:pod with the pod's", join: "pod:x with the pod's",
		},
		{
			name: "both containers, differently", pod: pod(with(main, "A=pod"), with(side, "A=other")),
			set: "x over the pod's", byDefault: unset, prepend: unset, join: unset, refused: disagree,
		},
		{
			name: "one of two containers", pod: pod(main, with(side, "A=pod")),
			set: "x over the pod's", byDefault: unset, prepend: unset, join: unset, refused: disagree,
		},
		{
			name: "a container that does not use it", pod: pod(main, with(container("side"), "A=pod")),
			set: "x", byDefault: "x", prepend: "x", join: "x",
		},
		{name: "another preset", pod: pod(main), before: "value: p", set: "x", byDefault: "p", prepend: "x:p", join: "p:x"},
		{
			name: "another preset's default", pod: pod(main), before: "value: p, mode: default",
			set: "x", byDefault: "p", prepend: "x:p", join: "p:x",
		},
		{
			name: "another preset and the pod", pod: pod(with(main, "A=pod")), before: "value: p",
			set: "x over the pod's", byDefault: "p over the pod's", prepend: "x:p over the pod's", join: "p:x over the pod's",
		},
		{
			name: "another preset joined to the pod's", pod: pod(with(main, "A=pod")), before: "value: p, mode: append",
			set: "x over the pod's", byDefault: "pod:p with the pod's", prepend: "x:pod:p with the pod's", join: "pod:p:x with the pod's",
		},
		{
			name: "another preset, where the pod's is not known", pod: pod(valueFrom(main, "A")), before: "value: p",
			set: "x over the pod's", byDefault: "p over the pod's", prepend: "x:p over the pod's", join: "p:x over the pod's",
		},
		{name: "shared", set: "x", byDefault: unset, prepend: "x", join: "x", refusedDefault: notOne},
		{name: "shared, and another preset", before: "value: p", set: "x", byDefault: "p", prepend: "x:p", join: "p:x", refusedDefault: notOne},
	} {
		for mode, want := range map[string]string{"set": test.set, "default": test.byDefault, "prepend": test.prepend, "append": test.join} {
			t.Run(test.name+"/"+mode, func(t *testing.T) {
				specs := []string{forGPU, forGPU + "env: [{name: A, value: x, mode: " + mode + "}]"}
				if test.before != "" {
					specs[0] += "env: [{name: A, " + test.before + "}]"
				}
				one := claim("a", device("gpu", gpu))
				one.Owned = test.pod != nil
				got := resolve(t, input(test.pod, ownInOrder(t, specs...), one))
				wants := []string{"a/gpu=" + want}
				if want == unset {
					wants = nil
				}
				if diff := cmp.Diff(strings.Join(wants, ""), strings.Join(values(got, "A"), " ")); diff != "" {
					t.Errorf("value (-want +got):\n%s", diff)
				}
				var refused []string
				if strings.HasSuffix(mode, "pend") && test.refused != "" {
					refused = append(refused, "p2 a/gpu spec.env[0]: "+test.refused)
				}
				if mode == "default" && test.refusedDefault != "" {
					refused = append(refused, "p2 a/gpu spec.env[0]: "+test.refusedDefault)
				}
				wantLines(t, "refusals", told(got.Refusals), refused...)
				var noted []string
				if mode == "default" && test.refusedDefault == "" && want != "x" {
					noted = append(noted, "p2 a/gpu spec.env[0]: A: ")
				}
				wantLines(t, "notes", told(got.Notes), noted...)
			})
		}
	}
}

// TestEnvOfTwoClaims gives presets to one claim each, and looks at both.
func TestEnvOfTwoClaims(t *testing.T) {
	const forFPGA = "deviceSelector: {deviceClassNames: [fpga.fettle.dev]}\n"
	both := container("main", "a", "b")
	for _, test := range []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{name: "one container", pod: pod(both), want: []string{"a/gpu=x:z", "b/card=x:z"}},
		{
			name: "one container that sets it",
			pod:  pod(with(both, "A=pod")), want: []string{"a/gpu=pod:x:z with the pod's", "b/card=pod:x:z with the pod's"},
		},
		{name: "a container each", pod: pod(container("main", "a"), container("side", "b")), want: []string{"a/gpu=x", "b/card=z"}},
		{
			name: "a container each that sets it", pod: pod(with(container("main", "a"), "A=1"), with(container("side", "b"), "A=2")),
			want: []string{"a/gpu=1:x with the pod's", "b/card=2:z with the pod's"},
		},
		{name: "joined by a third", pod: pod(container("main", "a"), container("side", "b"), both), want: []string{"a/gpu=x:z", "b/card=x:z"}},
		{
			name: "one of them used by another too, which sets it", pod: pod(both, with(container("side", "b"), "A=2")),
			want: []string{"a/gpu=x:z"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := resolve(t, input(test.pod, ownInOrder(t, forGPU+"env: [{name: A, value: x, mode: append}]",
				forFPGA+"env: [{name: A, value: z, mode: append}]"), claim("a", device("gpu", gpu)), claim("b", device("card", fpga))))
			if diff := cmp.Diff(test.want, values(got, "A")); diff != "" {
				t.Errorf("values (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDefaultsOfTwoClaims: the first default counts for all that containers use together, so also for a container that has only the request
// for which the second was meant.
func TestDefaultsOfTwoClaims(t *testing.T) {
	const forFPGA = "deviceSelector: {deviceClassNames: [fpga.fettle.dev]}\n"
	both, one := container("main", "a", "b"), container("side", "b")
	for _, test := range []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{name: "nobody sets it", pod: pod(both, one), want: []string{"a/gpu=x", "b/card=x"}},
		{name: "the one sets it", pod: pod(both, with(one, "A=2")), want: []string{"a/gpu=x"}},
		{name: "the other sets it", pod: pod(with(both, "A=1"), one), want: []string{}},
		{name: "a container each", pod: pod(container("main", "a"), one), want: []string{"a/gpu=x", "b/card=z"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := resolve(t, input(test.pod, ownInOrder(t, forGPU+"env: [{name: A, value: x, mode: default}]",
				forFPGA+"env: [{name: A, value: z, mode: default}]"), claim("a", device("gpu", gpu)), claim("b", device("card", fpga))))
			if diff := cmp.Diff(test.want, values(got, "A")); diff != "" {
				t.Errorf("values (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSearchPaths wants directories beside each other, never a variable.
func TestSearchPaths(t *testing.T) {
	got := resolve(t, input(pod(with(container("main", "a"), "PATH=/bin")), ownInOrder(t,
		forGPU+"env: [{name: LD_LIBRARY_PATH, value: '/a:/b', mode: append}, {name: PATH, value: /opt/bin, mode: append}]",
		forGPU+"env: [{name: LD_LIBRARY_PATH, value: '/c:/a', mode: append}]"), claim("a", device("gpu", gpu))))
	one, two := preset.Origin{Namespace: team, Name: "p1"}, preset.Origin{Namespace: team, Name: "p2"}
	want := []preset.Request{{
		Claim: "a", Request: "gpu", Presets: []preset.Origin{one, two},
		LibraryDirs: []preset.Directory{{Path: "/a", From: one}, {Path: "/b", From: one}, {Path: "/c", From: two}},
		ToolDirs:    []preset.Directory{{Path: "/opt/bin", From: one}},
	}}
	if diff := cmp.Diff(preset.Resolution{Requests: want}, got); diff != "" {
		t.Errorf("resolution (-want +got):\n%s", diff)
	}
}

func TestConfigMaps(t *testing.T) {
	maps := map[string]map[string]string{
		team + "/m":          {"A": "1", "b": "2", "no-name": "3", "PATH": "/x", "NUL": "\x00", "LONG": strings.Repeat("x", 5000)},
		"fettle-system/m":    {"A": "driver's"},
		team + "/fine":       {"A": "1", "B": "2"},
		team + "/reserved":   {"FETTLE_X": "1", "LD_AUDIT": "/x.so"},
		team + "/halves":     {"VISIBLE_DEVICES": "all"},
		team + "/sub/folder": {},
	}
	for _, test := range []struct {
		name             string
		preset           preset.Preset
		want             []string // NAME=VALUE
		refused, missing []string
	}{
		{name: "key", preset: own(t, "p", forGPU+"env: [{name: A, valueFrom: {configMapKeyRef: {name: m, key: b}}}]"), want: []string{"A=2"}},
		{
			name:   "of the driver's namespace",
			preset: ofCluster(t, "p", forGPU+"env: [{name: A, valueFrom: {configMapKeyRef: {name: m, key: A}}}]"), want: []string{"A=driver's"},
		},
		{
			name:    "no ConfigMap",
			preset:  own(t, "p", forGPU+"env: [{name: A, valueFrom: {configMapKeyRef: {name: x, key: b}}}, {name: B, value: c}]"),
			want:    []string{"B=c"},
			missing: []string{"p a spec.env[0].valueFrom.configMapKeyRef: there is no ConfigMap team/x", "p b spec.env[0]"},
		},
		{
			name: "no key", preset: own(t, "p", forGPU+"env: [{name: A, valueFrom: {configMapKeyRef: {name: m, key: x}}}]"),
			missing: []string{"p a spec.env[0].valueFrom.configMapKeyRef.key: ConfigMap m has no key x", "p b spec.env[0]"},
		},
		{name: "optional key", preset: own(t, "p", forGPU+"env: [{name: A, valueFrom: {configMapKeyRef: {name: m, key: x, optional: true}}}]")},
		{
			name:   "optional ConfigMap",
			preset: own(t, "p", forGPU+"env: [{name: A, valueFrom: {configMapKeyRef: {name: x, key: x, optional: true}}}]"),
		},
		{
			name: "bad value", preset: own(t, "p", forGPU+"env: [{name: A, valueFrom: {configMapKeyRef: {name: m, key: NUL}}}]"),
			refused: []string{"p a spec.env[0]: key NUL of ConfigMap m: value: Invalid value", "p b spec.env[0]"},
		},
		{name: "all keys", preset: own(t, "p", forGPU+"envFrom: [{configMapRef: {name: fine}}]"), want: []string{"A=1", "B=2"}},
		{
			name:   "all keys with a prefix",
			preset: own(t, "p", forGPU+"envFrom: [{configMapRef: {name: fine}, prefix: X_}]"), want: []string{"X_A=1", "X_B=2"},
		},
		{
			name: "env comes after", preset: own(t, "p", forGPU+"envFrom: [{configMapRef: {name: fine}}]\nenv: [{name: A, value: own}]"),
			want: []string{"A=own", "B=2"},
		},
		{
			name: "all keys, some bad", preset: own(t, "p", forGPU+"envFrom: [{configMapRef: {name: m}}]"), want: []string{"A=1", "b=2"},
			refused: []string{
				"p a spec.envFrom[0]: key LONG of the ConfigMap: value: Too long", "p b spec",
				"p a spec.envFrom[0]: key NUL of the ConfigMap: value: ", "p b spec",
				"p a spec.envFrom[0]: key PATH of the ConfigMap: ", "p b spec",
				"p a spec.envFrom[0]: key no-name of the ConfigMap: name: ", "p b spec",
			},
		},
		{
			name: "all keys of none", preset: own(t, "p", forGPU+"envFrom: [{configMapRef: {name: x}}]"),
			missing: []string{"p a spec.envFrom[0].configMapRef: there is no ConfigMap team/x", "p b spec"},
		},
		{
			name:   "keys with reserved names",
			preset: own(t, "p", forGPU+"envFrom: [{configMapRef: {name: reserved}}, {configMapRef: {name: halves}, prefix: NVIDIA_}]"),
			refused: []string{
				"p a spec.envFrom[0]: key FETTLE_X of the ConfigMap: name: Forbidden", "p b spec",
				"p a spec.envFrom[0]: key LD_AUDIT of the ConfigMap: name: Forbidden", "p b spec",
				"p a spec.envFrom[1]: key VISIBLE_DEVICES of the ConfigMap: name: Forbidden", "p b spec",
			},
		},
		{
			name:    "a preset that was stored before names were reserved",
			preset:  own(t, "p", forGPU+"env: [{name: LD_PRELOAD, value: /x.so}]"),
			refused: []string{"p a spec.env[0].name: the preset is not valid: spec.env[0].name: Forbidden: LD_PRELOAD", "p b spec"},
		},
		{name: "all keys of none, optional", preset: own(t, "p", forGPU+"envFrom: [{configMapRef: {name: x, optional: true}}]")},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := input(pod(container("main", "a", "b")),
				[]preset.Preset{test.preset}, claim("a", device("gpu", gpu)), claim("b", device("gpu", gpu)))
			in.ConfigMap = func(namespace, name string) (map[string]string, bool) {
				data, ok := maps[namespace+"/"+name]
				return data, ok
			}
			got := resolve(t, in)
			for _, request := range got.Requests {
				have := []string(nil)
				for _, v := range request.Env {
					have = append(have, v.Name+"="+v.Value)
				}
				if diff := cmp.Diff(test.want, have); diff != "" {
					t.Errorf("%s (-want +got):\n%s", request.Claim, diff)
				}
			}
			wantLines(t, "refusals", told(got.Refusals), test.refused...)
			wantLines(t, "missing", told(got.Missing), test.missing...)
		})
	}
}
