// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/objects"
)

// liveClass is the class of all requests of these tests, with these configurations of the driver and one of another.
func liveClass(contents ...string) map[string]*resourceapi.DeviceClass {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "any"}}
	add := func(driver, content string) {
		class.Spec.Config = append(class.Spec.Config, resourceapi.DeviceClassConfiguration{
			DeviceConfiguration: objects.Opaque(driver, content),
		})
	}
	for _, content := range contents {
		add(driver, content)
	}
	add("gpu.example.com", `not even JSON`)
	return map[string]*resourceapi.DeviceClass{"any": class}
}

// TestStricterOfBoth: what the allocation recorded and what the class says now must both allow what the claim gets.
func TestStricterOfBoth(t *testing.T) {
	gpu := func(configs ...apiConfig) *resourceapi.ResourceClaim {
		return allocated([]apiResult{result("main", "gpu", "g0")}, configs...)
	}
	bitstream := &Bitstream{Kind: v1alpha1.KindFPGABitstream, Namespace: "team-a", Name: "nlb0"}
	for _, tc := range []struct {
		name           string
		claim          *resourceapi.ResourceClaim
		recorded, live string
		// want is in the error. Empty: the claim gets what it asks for.
		want string
	}{
		{"namespaces, both", gpu(), onlyA, onlyA, ""},
		{"namespaces, not now", gpu(), onlyA, onlyB, "DeviceClass[any].spec.config[0].opaque.parameters.policy.allowedNamespaces"},
		{"namespaces, not then", gpu(), onlyB, onlyA, "status.allocation.devices.config[0].opaque.parameters.policy.allowedNamespaces"},
		{"namespaces, a list now", gpu(), "", onlyB, "does not allow namespace team-a"},
		{"namespaces, no list now", gpu(), onlyB, "", "does not allow namespace team-a"},
		{"a class that cannot be read", gpu(), "", `{"kind":"Other"}`, "DeviceClass[any].spec.config[0].opaque.parameters"},
		{"parameter, both", aRegion(own(fpga(`"driverParams":{"ltr":true}`))), params("ltr"), params("ltr"), ""},
		{"parameter, not now", aRegion(own(fpga(`"driverParams":{"ltr":true}`))), params("ltr"), params("debug"), "does not list it"},
		{"parameter, none now", aRegion(own(fpga(`"driverParams":{"ltr":true}`))), params("ltr"), "", "allows driver parameters"},
		{"keep, both", aRegion(own(fpga(`"onRelease":"Keep"`))), policy(`"allowKeep":true`), policy(`"allowKeep":true`), ""},
		{"keep, not now", aRegion(own(fpga(`"onRelease":"Keep"`))), policy(`"allowKeep":true`), "", "has policy.allowKeep"},
		{"timeout, not now", aRegion(own(fpga(`"timeout":"5m"`))), "", policy(`"maxTimeout":"1m"`), "at most 1m0s, says DeviceClass[any]"},
		{"bitstream, both", aRegion(own(fpga(`"bitstream":{"name":"nlb0"}`))), bits("team-a/*"), bits("team-a/nlb0"), ""},
		{"bitstream, not now", aRegion(own(fpga(`"bitstream":{"name":"nlb0"}`))), bits("team-a/*"), bits("team-a/other"), "is in neither"},
		{"bitstream, none now", aRegion(own(fpga(`"bitstream":{"name":"nlb0"}`))), bits("team-a/*"), "", "allows any bitstream"},
		{"bitstream, none then", aRegion(own(fpga(`"bitstream":{"name":"nlb0"}`))), "", bits("team-a/*"), "allows any bitstream"},
		{
			"signature, now", aRegion(own(fpga(`"bitstream":{"name":"nlb0"}`))), bits("team-a/*"),
			policy(`"allowedBitstreams":["team-a/*"],"requireSignature":true`), "asks for a signature",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := tc.claim.DeepCopy()
			if tc.recorded != "" {
				d := &c.Status.Allocation.Devices
				d.Config = slices.Insert(d.Config, 0, class(tc.recorded))
			}
			in := Input{Claim: c, Driver: driver, Node: node, Classes: liveClass()}
			if tc.live != "" {
				in.Classes = liveClass(tc.live)
			}
			got, err := Resolve(in)
			if err == nil && got.Results[0].Config.FPGA != nil && got.Results[0].Config.FPGA.Bitstream != nil {
				err = got.Results[0].Allows("team-a", bitstream).ToAggregate()
			}
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func params(name string) string  { return policy(`"allowedDriverParams":[{"name":"` + name + `"}]`) }
func bits(pattern string) string { return policy(`"allowedBitstreams":["` + pattern + `"]`) }

// TestStricterValue: where a policy chooses a value instead of refusing one, the stricter one is chosen.
func TestStricterValue(t *testing.T) {
	for _, tc := range []struct{ recorded, live, want v1alpha1.OnRelease }{
		{"Keep", "Keep", "Keep"}, {"Keep", "Empty", "Empty"}, {"Keep", "", "Empty"}, {"Empty", "Keep", "Empty"}, {"", "Keep", "Empty"},
	} {
		content := func(value v1alpha1.OnRelease) string { return strings.Replace(empty, "Empty", string(value), 1) }
		got, err := Resolve(Input{
			Claim:  allocated([]apiResult{result("disk", "host", "h0")}, class(content(tc.recorded))),
			Driver: driver, Node: node, Classes: liveClass(content(tc.live)),
		})
		if err != nil || got.Results[0].Config.Host.OnRelease != tc.want {
			t.Errorf("%q and %q: got %+v, error %v, want %s", tc.recorded, tc.live, got.Results, err, tc.want)
		}
	}
	for _, tc := range []struct{ recorded, live, want v1alpha1.CoTenancy }{
		{"Shared", "Shared", "Shared"},
		{"Shared", "", "SameNamespace"},
		{"", "Shared", "SameNamespace"},
		{"Exclusive", "Shared", "Exclusive"},
		{"Shared", "Exclusive", "Exclusive"},
	} {
		content := func(value v1alpha1.CoTenancy) string { return policy(`"coTenancy":"` + string(value) + `"`) }
		got, err := Resolve(Input{Claim: aRegion(class(content(tc.recorded))), Driver: driver, Node: node, Classes: liveClass(content(tc.live))})
		if err != nil || got.Results[0].Config.FPGA.CoTenancy != tc.want {
			t.Errorf("%q and %q: got %+v, error %v, want %s", tc.recorded, tc.live, got.Results, err, tc.want)
		}
	}
}

// TestPermissionsOfBoth: what a policy permits, the class must permit now and have permitted then.
func TestPermissionsOfBoth(t *testing.T) {
	permits := policy(`"allowUnclearedMemory":true,"allowWithoutIOMMU":true`)
	for _, tc := range []struct {
		recorded, live string
		want           bool
	}{{permits, permits, true}, {permits, fpga(""), false}, {fpga(""), permits, false}} {
		got, err := Resolve(Input{Claim: aRegion(class(tc.recorded)), Driver: driver, Node: node, Classes: liveClass(tc.live)})
		if err != nil {
			t.Fatal(err)
		}
		if f := got.Results[0].Config.FPGA; f.AllowsUnclearedMemory() != tc.want || f.AllowsWithoutIOMMU() != tc.want {
			t.Errorf("%s and %s: want %t", tc.recorded, tc.live, tc.want)
		}
	}
}

// TestLiveParameters: parameters are those of the allocation, policies of the class change no other field.
func TestLiveParameters(t *testing.T) {
	in := Input{
		Claim:  allocated([]apiResult{result("disk", "host", "h0")}, class(atData)),
		Driver: driver, Node: node, Classes: liveClass(atScratch, keep),
	}
	got, err := Resolve(in)
	if err != nil || got.Results[0].Config.Host.MountPath != "/data" {
		t.Errorf("got %+v, error %v, want the path of the allocation", got.Results, err)
	}
}

// TestSharedEffect: an edit of the class that leaves the configuration as it is keeps the holders of a device together.
func TestSharedEffect(t *testing.T) {
	c := allocated([]apiResult{share(result("main", "fpga", "f0"), "s1")}, class(bits("a")))
	before, err := Resolve(Input{Claim: c, Driver: driver, Node: node})
	if err != nil {
		t.Fatal(err)
	}
	after, err := Resolve(Input{Claim: c, Driver: driver, Node: node, Classes: liveClass(bits("b"))})
	if err != nil || before.Results[0].Effect() != after.Results[0].Effect() {
		t.Errorf("effect %s became %s, error %v", before.Results[0].Effect(), after.Results[0].Effect(), err)
	}
}

// TestGoneClass: without the class nobody knows what it allows, except for a claim that was prepared.
func TestGoneClass(t *testing.T) {
	in := Input{
		Claim:  allocated([]apiResult{result("main", "gpu", "g0"), result("disk/big", "host", "h0")}, class(onlyA, "main")),
		Driver: driver, Node: node, Classes: map[string]*resourceapi.DeviceClass{},
	}
	_, err := Resolve(in)
	refused, ok := errors.AsType[*RefusedError](err)
	if !ok || refused.Reason != ReasonClassNotFound || len(refused.Faults) != 2 ||
		refused.Faults[0].Field != "spec.devices.requests[0].exactly.deviceClassName" ||
		refused.Faults[1].Field != "spec.devices.requests[1].firstAvailable[0].deviceClassName" {
		t.Errorf("error %v, want both requests to be named", err)
	}
	in.Prepared = true
	if _, err := Resolve(in); err != nil {
		t.Errorf("prepared before: %v", err)
	}
	in.Prepared, in.Classes = false, nil
	if _, err := Resolve(in); err != nil {
		t.Errorf("classes are not asked for: %v", err)
	}
}

// TestClassNames wants the classes of the driver's results, each once.
func TestClassNames(t *testing.T) {
	other := result("nic", "gpu", "n0")
	other.Driver = "nic.example.com"
	c := allocated([]apiResult{result("b", "gpu", "g0"), result("a/x", "gpu", "g1"), result("c", "gpu", "g2"), other})
	c.Spec.Devices.Requests[0].Exactly.DeviceClassName = "z"
	c.Spec.Devices.Requests[3].Exactly.DeviceClassName = "theirs"
	if got := ClassNames(Input{Claim: c, Driver: driver}); !slices.Equal(got, []string{"any", "z"}) {
		t.Errorf("got %v", got)
	}
	if got := ClassNames(Input{Claim: &resourceapi.ResourceClaim{}, Driver: driver}); len(got) > 0 {
		t.Errorf("got %v for a claim without allocation", got)
	}
}
