// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/objects"
)

const nvidiaMPS = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS"}}`

func selecting(name, expression string, configs ...resourceapi.DeviceConfiguration) *resourceapi.DeviceClass {
	class := classOf(name, configs...)
	class.Spec.Selectors = objects.Selectors(expression)
	return class
}

func knownClasses(classes ...*resourceapi.DeviceClass) Known {
	known := Known{Classes: map[string]*resourceapi.DeviceClass{}, Bitstreams: map[types.NamespacedName]v1alpha1.CommonFPGABitstream{}}
	for _, class := range classes {
		known.Classes[class.Name] = class
	}
	return known
}

func templateOf(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: c.Spec}}
}

func lines(faults field.ErrorList) []string {
	var all []string
	for _, fault := range faults {
		all = append(all, fault.Error())
	}
	return all
}

func remarksOf(remarks []Remark) []string {
	var all []string
	for _, remark := range remarks {
		all = append(all, remark.String())
	}
	return all
}

// says compares messages with parts of what they should say.
func says(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d messages, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("got %q, want %q", got[i], want[i])
		}
	}
}

// TestIgnored: a configuration for another driver whose devices are ours is named, whatever the class is called, and one of ours for
// another's devices, too.
func TestIgnored(t *testing.T) {
	ours := selecting("gpu.nvidia.com", `device.driver == "fettle.dev" && device.attributes["fettle.dev"].vendor == "nvidia"`)
	theirs := selecting("gpu.amd.com", `device.driver == "gpu.amd.com"`)
	open := selecting("any", `device.attributes["x.dev"].y == 1`)
	known := knownClasses(ours, theirs, open)
	claim := func(requests []resourceapi.DeviceRequest, entries ...resourceapi.DeviceClaimConfiguration) *resourceapi.ResourceClaim {
		c := claimOf(requests...)
		c.Spec.Devices.Config = entries
		return c
	}
	one := []resourceapi.DeviceRequest{objects.Request("gpu", "gpu.nvidia.com")}
	nvidia := objects.Opaque("gpu.nvidia.com", nvidiaMPS)
	narrowed := objects.Request("gpu", "any")
	narrowed.Exactly.Selectors = objects.Selectors(`device.driver == "fettle.dev"`)
	for name, tt := range map[string]struct {
		object runtime.Object
		want   []string
	}{
		"ours under another name": {claim(one, entry(nvidia)), []string{
			"spec.devices.config[0].opaque: the parameters for driver gpu.nvidia.com (GpuConfig: sharing.strategy) have no effect, " +
				"because the devices of request gpu are of driver fettle.dev",
		}},
		"in a template": {templateOf(claim(one, entry(nvidia, "gpu"))), []string{"spec.spec.devices.config[0].opaque: "}},
		"of a class": {
			selecting("c", `device.driver == "fettle.dev"`, nvidia),
			[]string{"spec.config[0].opaque: the parameters for driver gpu.nvidia.com"},
		},
		"of a class of any driver": {selecting("c", `has(device.attributes["fettle.dev"].type)`, nvidia), nil},
		"a class by our name": {
			claim([]resourceapi.DeviceRequest{objects.Request("gpu", "nvidia.gpu.fettle.dev")}, entry(nvidia)),
			[]string{"request gpu"},
		},
		"a class that is not known": {claim([]resourceapi.DeviceRequest{objects.Request("gpu", "team-gpu")}, entry(nvidia)), nil},
		"selected by the request":   {claim([]resourceapi.DeviceRequest{narrowed}, entry(nvidia)), []string{"request gpu"}},
		"one of several is unknown": {claim([]resourceapi.DeviceRequest{one[0], objects.Request("b", "any")}, entry(nvidia)), nil},
		"named beside an unknown": {
			claim([]resourceapi.DeviceRequest{one[0], objects.Request("b", "any")}, entry(nvidia, "gpu")),
			[]string{"request gpu"},
		},
		"an alternative is another's": {
			claim([]resourceapi.DeviceRequest{firstAvailable("gpu", "gpu.nvidia.com", "gpu.amd.com")},
				entry(objects.Opaque("gpu.amd.com", `{}`), "gpu")),
			nil,
		},
		"all alternatives": {
			claim([]resourceapi.DeviceRequest{firstAvailable("gpu", "gpu.nvidia.com", "gpu.fettle.dev")}, entry(nvidia, "gpu")),
			[]string{"request gpu/alt-0, gpu/alt-1"},
		},
		"ours for another's": {
			claim([]resourceapi.DeviceRequest{objects.Request("gpu", "gpu.amd.com")}, entry(objects.Opaque("fettle.dev", good))),
			[]string{"driver fettle.dev (GPUConfig: sharing.strategy)"},
		},
		"between two others":     {claim([]resourceapi.DeviceRequest{objects.Request("gpu", "gpu.amd.com")}, entry(nvidia)), nil},
		"ours for ours":          {claim(one, entry(objects.Opaque("fettle.dev", good))), nil},
		"another kind of object": {&v1alpha1.PartitionPolicy{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var j Judge
			says(t, remarksOf(j.Ignored(tt.object, known)), tt.want...)
		})
	}
}

// TestNames: requests of configurations and constraints, and attributes of constraints.
func TestNames(t *testing.T) {
	c := claimOf(objects.Request("gpu", "gpu.fettle.dev"), firstAvailable("any", "a.example.com", "b.example.com"))
	c.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{
		entry(resourceapi.DeviceConfiguration{}, "gpu", "any", "any/alt-1"), entry(resourceapi.DeviceConfiguration{}, "gpuu", "any/alt-2"),
	}
	c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{
		{MatchAttribute: new(resourceapi.FullyQualifiedName("fettle.dev/parentUUID"))},
		{Requests: []string{"gpus"}, DistinctAttribute: new(resourceapi.FullyQualifiedName("fettle.dev/parent"))},
		{Requests: []string{"gpu"}, MatchAttribute: new(resourceapi.FullyQualifiedName("gpu.nvidia.com/parentUUID"))},
		{MatchAttribute: new(resourceapi.FullyQualifiedName("gpu.nvidia.com/parentUUID"))},
	}
	var j Judge
	says(t, lines(j.Names(templateOf(c), Known{})),
		`spec.spec.devices.constraints[1].requests[0]: Unsupported value: "gpus": supported values: "gpu", "any", "any/alt-0", "any/alt-1"`,
		`spec.spec.devices.constraints[1].distinctAttribute: Invalid value: "fettle.dev/parent": no device of fettle.dev has this attribute`,
		`spec.spec.devices.constraints[2].matchAttribute: Invalid value: "gpu.nvidia.com/parentUUID": no device of fettle.dev has attributes of`,
		`spec.spec.devices.config[1].requests[0]: Unsupported value: "gpuu"`,
		`spec.spec.devices.config[1].requests[1]: Unsupported value: "any/alt-2"`,
	)
}

// TestSelectors: the CEL of requests, alternatives and classes.
func TestSelectors(t *testing.T) {
	const misspelt = `device.attributes["fettle.dev"].vender == "nvidia"`
	foreign := `device.attributes["gpu.nvidia.com"].productName == "x"`
	c := claimOf(objects.Request("gpu", "gpu.fettle.dev"), firstAvailable("any", "ours", "theirs"))
	c.Spec.Devices.Requests[0].Exactly.Selectors = append(objects.Selectors("true", misspelt), resourceapi.DeviceSelector{})
	c.Spec.Devices.Requests[1].FirstAvailable[0].Selectors = objects.Selectors(foreign)
	c.Spec.Devices.Requests[1].FirstAvailable[1].Selectors = objects.Selectors(foreign, `device.driver ==`)
	known := knownClasses(selecting("ours", `device.driver == "fettle.dev"`), selecting("theirs", `device.driver == "gpu.nvidia.com"`))
	var j Judge
	says(t, lines(j.Selectors(c, known)),
		"spec.devices.requests[0].exactly.selectors[1].cel.expression: Invalid value: ",
		"spec.devices.requests[1].firstAvailable[0].selectors[0].cel.expression: Invalid value: ",
		"spec.devices.requests[1].firstAvailable[1].selectors[1].cel.expression: Invalid value: ",
	)
	says(t, lines(j.Selectors(selecting("c", misspelt), Known{})), "spec.selectors[0].cel.expression: Invalid value: ")
}

func fpgaClass(policy string) *resourceapi.DeviceClass {
	return selecting("fpga", `device.driver == "fettle.dev" && device.attributes["fettle.dev"].type == "fpga"`,
		objects.Opaque("fettle.dev", `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig"`+policy+`}`))
}

func fpgaClaim(fields string) *resourceapi.ResourceClaim {
	c := claimOf(objects.Request("region", "fpga"))
	c.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{
		entry(objects.Opaque("fettle.dev", `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig"`+fields+`}`)),
	}
	return c
}

// TestPolicies: what a class forbids is found in the claim, with the paths of claim and class, as far as the objects tell.
func TestPolicies(t *testing.T) {
	digest := "sha256:" + strings.Repeat("1", 64)
	object := &v1alpha1.FPGABitstream{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "nlb", Generation: 2},
		Spec:       v1alpha1.FPGABitstreamSpec{Image: "registry.example/team/nlb:1"},
		Status: v1alpha1.FPGABitstreamStatus{
			ObservedGeneration: 2, Digest: digest, Images: []v1alpha1.BitstreamImage{{Manifest: digest, Layer: digest, Format: "gbs"}},
		},
	}
	unresolved := object.DeepCopy()
	unresolved.Name, unresolved.Status = "new", v1alpha1.FPGABitstreamStatus{}
	signed := object.DeepCopy()
	signed.Name, signed.Status.Verification = "signed", &v1alpha1.ImageVerdict{Digest: digest, Result: v1alpha1.VerdictVerified}
	staged := &v1alpha1.ClusterFPGABitstream{
		ObjectMeta: metav1.ObjectMeta{Name: "staged"},
		Spec: v1alpha1.ClusterFPGABitstreamSpec{
			HostFile: &v1alpha1.HostBitstream{Store: "/srv/fpga", ID: strings.Repeat("a", 32)}, Namespaces: []string{"*"},
		},
	}
	const at = "spec.devices.config[0].opaque.parameters."
	const class = "DeviceClass[fpga].spec.config[0].opaque.parameters.policy"
	ref := `,"bitstream":{"ref":"registry.example/team/x@sha256:` + strings.Repeat("2", 64) + `"}`
	for name, tt := range map[string]struct {
		class, claim    string
		faults, remarks []string
	}{
		"allowed":         {`,"policy":{"allowedBitstreams":["team-a/*"]}`, `,"bitstream":{"name":"nlb"}`, nil, nil},
		"by its digest":   {`,"policy":{"allowedBitstreams":["` + digest + `"]}`, `,"bitstream":{"name":"nlb"}`, nil, nil},
		"by its registry": {`,"policy":{"allowedRegistries":["registry.example/team"]}`, `,"bitstream":{"name":"nlb"}`, nil, nil},
		"no list": {
			``,
			`,"bitstream":{"name":"nlb"}`,
			[]string{at + "bitstream: Forbidden: no class of request region allows any bitstream"},
			nil,
		},
		"another list": {
			`,"policy":{"allowedBitstreams":["team-b/*"]}`,
			`,"bitstream":{"name":"nlb"}`,
			[]string{at + "bitstream: Forbidden: FPGABitstream team-a/nlb is in neither allowedBitstreams nor allowedRegistries of " + class},
			nil,
		},
		"another registry": {
			`,"policy":{"allowedRegistries":["registry.example/other"]}`,
			ref,
			[]string{at + "bitstream: Forbidden: registry.example/team/x@sha256:"},
			nil,
		},
		"digest of a file": {`,"policy":{"allowedBitstreams":["` + digest + `"]}`, ref, nil, nil},
		"not resolved":     {`,"policy":{"allowedBitstreams":["` + digest + `"]}`, `,"bitstream":{"name":"new"}`, nil, nil},
		"not resolved, names": {
			`,"policy":{"allowedBitstreams":["team-a/nlb"]}`,
			`,"bitstream":{"name":"new"}`,
			[]string{"FPGABitstream team-a/new is in neither"},
			nil,
		},
		"does not exist": {``, `,"bitstream":{"name":"late"}`, nil, nil},
		"a store of files": {
			`,"policy":{"allowedBitstreams":["` + digest + `"]}`,
			`,"bitstream":{"name":"staged","kind":"ClusterFPGABitstream"}`,
			nil,
			nil,
		},
		"unsigned": {
			`,"policy":{"allowedBitstreams":["team-a/*"],"requireSignature":true}`,
			`,"bitstream":{"name":"nlb"}`,
			nil,
			[]string{at + "bitstream: " + class + ".requireSignature asks for a signature"},
		},
		"signed": {
			`,"policy":{"allowedBitstreams":["team-a/*"],"requireSignature":true}`,
			`,"bitstream":{"name":"signed"}`,
			nil,
			nil,
		},
		"range": {
			`,"policy":{"allowedDriverParams":[{"name":"clockMHz","min":100,"max":300}]}`, `,"driverParams":{"clockMHz":400}`,
			[]string{at + "driverParams.clockMHz: Invalid value: 400: must be 100 to 300, says " + class + ".allowedDriverParams[0] of the class"},
			nil,
		},
		"not listed": {
			`,"policy":{"allowedDriverParams":[{"name":"ltr"}]}`,
			`,"driverParams":{"clockMHz":400}`,
			[]string{"driverParams.clockMHz: Forbidden"},
			nil,
		},
		"timeout": {
			`,"policy":{"maxTimeout":"1m"}`,
			`,"timeout":"2m"`,
			[]string{at + `timeout: Invalid value: "2m0s": must be at most 1m0s`},
			nil,
		},
		"keep": {``, `,"onRelease":"Keep"`, []string{at + "onRelease: Forbidden: no class of request region has policy.allowKeep"}, nil},
		"all at once": {
			``, `,"onRelease":"Keep","driverParams":{"ltr":true},"bitstream":{"name":"nlb"}`,
			[]string{"driverParams.ltr: Forbidden", "onRelease: Forbidden", "bitstream: Forbidden"},
			nil,
		},
		"of the class itself": {
			`,"bitstream":{"name":"nlb"}`,
			``,
			[]string{"DeviceClass[fpga].spec.config[0].opaque.parameters.bitstream: Forbidden"},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			known := knownClasses(fpgaClass(tt.class))
			for _, b := range []v1alpha1.CommonFPGABitstream{object.Common(), unresolved.Common(), signed.Common(), staged.Common()} {
				known.Bitstreams[b.Key()] = b
			}
			var j Judge
			c := fpgaClaim(tt.claim)
			faults, remarks := j.Policies("team-a", c, known)
			says(t, lines(faults), tt.faults...)
			says(t, remarksOf(remarks), tt.remarks...)
			if faults, _ := j.Policies("team-a", templateOf(c), known); len(faults) != len(tt.faults) {
				t.Errorf("%d faults in a template, want %d", len(faults), len(tt.faults))
			}
			c.Spec.Devices.Requests = []resourceapi.DeviceRequest{firstAvailable("region", "fpga", "gpu.fettle.dev")}
			if faults, remarks := j.Policies("team-a", c, known); len(faults) > 0 || len(remarks) != len(tt.faults)+len(tt.remarks) {
				t.Errorf("of an alternative: faults %v, remarks %v; want remarks only", faults, remarks)
			}
			c.Spec.Devices.Requests = []resourceapi.DeviceRequest{objects.Request("region", "fpga")}
			c.Spec.Devices.Requests[0].Exactly.AdminAccess = new(true)
			if faults, remarks := j.Policies("team-a", c, known); len(faults)+len(remarks) > 0 {
				t.Errorf("of a look: %v, %v", faults, remarks)
			}
		})
	}
}

// TestPoliciesOfOtherKinds: a configuration is judged only for requests whose devices it is for.
func TestPoliciesOfOtherKinds(t *testing.T) {
	var j Judge
	c := fpgaClaim(`,"onRelease":"Keep"`)
	for name, class := range map[string]*resourceapi.DeviceClass{
		"another driver's": selecting("fpga", `device.driver == "x.dev"`),
		"of GPUs":          selecting("fpga", `device.driver == "fettle.dev" && device.attributes["fettle.dev"].type == "mig"`),
		"of host devices":  selecting("fpga", `device.driver == "fettle.dev" && device.attributes["fettle.dev"].type == "host"`),
		"of an unknown":    selecting("fpga", `device.driver == "fettle.dev"`),
	} {
		if faults, remarks := j.Policies("team-a", c, knownClasses(class)); len(faults)+len(remarks) > 0 {
			t.Errorf("a class %s: %v, %v", name, faults, remarks)
		}
	}
	if faults, _ := j.Policies("team-a", c, Known{}); len(faults) > 0 {
		t.Errorf("a class that is not known: %v", faults)
	}
	byConfig := selecting("fpga", `device.driver == "fettle.dev"`,
		objects.Opaque("fettle.dev", `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig"}`))
	if faults, _ := j.Policies("team-a", c, knownClasses(byConfig)); len(faults) != 1 {
		t.Errorf("a class whose configuration says what it is for: %v", faults)
	}
}

// TestReferences: those of the object come first, then those of its classes. A class alone has those of the cluster.
func TestReferences(t *testing.T) {
	caches := objects.Opaque("fettle.dev", `{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","kernelCaches":[{"name":"a"},`+
		`{"name":"b","kind":"ClusterGPUKernelCache","optional":true}]}`)
	class := selecting("team", "true", caches)
	c := claimOf(objects.Request("gpu", "team"), objects.Request("other", "absent"))
	c.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{
		entry(objects.Opaque("fettle.dev", `{"apiVersion":"fettle.dev/v1alpha1","kind":"FPGAConfig","bitstream":{"name":"nlb"}}`)), entry(caches),
	}
	list := func(references []Reference) []string {
		var all []string
		for _, r := range references {
			text := r.Path.String() + " " + r.Kind + " " + r.Name
			if r.Optional {
				text += " optional"
			}
			all = append(all, text)
		}
		return all
	}
	const at = ".opaque.parameters.kernelCaches"
	if diff := cmp.Diff([]string{
		"spec.devices.config[0].opaque.parameters.bitstream.name FPGABitstream nlb",
		"spec.devices.config[1]" + at + "[0].name GPUKernelCache a",
		"spec.devices.config[1]" + at + "[1].name ClusterGPUKernelCache b optional",
		"DeviceClass[team].spec.config[0]" + at + "[0].name GPUKernelCache a",
		"DeviceClass[team].spec.config[0]" + at + "[1].name ClusterGPUKernelCache b optional",
	}, list(References(c, knownClasses(class)))); diff != "" {
		t.Errorf("of a claim (-want +got):\n%s", diff)
	}
	ofCluster := []string{"spec.config[0]" + at + "[1].name ClusterGPUKernelCache b optional"}
	if diff := cmp.Diff(ofCluster, list(References(class, Known{}))); diff != "" {
		t.Errorf("of a class (-want +got):\n%s", diff)
	}
}
