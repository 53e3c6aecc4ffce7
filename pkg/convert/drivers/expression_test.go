// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/fettle-dev/fettle/test/check"
)

const (
	ourAttributes = `device.attributes["fettle.dev"]`
	ourCapacity   = `device.capacity["fettle.dev"]`
)

// TestConvert compares expressions as text.
func TestConvert(t *testing.T) {
	ours := strings.NewReplacer("A.", ourAttributes+".", "in A ", "in "+ourAttributes+" ", "in C", "in "+ourCapacity, "C.", ourCapacity+".")
	for in, want := range map[string]string{
		`device.attributes["gpu.nvidia.com"].productName == "X"`: "" +
			`"productName" in A && A.productName == "X"`,
		`device.attributes['gpu.nvidia.com']['productName'] == 'X'`: "" +
			`"productName" in A && A.productName == "X"`,
		`has(device.attributes["gpu.nvidia.com"].uuid) && device.attributes["gpu.nvidia.com"].uuid == "u"`: "" +
			`"uuid" in A && A.uuid == "u"`,
		`"uuid" in device.attributes["gpu.nvidia.com"] && device.attributes["gpu.nvidia.com"].uuid == "u"`: "" +
			`"uuid" in A && A.uuid == "u"`,
		`device.attributes["gpu.nvidia.com"].?uuid.orValue("") == "u"`: "" +
			`A.?uuid.orValue("") == "u"`,
		`cel.bind(a, device.attributes["gpu.nvidia.com"], a.uuid == "u" || a.brand == "Tesla")`: "" +
			`"uuid" in A && A.uuid == "u" || "brand" in A && A.brand == "Tesla"`,
		`device.attributes["gpu.nvidia.com"].cudaComputeCapability.isGreaterThan(semver("8.0.0"))`: `"computeCapability" in A && ` +
			`A.computeCapability.isGreaterThan(semver("8.0.0"))`,
		`device.driver == "gpu.amd.com" && device.attributes["gpu.amd.com"].type == "amdgpu"`: "" +
			`device.driver == "fettle.dev" && A.vendor == "amd" && A.type != "fpga" && ` +
			`A.type == "gpu"`,
		`device.attributes["gpu.amd.com"].type != "amdgpu-partition"`: `A.type != "partition"`,
		`device.attributes["gpu.amd.com"].productName == "AMD_Instinct_MI300X_OAM"`: `"productName" in A && ` +
			`A.productName.replace(" ", "_").replace("(", "").replace(")", "") == "AMD_Instinct_MI300X_OAM"`,
		`device.attributes["gpu.amd.com"].deviceID in ["0x740f", "0x74a1"]`: "" +
			`"pciDeviceID" in A && (A.pciDeviceID == "740f" || A.pciDeviceID == "74a1")`,
		`device.attributes["gpu.amd.com"].partitionProfile == "cpx_nps4"`: "" +
			`"profile" in A && A.profile == "cpx-nps4"`,
		`device.attributes["gpu.intel.com"].model == "Flex 170"`: "" +
			`"productName" in A && A.productName.endsWith(" Flex 170")`,
		`device.attributes["gpu.intel.com"].family == 'Flex'`: "" +
			`"productName" in A && A.productName.contains(" Flex ")`,
		`device.attributes["gpu.intel.com"].health == "Healthy" && device.attributes["gpu.intel.com"].driver == "xe"`: "" +
			`A.driver == "xe"`,
		`device.attributes["gpu.intel.com"].sriov`: "" +
			`"virtualFunctions" in C`,
		`device.capacity["gpu.intel.com"].memory.compareTo(quantity("4Gi")) >= 0`: "" +
			`"memory" in C && C.memory.compareTo(quantity("4Gi")) >= 0`,
		`device.attributes["gpu.amd.com"].numaNode == 0`: `"numaNode" in device.attributes["resource.kubernetes.io"] && ` +
			`device.attributes["resource.kubernetes.io"].numaNode == 0`,
		`device.attributes["other.example.com"].model == 'x'`: `device.attributes["other.example.com"].model == 'x'`,
	} {
		got, err := Convert(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if diff := cmp.Diff(ours.Replace(want), got.Text); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
		if compiled := cel.GetCompiler(cel.Features{}).CompileCELExpression(got.Text, cel.Options{}); compiled.Error != nil {
			t.Errorf("%s: %v", got.Text, compiled.Error)
		}
		if again, err := Convert(got.Text); err != nil || again.Changed {
			t.Errorf("%s: converted again: %q, %v", got.Text, again.Text, err)
		}
	}
}

// TestConvertRefuses names the attribute and the reason, all at once.
func TestConvertRefuses(t *testing.T) {
	for in, want := range map[string][]string{
		`device.attributes["gpu.nvidia.com"].index == 0 && device.attributes["gpu.nvidia.com"].gpuModuleID == 3`: {
			"index of gpu.nvidia.com: it has no stable meaning", "gpuModuleID of gpu.nvidia.com: it is for Fabric Manager",
		},
		`device.attributes["gpu.nvidia.com"].speed == 1`:                  {"speed of gpu.nvidia.com: Fettle has nothing that is the same"},
		`device.attributes["gpu.intel.com"].model.startsWith("Flex")`:     {"model of gpu.intel.com: only ==, != and in with constants"},
		`device.attributes["gpu.amd.com"].type == "tpu"`:                  {`type of gpu.amd.com: type "tpu" is none`},
		`size(device.attributes["gpu.amd.com"]) > 1`:                      {"all attributes of gpu.amd.com at once"},
		`device.capacity["gpu.intel.com"].millicores > quantity("1")`:     {"millicores of gpu.intel.com: a claim has the whole GPU"},
		`device.attributes["gpu.nvidia.com"].productName == `:             {"CEL expression, column"},
		`device.attributes["gpu.intel.com"].family == "Data Center Atom"`: {"expected Flex, Max or Arc"},
	} {
		_, err := Convert(in)
		for _, part := range want {
			check.WantErr(t, err, nil, part)
		}
	}
}

// TestConvertedHolds evaluates converted expressions as the scheduler does: none is an error on a device that lacks an attribute.
func TestConvertedHolds(t *testing.T) {
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	version := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{VersionValue: &s} }
	h100 := cel.Device{Driver: "fettle.dev", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"type": text("gpu"), "vendor": text("nvidia"), "productName": text("NVIDIA H100 80GB HBM3"), "computeCapability": version("9.0.0"),
		"pciDeviceID": text("2330"),
	}, Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}}}
	mi300 := cel.Device{Driver: "fettle.dev", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"type": text("gpu"), "vendor": text("amd"), "productName": text("AMD Instinct MI300X OAM"), "pciDeviceID": text("74a1"),
	}}
	bare := cel.Device{Driver: "fettle.dev", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"type": text("gpu"), "vendor": text("intel"),
	}}
	for in, want := range map[string][3]bool{
		`device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("^.*h100.*$")`:                     {true, false, false},
		`device.attributes["gpu.nvidia.com"].cudaComputeCapability.compareTo(semver("8.0.0")) >= 0`:              {true, false, false},
		`device.attributes["gpu.amd.com"].productName == "AMD_Instinct_MI300X_OAM"`:                              {false, true, false},
		`device.attributes["gpu.amd.com"].deviceID == "0x74a1"`:                                                  {false, true, false},
		`device.attributes["gpu.nvidia.com"].productName != "NVIDIA A100"`:                                       {true, true, false},
		`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0`:                              {true, false, false},
		`device.driver == "gpu.nvidia.com"`:                                                                      {true, false, false},
		`device.driver == "gpu.example.com" && (device.attributes["gpu.example.com"].model == "x" || 1 == 1)`:    {true, true, true},
		`"uuid" in device.attributes["gpu.nvidia.com"] ? device.attributes["gpu.nvidia.com"].uuid == "u" : true`: {true, true, true},
	} {
		converted, err := Convert(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		compiled := cel.GetCompiler(cel.Features{}).CompileCELExpression(converted.Text, cel.Options{})
		for i, d := range []cel.Device{h100, mi300, bare} {
			matches, _, err := compiled.DeviceMatches(t.Context(), d)
			if err != nil || matches != want[i] {
				t.Errorf("%s: device %d: %t, %v, want %t", converted.Text, i, matches, err, want[i])
			}
		}
	}
}

// FuzzConvert: what comes out compiles where what went in did.
func FuzzConvert(f *testing.F) {
	for _, seed := range []string{
		`device.attributes["gpu.nvidia.com"].uuid == "u"`, `!(device.attributes["gpu.amd.com"].?type.orValue("x") == "y")`, `[1][0] == 1`,
		`cel.bind(x, device.attributes["gpu.intel.com"], x.model in ["a", "b"])`,
		`device.attributes["gpu.nvidia.com"].type == "mig" ? true : false`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		compiler := cel.GetCompiler(cel.Features{})
		if compiler.CompileCELExpression(in, cel.Options{}).Error != nil {
			return
		}
		out, err := Convert(in)
		if err != nil || !out.Changed {
			return
		}
		if compiled := compiler.CompileCELExpression(out.Text, cel.Options{}); compiled.Error != nil {
			t.Errorf("%s became %s: %v", in, out.Text, compiled.Error)
		}
	})
}
