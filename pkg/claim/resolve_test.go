// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
)

var (
	builtInSource = Source{Origin: OriginBuiltIn, Index: -1}
	gpuSources    = map[string]Source{FieldStrategy: builtInSource, FieldAllowedNamespaces: builtInSource}
	plainGPU      = Effective{GPU: &GPUEffective{Strategy: v1alpha1.SharingExclusive}, Sources: gpuSources}
)

func gpuResult(request, base, name string, config Effective) Result {
	return Result{
		Request: request, BaseRequest: base, Pool: node + "/gpu", Device: name, Kind: device.KindGPU, Config: config,
	}
}

func hostResult(request, name string, config Effective) Result {
	return Result{
		Request: request, BaseRequest: request, Pool: node + "/host", Device: name, Kind: device.KindHost, Config: config,
	}
}

func TestResolve(t *testing.T) {
	other := result("main", "gpu", "g0")
	other.Driver = "gpu.example.com"
	uid1, uid2 := types.UID("s1"), types.UID("s2")
	for _, tc := range []struct {
		name  string
		claim *resourceapi.ResourceClaim
		want  []Result
	}{
		{
			name:  "no config",
			claim: allocated([]apiResult{result("main", "gpu", "g0")}),
			want:  []Result{gpuResult("main", "main", "g0", plainGPU)},
		},
		{
			name:  "nothing of ours, whatever the config",
			claim: allocated([]apiResult{other}, own(`{"bad":true}`)),
		},
		{
			name: "other drivers' entries are not looked at",
			claim: allocated([]apiResult{other, result("main", "gpu", "g1")},
				config(resourceapi.AllocationConfigSourceClaim, "gpu.example.com", `not even JSON`, nil),
				apiConfig{Source: resourceapi.AllocationConfigSourceClaim}),
			want: []Result{gpuResult("main", "main", "g1", plainGPU)},
		},
		{
			name:  "an FPGA without config",
			claim: allocated([]apiResult{result("main", "fpga", "f0")}),
			want: []Result{{
				Request: "main", BaseRequest: "main", Pool: node + "/fpga", Device: "f0", Kind: device.KindFPGA,
				Config: plainFPGA(),
			}},
		},
		{
			name: "firstAvailable: class by alternative, claim by main request",
			claim: allocated([]apiResult{result("main/big", "gpu", "g0")},
				class(onlyA, "main/big"), own(exclusive, "main"), own(mps0(), "main/small")),
			want: []Result{gpuResult("main/big", "main", "g0", Effective{
				GPU:               &GPUEffective{Strategy: v1alpha1.SharingExclusive},
				AllowedNamespaces: []string{"team-a", "team-b"},
				Sources: map[string]Source{
					FieldStrategy:          {Origin: OriginClaim, Index: 1},
					FieldAllowedNamespaces: {Origin: OriginClass, Index: 0},
				},
			})},
		},
		{
			name: "claim wins over class field by field, in any order of the list",
			claim: allocated([]apiResult{result("disk", "host", "h0")},
				own(atScratch), own(atData, "disk"), class(keep, "disk")),
			want: []Result{hostResult("disk", "h0", Effective{
				Host: &HostEffective{MountPath: "/data", OnRelease: v1alpha1.OnReleaseKeep},
				Sources: map[string]Source{
					FieldMountPath:         {Origin: OriginClaim, Index: 1},
					FieldOnRelease:         {Origin: OriginClass, Index: 2},
					FieldAllowedNamespaces: builtInSource,
				},
			})},
		},
		{
			name: "an entry for all requests goes to the devices it fits",
			claim: allocated([]apiResult{result("gpu", "gpu", "g0"), result("disk", "host", "h0")},
				own(atData), own(exclusive)),
			want: []Result{
				gpuResult("gpu", "gpu", "g0", Effective{
					GPU: &GPUEffective{Strategy: v1alpha1.SharingExclusive},
					Sources: map[string]Source{
						FieldStrategy: {Origin: OriginClaim, Index: 1}, FieldAllowedNamespaces: builtInSource,
					},
				}),
				hostResult("disk", "h0", Effective{
					Host: &HostEffective{MountPath: "/data", OnRelease: v1alpha1.OnReleaseEmpty},
					Sources: map[string]Source{
						FieldMountPath: {Origin: OriginClaim, Index: 0},
						FieldOnRelease: builtInSource, FieldAllowedNamespaces: builtInSource,
					},
				}),
			},
		},
		{
			name: "one class that empties is enough",
			claim: allocated([]apiResult{result("disk", "host", "h0")},
				class(keep, "disk"), class(empty, "disk"), class(keep, "disk")),
			want: []Result{hostResult("disk", "h0", Effective{
				Host: &HostEffective{MountPath: "/class", OnRelease: v1alpha1.OnReleaseEmpty},
				Sources: map[string]Source{
					FieldMountPath:         {Origin: OriginClass, Index: 2},
					FieldOnRelease:         {Origin: OriginClass, Index: 1},
					FieldAllowedNamespaces: builtInSource,
				},
			})},
		},
		{
			name:  "adminAccess is not bound by namespaces",
			claim: allocated([]apiResult{look(result("main", "gpu", "g0"))}, class(onlyB, "main")),
			want: []Result{{
				Request: "main", BaseRequest: "main", Pool: node + "/gpu", Device: "g0", Kind: device.KindGPU, AdminAccess: true,
				Config: Effective{
					GPU:               &GPUEffective{Strategy: v1alpha1.SharingExclusive},
					AllowedNamespaces: []string{"team-b"},
					Sources: map[string]Source{
						FieldStrategy: builtInSource, FieldAllowedNamespaces: {Origin: OriginClass, Index: 0},
					},
				},
			}},
		},
		{
			name: "shares of one device",
			claim: allocated([]apiResult{
				share(result("a", "gpu", "g0"), uid1), share(result("b", "gpu", "g0"), uid2), look(result("c", "gpu", "g0")),
			}),
			want: []Result{
				{
					Request: "a", BaseRequest: "a", Pool: node + "/gpu", Device: "g0", Kind: device.KindGPU,
					ShareID: &uid1, Config: plainGPU,
				},
				{
					Request: "b", BaseRequest: "b", Pool: node + "/gpu", Device: "g0", Kind: device.KindGPU,
					ShareID: &uid2, Config: plainGPU,
				},
				{
					Request: "c", BaseRequest: "c", Pool: node + "/gpu", Device: "g0", Kind: device.KindGPU,
					AdminAccess: true, Config: plainGPU,
				},
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := tc.claim.DeepCopy()
			got, err := Resolve(Input{Claim: tc.claim, Driver: driver, Node: node})
			if err != nil {
				t.Fatal(err)
			}
			want := Allocation{Namespace: "team-a", Name: "work", UID: "uid-1", Results: tc.want}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("wrong allocation (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.claim); diff != "" {
				t.Errorf("the claim was changed:\n%s", diff)
			}
		})
	}
}

// mps0 is a valid configuration for an alternative that was not chosen.
func mps0() string { return `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig"}` }

func TestResolveRefuses(t *testing.T) {
	const parameters = "status.allocation.devices.config"
	gpu := []apiResult{result("main", "gpu", "g0")}
	disks := []apiResult{result("disk", "host", "h0"), result("disk", "host", "h1")}
	for _, tc := range []struct {
		name   string
		claim  *resourceapi.ResourceClaim
		reason Reason
		fields []string
	}{
		{
			name: "not allocated", claim: &resourceapi.ResourceClaim{},
			reason: ReasonNotAllocated, fields: []string{"status.allocation"},
		},
		{
			name:   "another node's pool",
			claim:  allocated([]apiResult{{Request: "a", Driver: driver, Pool: "node-2/gpu", Device: "g0"}}),
			reason: ReasonDeviceUnknown, fields: []string{"status.allocation.devices.results[0].pool"},
		},
		{
			name:   "unknown kinds of pool",
			claim:  allocated([]apiResult{result("a", "nic", "n0"), result("a", "gpu", "g0"), {Driver: driver, Pool: node}}),
			reason: ReasonDeviceUnknown,
			fields: []string{"status.allocation.devices.results[0].pool", "status.allocation.devices.results[2].pool"},
		},
		{
			name:   "one device twice",
			claim:  allocated([]apiResult{result("a", "gpu", "g0"), result("b", "gpu", "g0")}),
			reason: ReasonDeviceRepeated, fields: []string{"status.allocation.devices.results[1].device"},
		},
		{
			name:   "a share beside the whole",
			claim:  allocated([]apiResult{share(result("a", "gpu", "g0"), "s"), result("b", "gpu", "g0")}),
			reason: ReasonDeviceRepeated, fields: []string{"status.allocation.devices.results[1].device"},
		},
		{
			name:   "the same share twice",
			claim:  allocated([]apiResult{share(result("a", "gpu", "g0"), "s"), share(result("b", "gpu", "g0"), "s")}),
			reason: ReasonDeviceRepeated, fields: []string{"status.allocation.devices.results[1].device"},
		},
		{
			name: "two shares with different configurations",
			claim: allocated([]apiResult{share(result("a", "host", "h0"), "s"), share(result("b", "host", "h0"), "t")},
				class(keep, "a", "b"), own(atData, "a")),
			reason: ReasonConfigInvalid, fields: []string{"status.allocation.devices.results[1].device"},
		},
		{
			name:   "a share of what is emptied",
			claim:  allocated([]apiResult{result("a", "host", "h1"), share(result("b", "host", "h0"), "s")}),
			reason: ReasonConfigInvalid, fields: []string{"status.allocation.devices.results[1].device"},
		},
		{
			name: "all faults of all entries",
			claim: allocated(gpu, class(`{"kind":"GPUConfig"}`, "main"), own(exclusive),
				own(`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","sharing":{"strategy":"MPS","Mps":{}}}`)),
			reason: ReasonConfigInvalid,
			fields: []string{parameters + "[0].opaque.parameters.apiVersion", parameters + "[2].opaque.parameters.sharing.Mps"},
		},
		{
			name: "MPS on a share", claim: allocated([]apiResult{share(result("main", "gpu", "g0"), "s")}, own(mps)),
			reason: ReasonConfigInvalid, fields: []string{"status.allocation.devices.results[0].device"},
		},
		{
			name: "an interval without its strategy", claim: allocated(gpu, own(interval)),
			reason: ReasonConfigInvalid, fields: []string{parameters + "[0].opaque.parameters.sharing.timeSlicing"},
		},
		{
			name: "no source", claim: allocated(gpu, config("", driver, onlyA, nil)),
			reason: ReasonConfigInvalid, fields: []string{parameters + "[0].source"},
		},
		{
			name: "the wrong kind for a named request", claim: allocated(gpu, own(atData, "main")),
			reason: ReasonConfigInvalid, fields: []string{parameters + "[0].opaque.parameters.kind"},
		},
		{
			name: "the wrong kind for every request", claim: allocated(gpu, own(atData)),
			reason: ReasonConfigInvalid, fields: []string{parameters + "[0].opaque.parameters.kind"},
		},
		{
			name: "a class whose config is for other devices", claim: allocated(disks, class(exclusive, "disk")),
			reason: ReasonConfigInvalid, fields: []string{parameters + "[0].opaque.parameters.kind"},
		},
		{
			name: "one path for two directories", claim: allocated(disks, own(atData)),
			reason: ReasonConfigInvalid, fields: []string{parameters + "[0].opaque.parameters.mountPath"},
		},
		{
			name: "namespace", claim: allocated(gpu, class(onlyB, "main")),
			reason: ReasonNamespaceNotAllowed, fields: []string{parameters + "[0].opaque.parameters.policy.allowedNamespaces"},
		},
		{
			name: "classes intersect", claim: allocated(gpu, class(onlyA, "main"), class(onlyB, "main")),
			reason: ReasonNamespaceNotAllowed, fields: []string{parameters + "[1].opaque.parameters.policy.allowedNamespaces"},
		},
		{
			name: "a look does not free its neighbour",
			claim: allocated([]apiResult{look(result("a", "gpu", "g0")), result("b", "gpu", "g1")},
				class(onlyB, "a", "b")),
			reason: ReasonNamespaceNotAllowed, fields: []string{parameters + "[0].opaque.parameters.policy.allowedNamespaces"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Resolve(Input{Claim: tc.claim, Driver: driver, Node: node})
			var refused *RefusedError
			if !errors.As(err, &refused) {
				t.Fatalf("got %+v and error %v, want a *RefusedError", got, err)
			}
			if refused.Reason != tc.reason {
				t.Errorf("reason %s, want %s: %v", refused.Reason, tc.reason, err)
			}
			var fields []string
			for _, fault := range refused.Faults {
				fields = append(fields, fault.Field)
			}
			if diff := cmp.Diff(tc.fields, fields); diff != "" {
				t.Errorf("wrong fields (-want +got):\n%s\n%v", diff, err)
			}
			if len(got.Results) > 0 {
				t.Errorf("results beside a refusal: %+v", got)
			}
		})
	}
}

// TestResolveMessage pins one sentence as the user reads it.
func TestResolveMessage(t *testing.T) {
	_, err := Resolve(Input{Claim: allocated([]apiResult{result("main", "gpu", "g0")}, class(onlyB, "main")), Driver: driver})
	want := `resource claim team-a/work refused (NamespaceNotAllowed): ` +
		`status.allocation.devices.config[0].opaque.parameters.policy.allowedNamespaces: Forbidden: ` +
		`the class of request main does not allow namespace team-a: ` +
		`create the claim in an allowed namespace, use another class, or ask an administrator to add it`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestResolveFullList resolves the longest list that the API allows: 64 entries, 32 from classes.
func TestResolveFullList(t *testing.T) {
	var configs []apiConfig
	for range 32 {
		configs = append(configs, own(exclusive), class(onlyA, "main"))
	}
	got, err := Resolve(Input{Claim: allocated([]apiResult{result("main", "gpu", "g0")}, configs...), Driver: driver, Node: node})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Source{
		FieldStrategy:          {Origin: OriginClaim, Index: 62},
		FieldAllowedNamespaces: {Origin: OriginClass, Index: 1},
	}
	if diff := cmp.Diff(want, got.Results[0].Config.Sources); diff != "" {
		t.Errorf("wrong sources (-want +got):\n%s", diff)
	}
}

func TestSourceString(t *testing.T) {
	for want, source := range map[string]Source{
		"built-in": builtInSource,
		"class, status.allocation.devices.config[2]": {Origin: OriginClass, Index: 2},
	} {
		if got := source.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// plainFPGA is an FPGA's configuration where nobody says anything.
func plainFPGA() Effective {
	e := Effective{Sources: map[string]Source{FieldAllowedNamespaces: builtInSource}}
	builtInFPGA(&e, builtInSource)
	return e
}
