// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

const (
	passes  = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","policy":{"allowPassthrough":true}}`
	passesA = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","policy":{"allowPassthrough":true,"allowedNamespaces":["team-a"]}}`
	passesB = `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","policy":{"allowPassthrough":true,"allowedNamespaces":["team-b"]}}`
)

// TestPassthrough: a VFIO device is for a claim whose class allows it, as it was recorded and as it is now. Nothing that the author of a
// claim or of an allocation can write allows it.
func TestPassthrough(t *testing.T) {
	vfio := func(configs ...apiConfig) *resourceapi.ResourceClaim {
		return allocated([]apiResult{result("vm", "gpu", "nvidia-0000-41-00-0-vfio")}, configs...)
	}
	for _, test := range []struct {
		name     string
		claim    *resourceapi.ResourceClaim
		live     []string // the class now
		noClass  bool     // only what was recorded is known
		prepared bool
		// want is in the error. Empty: it is allowed.
		want string
	}{
		{name: "a class without a policy", claim: vfio(), want: "DeviceClass did not allow"},
		{name: "another policy", claim: vfio(class(onlyA)), live: []string{onlyA}, want: "DeviceClass did not allow"},
		{name: "then and now", claim: vfio(class(passes)), live: []string{passes}},
		{name: "one entry of two", claim: vfio(class(onlyA), class(passes)), live: []string{onlyA, passes}},
		{name: "of two entries, one each time", claim: vfio(class(passes), class(onlyA)), live: []string{onlyA, passes}},
		{name: "not now", claim: vfio(class(passes)), live: []string{onlyA}, want: "DeviceClass did not allow"},
		{name: "not then", claim: vfio(class(onlyA)), live: []string{passes}, want: "delete the pod"},
		{name: "an allocation that nobody's class has", claim: vfio(class(passes)), want: "DeviceClass did not allow"},
		{name: "the claim's own", claim: vfio(own(passes)), live: []string{passes}, want: "only a DeviceClass may set a policy"},
		{name: "for another request", claim: vfio(class(passes, "other")), live: []string{passes}, want: "the claim's spec has no such request"},
		{name: "in its namespace", claim: vfio(class(passesA)), live: []string{passesA}},
		{name: "in another namespace", claim: vfio(class(passesB)), live: []string{passesB}, want: "does not allow namespace team-a"},
		{name: "prepared, the class is gone", claim: vfio(class(passes)), noClass: true, prepared: true},
		{name: "prepared, without", claim: vfio(), noClass: true, prepared: true, want: "DeviceClass did not allow"},
		{
			name:  "a look binds nothing",
			claim: allocated([]apiResult{look(result("vm", "gpu", "nvidia-0000-41-00-0-vfio"))}),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := Input{Claim: test.claim, Driver: driver, Node: node, Classes: liveClass(test.live...), Prepared: test.prepared}
			if test.noClass {
				in.Classes = map[string]*resourceapi.DeviceClass{}
			}
			got, err := Resolve(in)
			if err == nil {
				err = got.Results[0].CheckPassthrough(in.Claim)
			}
			if test.want == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			var refused *RefusedError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v, want %q", err, test.want)
			}
			if !strings.Contains(test.want, "DeviceClass did") {
				return
			}
			if refused.Reason != ReasonForbiddenByPolicy || refused.Claim != "team-a/work" ||
				refused.Faults[0].Field != "spec.devices.requests[0].exactly.deviceClassName" || refused.Faults[0].BadValue != "any" {
				t.Errorf("refused with %+v", refused)
			}
		})
	}
}

// TestPassthroughOfOthers: a device that is no GPU never is a VFIO device, whatever a caller asks.
func TestPassthroughOfOthers(t *testing.T) {
	got, err := Resolve(Input{
		Claim: allocated([]apiResult{result("disk", "host", "h0")}), Driver: driver, Node: node, Classes: liveClass(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := got.Results[0].CheckPassthrough(allocated([]apiResult{result("disk", "host", "h0")})); err == nil {
		t.Error("it is allowed")
	}
}
