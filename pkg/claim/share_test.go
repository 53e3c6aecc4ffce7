// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"strings"
	"testing"
)

// TestEffect: holders of one device agree where the same is done to it, wherever each has its configuration from and whoever may have
// the device.
func TestEffect(t *testing.T) {
	const (
		keepOnly = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","policy":{"onRelease":"Keep"}}`
		keepA    = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","mountPath":"/class",` +
			`"policy":{"onRelease":"Keep","allowedNamespaces":["team-a"]}}`
		atClass = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","mountPath":"/class"}`
	)
	disk := share(result("disk", "host", "h0"), "s")
	gpu := share(result("gpu", "gpu", "g0"), "s")
	// reference is that of a share with everything from one class.
	reference := effectOf(t, disk, class(keep))
	if reference == "" || reference == "unknown" {
		t.Fatalf("effect %q", reference)
	}
	for _, tc := range []struct {
		name    string
		result  apiResult
		configs []apiConfig
		same    bool
	}{
		{"again", disk, []apiConfig{class(keep)}, true},
		{"another share", share(disk, "t"), []apiConfig{class(keep)}, true},
		{"another request", share(result("other/sub", "host", "h0"), "s"), []apiConfig{class(keep)}, true},
		{"half of the class, half of the claim", disk, []apiConfig{class(keepOnly), own(atClass)}, true},
		{"of two classes", disk, []apiConfig{class(atClass), class(keepOnly, "disk")}, true},
		{"for one namespace", disk, []apiConfig{class(keepA)}, true},
		{"another path", disk, []apiConfig{class(keep), own(atData)}, false},
		{"no path", disk, []apiConfig{class(keepOnly)}, false},
		{"another kind", gpu, nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := effectOf(t, tc.result, tc.configs...); (got == reference) != tc.same || got == "" {
				t.Errorf("effect %q, want the same as %q: %v", got, reference, tc.same)
			}
		})
	}
	if a, b := effectOf(t, gpu), effectOf(t, gpu, own(exclusive)); a != b {
		t.Errorf("effect %q by default and %q as configured", a, b)
	}
}

// TestEffectStays: records that the release before wrote have these. So a field that is added to a configuration must not appear in its
// JSON as long as it has the value that means what was done before, or shares are refused beside those of the release before.
func TestEffectStays(t *testing.T) {
	gpu := share(result("gpu", "gpu", "g0"), "s")
	const config = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":`
	for want, got := range map[string]string{
		"9d50d203dbe0ba43cb54895bfd39e944": effectOf(t, share(result("disk", "host", "h0"), "s"), class(keep)),
		"a9fb37d3fd0f1342786db1a4610afefa": effectOf(t, gpu),
		"763e9b0857fac2c79f8b473d74c78ea7": effectOf(t, gpu, own(config+`{"strategy":"TimeSlicing","timeSlicing":{"interval":"Long"}}}`)),
	} {
		if got != want {
			t.Errorf("effect %s, want %s", got, want)
		}
	}
}

// TestEffectOfTheWhole: who has a device alone agrees with nobody.
func TestEffectOfTheWhole(t *testing.T) {
	for _, r := range []apiResult{result("disk", "host", "h0"), result("gpu", "gpu", "g0"), result("fpga", "fpga", "f0")} {
		if got := effectOf(t, r); got != "" {
			t.Errorf("%s: effect %q", r.Device, got)
		}
	}
}

// effectOf is the effect of the only result of a claim.
func effectOf(t *testing.T, r apiResult, configs ...apiConfig) string {
	t.Helper()
	got, err := Resolve(Input{Claim: allocated([]apiResult{r}, configs...), Driver: driver, Node: node})
	if err != nil {
		t.Fatal(err)
	}
	before := len(got.Results[0].Config.Sources)
	effect := got.Results[0].Effect()
	if len(got.Results[0].Config.Sources) != before {
		t.Error("the result was changed")
	}
	return effect
}

// TestShares: what is refused of shares is refused of them only.
func TestShares(t *testing.T) {
	a, b := share(result("a", "host", "h0"), "s"), share(result("b", "host", "h0"), "t")
	other := share(result("b", "host", "h1"), "t")
	for _, tc := range []struct {
		name  string
		claim []apiResult
		with  []apiConfig
		// want is in the refusal; empty: none.
		want string
	}{
		{"that agree", []apiResult{a, b}, []apiConfig{class(keep)}, ""},
		{"of two devices", []apiResult{a, other}, []apiConfig{class(keep), own(atData, "a")}, ""},
		{"and a look", []apiResult{a, look(result("b", "host", "h0"))}, []apiConfig{class(keep), own(atData, "b")}, ""},
		{"that is a look, of what is emptied", []apiResult{look(a)}, nil, ""},
		{"of GPUs", []apiResult{share(result("a", "gpu", "g0"), "s"), share(result("b", "gpu", "g0"), "t")}, nil, ""},
		{"that differ", []apiResult{a, b}, []apiConfig{class(keep), own(atData, "b")}, "request a has another share of it"},
		{"of what is emptied", []apiResult{a}, nil, "policy.onRelease is Keep"},
		{"of what one of two classes empties", []apiResult{a}, []apiConfig{class(keep), class(empty)}, "policy.onRelease is Keep"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Resolve(Input{Claim: allocated(tc.claim, tc.with...), Driver: driver, Node: node})
			refused, ok := errors.AsType[*RefusedError](err)
			if tc.want == "" && err != nil || tc.want != "" && (!ok || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if ok && refused.Reason != ReasonConfigInvalid {
				t.Errorf("reason %s", refused.Reason)
			}
		})
	}
}
