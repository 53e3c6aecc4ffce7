// SPDX-License-Identifier: Apache-2.0

package preset_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
)

// dice makes inputs of few names and values, so that much of it collides.
type dice struct{ *rand.Rand }

func (d dice) of(words ...string) string { return words[d.IntN(len(words))] }

func (d dice) input() preset.Input {
	claims := []preset.Claim{}
	for _, name := range []string{"a", "b", "c"}[:1+d.IntN(3)] {
		devices := []preset.Device{}
		for _, request := range []string{"r", "s"}[:1+d.IntN(2)] {
			devices = append(devices, device(request, d.of("x", "y", "z")))
		}
		claims = append(claims, claim(name, devices...))
	}
	containers := []corev1.Container{}
	for _, name := range []string{"main", "side", "third"}[:1+d.IntN(3)] {
		containers = append(containers, d.container(name, claims))
	}
	p := pod(containers...)
	if d.IntN(8) == 0 {
		p, claims = nil, []preset.Claim{shared(claims[0])}
	}
	presets := []preset.Preset{}
	for i := range 1 + d.IntN(6) {
		presets = append(presets, d.preset(fmt.Sprintf("p%d", i)))
	}
	return input(p, presets, claims...)
}

func (d dice) container(name string, claims []preset.Claim) corev1.Container {
	c := container(name)
	for _, owned := range claims {
		if use := owned.Name + d.of("", "/r", "/s"); d.IntN(3) > 0 {
			c.Resources.Claims = append(c.Resources.Claims, container("", use).Resources.Claims...)
		}
	}
	for range d.IntN(3) {
		c = with(c, d.of("A", "B")+"="+d.of("", "pod", "$(X)", "$$"))
	}
	if d.IntN(6) == 0 {
		c = envFrom(c, d.of("", "A", "B_"))
	}
	if d.IntN(4) == 0 {
		c = mountEntry(c, d.of("/p", "/q/", "/other"))
	}
	return c
}

func (d dice) preset(name string) preset.Preset {
	rules := v1alpha1.PresetRules{
		DeviceSelector: &v1alpha1.PresetDeviceSelector{DeviceClassNames: []string{d.of("x", "y", "z")}}, Priority: int32(d.IntN(2)),
	}
	for range d.IntN(4) {
		mode := v1alpha1.EnvMode(d.of("", "set", "default", "prepend", "append", "append"))
		if d.IntN(60) == 0 {
			mode = "nonsense"
		}
		rules.Env = append(rules.Env, v1alpha1.PresetEnv{Name: d.of("A", "B"), Mode: mode, Value: new(d.of("", "1", "2", name))})
	}
	for _, path := range []string{"/p", "/q"} {
		m := v1alpha1.PresetMount{ContainerPath: path, HostPath: d.of("/1", "/2")}
		if d.IntN(4) == 0 {
			m = v1alpha1.PresetMount{ContainerPath: path, Scratch: &v1alpha1.PresetScratch{SizeLimit: d.of("1Gi", "2Gi")}}
		}
		if d.IntN(2) == 0 {
			rules.Mounts = append(rules.Mounts, m)
		}
	}
	rules.Libraries = []v1alpha1.PresetFiles{{Names: []string{name}}}
	created := metav1.NewTime(birth().Add(time.Duration(d.IntN(2)) * time.Hour))
	if d.IntN(2) == 0 {
		p := v1alpha1.DevicePreset{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name, CreationTimestamp: created}}
		p.Spec.PresetRules = rules
		return preset.Of(p.Common())
	}
	p := v1alpha1.ClusterDevicePreset{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: created}}
	p.Spec.PresetRules = rules
	p.Spec.DeviceNodes = []v1alpha1.PresetDeviceNode{{Path: "/dev/" + d.of("1", "2"), ReadOnly: d.IntN(2) == 0}}
	return preset.Of(p.Common())
}

// TestProperties: whatever the presets and the pod, the order in which presets are read changes nothing, a container gets one value by all
// its requests, and what a preset gives is in the answer, or said to be overridden or refused.
func TestProperties(t *testing.T) {
	const cases = 4000
	var conditions preset.Conditions
	seen := map[string]int{}
	for seed := range uint64(cases) {
		d := dice{rand.New(rand.NewPCG(seed, 5))}
		in := d.input()
		got := preset.Resolve(t.Context(), in, &conditions)
		faults := append(disagreements(in, got), lost(in, got, seen)...)
		before := text(t, got)
		for range 3 {
			d.Shuffle(len(in.Presets), func(i, j int) { in.Presets[i], in.Presets[j] = in.Presets[j], in.Presets[i] })
			if after := text(t, preset.Resolve(t.Context(), in, &conditions)); after != before {
				faults = append(faults, "depends on the order of presets: "+after)
			}
		}
		if len(faults) > 0 {
			t.Fatalf("seed %d:\n%s\nanswer %s\ncontainers %s", seed, strings.Join(faults, "\n"), before, text(t, in.Pod))
		}
	}
	t.Logf("%d cases: %v", cases, seen)
	for _, what := range []string{"given", "overridden", "refused", "backed off"} {
		if seen[what] < cases/20 {
			t.Errorf("%s only %d times: the cases do not reach what they test", what, seen[what])
		}
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// used are what the requests of the claims that one container uses were given; for claims that pods share, all.
func used(in preset.Input, c *corev1.Container, r preset.Resolution) []preset.Request {
	return slices.DeleteFunc(slices.Clone(r.Requests), func(request preset.Request) bool {
		return c != nil && !slices.ContainsFunc(c.Resources.Claims, func(use corev1.ResourceClaim) bool {
			return use.Name == request.Claim && (use.Request == "" || use.Request == request.Request)
		})
	})
}

func disagreements(in preset.Input, r preset.Resolution) []string {
	var faults []string
	containers := []*corev1.Container{nil}
	if in.Pod != nil {
		containers = nil
		for i := range in.Pod.Spec.Containers {
			containers = append(containers, &in.Pod.Spec.Containers[i])
		}
	}
	for i, c := range containers {
		have := map[string]any{}
		see := func(what string, value any) {
			if first, ok := have[what]; ok && !reflect.DeepEqual(first, value) {
				faults = append(faults, fmt.Sprintf("container %d has %s as %+v and as %+v", i, what, first, value))
			}
			have[what] = value
		}
		for _, request := range used(in, c, r) {
			for _, v := range request.Env {
				see("variable "+v.Name, v.Value)
			}
			for _, m := range request.Mounts {
				if m.Scratch != nil {
					see("scratch "+m.ContainerPath, request.Claim)
				}
				see("mount "+m.ContainerPath, m.PresetMount)
			}
			for _, n := range request.Nodes {
				see("node "+n.Path, n.PresetDeviceNode)
			}
		}
	}
	return faults
}

// lost are the things of presets that are for a request and are not answered for.
func lost(in preset.Input, r preset.Resolution, seen map[string]int) []string {
	var faults []string
	for i := range in.Presets {
		p := &in.Presets[i]
		for _, c := range in.Claims {
			for _, d := range c.Devices {
				if d.Class != p.Rules.DeviceSelector.DeviceClassNames[0] {
					continue
				}
				a := answer{Resolution: r, from: p.Origin(), claim: c.Name, request: d.Request, seen: seen}
				faults = append(faults, a.lost(p)...)
			}
		}
	}
	return faults
}

// answer is what is said of one preset to one request.
type answer struct {
	preset.Resolution
	from           preset.Origin
	claim, request string
	seen           map[string]int
}

func (a answer) lost(p *preset.Preset) []string {
	var faults []string
	want := func(ok bool, format string, arguments ...any) {
		if !ok {
			faults = append(faults, fmt.Sprintf("%s at %s/%s: ", a.from, a.claim, a.request)+fmt.Sprintf(format, arguments...)+" is lost")
		}
	}
	i := slices.IndexFunc(a.Requests, func(r preset.Request) bool { return r.Claim == a.claim && r.Request == a.request })
	if slices.ContainsFunc(a.Refusals, func(r preset.Refusal) bool { return r.From == a.from && strings.Contains(r.Message, "not valid") }) {
		want(i < 0 || !slices.Contains(a.Requests[i].Presets, a.from), "the refusal")
		return faults
	}
	if i < 0 || !slices.Contains(a.Requests[i].Presets, a.from) {
		want(false, "the preset")
		return faults
	}
	got := a.Requests[i]
	for j, e := range p.Rules.Env {
		want(a.variable(got, e, fmt.Sprintf("spec.env[%d]", j)), "variable %d", j)
	}
	for j, m := range p.Rules.Mounts {
		given := slices.ContainsFunc(got.Mounts, func(o preset.Mount) bool { return reflect.DeepEqual(o.PresetMount, m) })
		want(given || a.overridden(m.ContainerPath) || a.refused(fmt.Sprintf("spec.mounts[%d]", j)), "mount %d", j)
	}
	for _, n := range p.DeviceNodes {
		want(slices.ContainsFunc(got.Nodes, func(o preset.Node) bool {
			return o.PresetDeviceNode == n || o.Path == n.Path && slices.Contains(o.Overrode, a.from)
		}), "node %s", n.Path)
	}
	want(slices.ContainsFunc(got.Libraries, func(f preset.Files) bool { return f.From == a.from }), "library")
	return faults
}

func (a answer) variable(got preset.Request, e v1alpha1.PresetEnv, field string) bool {
	for _, v := range got.Env {
		switch {
		case v.Name != e.Name:
		case slices.Contains(v.From, a.from):
			a.seen["given"]++
			return true
		case slices.Contains(v.Overrode, a.from):
			a.seen["overridden"]++
			return true
		}
	}
	if a.refused(field) {
		a.seen["refused"]++
		return true
	}
	a.seen["backed off"]++
	return e.Mode == v1alpha1.EnvDefault
}

func (a answer) overridden(path string) bool {
	return slices.ContainsFunc(a.Requests, func(r preset.Request) bool {
		return slices.ContainsFunc(r.Mounts, func(m preset.Mount) bool {
			return m.ContainerPath == path && slices.Contains(m.Overrode, a.from)
		})
	})
}

func (a answer) refused(field string) bool {
	return slices.ContainsFunc(a.Refusals, func(r preset.Refusal) bool {
		return r.From == a.from && r.Claim == a.claim && r.Request == a.request && r.Field == field
	})
}
