// SPDX-License-Identifier: Apache-2.0

package preset_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// variablesOf is the env of a preset with so many variables of the same value.
func variablesOf(n int, value, more string) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("{name: V%d, value: %q%s}", i, value, more))
	}
	return "env: [" + strings.Join(all, ", ") + "]\n"
}

// TestMuchForOneClaim: a tenant makes the most of what single presets may have, for one pod. What a claim is given stays small, or the
// claim waits and is told why, once.
func TestMuchForOneClaim(t *testing.T) {
	many := func(n int, spec func(i int) string) (all []preset.Preset) {
		for i := range n {
			all = append(all, own(t, fmt.Sprintf("p%03d", i), spec(i)))
		}
		return all
	}
	same := func(spec string) func(int) string { return func(int) string { return forAll + spec } }
	var requests []preset.Device
	for i := range 30 {
		requests = append(requests, device(fmt.Sprintf("r%02d", i), fmt.Sprintf("class%d", i)))
	}
	long := strings.Repeat("p", 253)
	tests := []struct {
		name string
		in   preset.Input
		want string
	}{
		{
			name: "100 presets of 64 variables", in: simple(many(100, same(variablesOf(64, strings.Repeat("v", 1000), "")))...),
			want: "p001 a spec: gives ",
		},
		{name: "two presets that fit", in: simple(many(2, same(variablesOf(64, strings.Repeat("v", 900), "")))...)},
		{
			name: "one preset for many requests", want: "p000 a spec: gives ",
			in: input(pod(container("main", "a")), many(1, same(variablesOf(64, strings.Repeat("v", 1000), ""))), claim("a", requests...)),
		},
		{
			name: "values that are joined for each of many requests", want: "p029 a/r01 spec.env: with variable V0 all values",
			in: input(pod(container("main", "a")), many(30, func(i int) string {
				return fmt.Sprintf("deviceSelector: {deviceClassNames: [class%d]}\n", i) + variablesOf(1, strings.Repeat("v", 4000), ", mode: append")
			}), claim("a", requests...)),
		},
		{
			name: "origins of many overridden variables", want: " a spec: gives ",
			in: simple(func() (all []preset.Preset) {
				for i := range 200 {
					all = append(all, own(t, fmt.Sprintf("%s%d", long[:250], 100+i), forAll+variablesOf(64, fmt.Sprint(i), "")))
				}
				return all
			}()...),
		},
		{
			name: "a ConfigMap of a megabyte", want: "p000 a spec.envFrom[0]: gives ",
			in: func() preset.Input {
				in := simple(many(1, same("envFrom: [{configMapRef: {name: m}}]"))...)
				in.ConfigMap = func(_, _ string) (map[string]string, bool) {
					data := map[string]string{}
					for i := range 300 {
						data[fmt.Sprintf("K%d", i)] = strings.Repeat("k", 4000)
					}
					return data, true
				}
				return in
			}(),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := resolve(t, tt.in)
			missing := told(r.Missing)
			if tt.want == "" && len(missing) > 0 || tt.want != "" && (len(missing) != 1 || !strings.Contains(missing[0], tt.want)) {
				t.Errorf("missing: %q, want %q", missing, tt.want)
			}
			wantSmall(t, r)
		})
	}
}

// TestCostlyConditions: a tenant has many presets whose conditions take as long as they can, and a claim with many devices. To find out
// which are for the claim costs a bounded time, and the claim waits and is told why. Conditions like those of people keep no claim waiting.
func TestCostlyConditions(t *testing.T) {
	nested := func(depth int) string {
		condition := "a0 > 99"
		for i := range depth {
			condition = fmt.Sprintf("[0,1,2,3,4,5,6,7,8,9].exists(a%d, %s)", i, condition)
		}
		return "!" + condition
	}
	plain := `device.attributes["fettle.dev"].?vendor.orValue("nvidia") == "nvidia"`
	presets := func(n int, condition string) (all []preset.Preset) {
		for i := range n {
			all = append(all, own(t, fmt.Sprintf("p%03d", i),
				fmt.Sprintf("deviceSelector: {cel: %q, absent: {cel: %q}}\n", condition, "!("+condition+")")))
		}
		return all
	}
	var devices []preset.Device
	for i := range 32 {
		devices = append(devices, device(fmt.Sprintf("r%02d", i), "gpu"))
	}
	for _, tt := range []struct {
		name              string
		presets           []preset.Preset
		missing, refusals string
	}{
		{"one that costs too much by itself", presets(1, nested(5)), "", "cost limit exceeded"},
		{"many that cost too much by themselves", presets(256, nested(5)), "cost more than", "cost limit exceeded"},
		{"many that cost too much together", presets(256, nested(2)), "cost more than", ""},
		{"many like people's", presets(256, plain), "", ""},
	} {
		r := resolve(t, input(pod(container("main", "a")), tt.presets, claim("a", devices...)))
		missing, refusals := told(r.Missing), told(r.Refusals)
		if len(missing) > 1 || strings.Contains(strings.Join(missing, ""), "cost more than") != (tt.missing != "") {
			t.Errorf("%s: missing: %.300q, want %q", tt.name, missing, tt.missing)
		}
		if strings.Contains(strings.Join(refusals, ""), "cost limit exceeded") != (tt.refusals != "") {
			t.Errorf("%s: refusals: %.300q, want %q", tt.name, refusals, tt.refusals)
		}
	}
}

// wantSmall wants that a resolution takes no more than is allowed, as it is recorded.
func wantSmall(t *testing.T, r preset.Resolution) {
	t.Helper()
	text, err := json.Marshal(r.Requests)
	check.Must(t, err)
	if limit := 3 * v1alpha1.MaxClaimPresets; len(text) > limit {
		t.Errorf("the requests take %d bytes, more than %d: %.300s", len(text), limit, text)
	}
}

// TestSizesAtRandom: whatever presets a tenant makes, a pod's claims wait, or what they are given is small. No claim is given less than
// presets say without being told.
func TestSizesAtRandom(t *testing.T) {
	random := seed.New(t)
	for range 40 {
		var presets []preset.Preset
		for i := range random.IntN(30) {
			spec := []string{forAll, forGPU}[random.IntN(2)]
			mode := []string{"", ", mode: append", ", mode: default"}[random.IntN(3)]
			spec += variablesOf(random.IntN(64), strings.Repeat("v", random.IntN(1000)), mode)
			presets = append(presets, own(t, strings.Repeat("p", 1+random.IntN(200))+fmt.Sprint(i), spec))
		}
		var devices []preset.Device
		for i := range 1 + random.IntN(8) {
			devices = append(devices, device(fmt.Sprint("r", i), []string{gpu, fpga}[random.IntN(2)]))
		}
		in := input(pod(container("main", "a", "b")), presets, claim("a", devices...), claim("b", devices...))
		r := resolve(t, in)
		wantSmall(t, r)
		for _, request := range r.Requests {
			waits := slices.ContainsFunc(r.Missing, func(m preset.Refusal) bool { return m.Claim == request.Claim })
			for _, p := range presets {
				selects := p.Rules.DeviceSelector.CEL != "" || slices.ContainsFunc(devices, func(d preset.Device) bool {
					return d.Request == request.Request && d.Class == gpu
				})
				if selects && !waits && !slices.ContainsFunc(request.Presets, func(o preset.Origin) bool { return o.Name == p.Name }) {
					t.Fatalf("%s/%s has nothing of %s, and is not told", request.Claim, request.Request, p.Name)
				}
			}
		}
	}
}
