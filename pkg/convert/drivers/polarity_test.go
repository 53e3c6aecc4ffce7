// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/test/check"
)

// short writes N. for NVIDIA's attributes, I. for Intel's, M. for AMD's and A. for Fettle's.
func short() *strings.Replacer {
	return strings.NewReplacer("in N", `in device.attributes["gpu.nvidia.com"]`, "N.", `device.attributes["gpu.nvidia.com"].`,
		"I.", `device.attributes["gpu.intel.com"].`, "M.", `device.attributes["gpu.amd.com"].`,
		"in A", `in device.attributes["fettle.dev"]`, "A.", `device.attributes["fettle.dev"].`)
}

// TestConvertNegated has what negation, ?: and the order of operands make of a test for presence.
func TestConvertNegated(t *testing.T) {
	for in, want := range map[string]string{
		`N.type != "mig"`:                      `A.type != "mig"`,
		`!(N.type == "mig")`:                   `A.type != "mig"`,
		`!!("mig" == N.type)`:                  `A.type == "mig"`,
		`(N.type == "mig") == false`:           `A.type != "mig"`,
		`!(N.type in ["mig", "vfio"])`:         `A.type != "mig" && A.type != "vfio"`,
		`N.profile != "1g.10gb"`:               `"profile" in A && A.profile != "1g.10gb"`,
		`!(N.profile == "1g.10gb")`:            `"profile" in A && A.profile != "1g.10gb"`,
		`!(N.brand == "a" || N.uuid == "b")`:   `"brand" in A && A.brand != "a" && "uuid" in A && A.uuid != "b"`,
		`!has(N.brand) || N.brand == "a"`:      `!("brand" in A) || A.brand == "a"`,
		`has(N.brand) ? N.brand == "a" : true`: `("brand" in A) ? (A.brand == "a") : true`,
		`N.brand == "a" ? true : N.type == "gpu"`: "" +
			`"brand" in A && A.brand == "a" || "brand" in A && A.brand != "a" && A.type == "gpu"`,
		`I.health != "Unhealthy"`:                        `true`,
		`I.health == "Unhealthy"`:                        `false`,
		`I.healthy`:                                      `true`,
		`!I.healthy || I.model != "A770"`:                `!("productName" in A) || !A.productName.endsWith(" A770")`,
		`N.vendorID != "0x1002"`:                         `A.type == "vfio"`,
		`M.partitionProfile != "cpx_nps4"`:               `A.type != "vfio" && (!("profile" in A) || A.profile != "cpx-nps4")`,
		`device.driver != "gpu.nvidia.com"`:              `device.driver != "fettle.dev" || A.vendor != "nvidia"`,
		`device.driver in ["gpu.nvidia.com"] && true`:    `device.driver == "fettle.dev" && A.vendor == "nvidia"`,
		`device.driver == "dra.net"`:                     `device.driver == "dra.net"`,
		`cel.bind(t, N.type, t != "mig" && t != "vfio")`: `A.type != "mig" && A.type != "vfio"`,
		`N.type == "mig" || M.type == "amdgpu-partition"`: "" +
			`A.vendor == "nvidia" && A.type == "mig" || A.vendor == "amd" && A.type == "partition"`,
		`!("brand" in N) || N.brand.startsWith("x")`:                         `!("brand" in A) || A.brand.startsWith("x")`,
		`M.productName != 3`:                                                 `"productName" in A`,
		`["a", "b"].exists(x, x == N.brand)`:                                 `"brand" in A && ["a", "b"].exists(x, x == A.brand)`,
		`!(["a", "b"].exists(x, x == N.brand))`:                              `"brand" in A && !(["a", "b"].exists(x, x == A.brand))`,
		`(has(N.brand) && N.brand == "a") != (1 == 2) `:                      "",
		`["x"].all(d, N.brand == d || N.uuid == d)`:                          "",
		`(N.brand == "x" ? N.uuid : N.parentUUID) == "u"`:                    "",
		`cel.bind(a, N.type, ["x"].all(a, a == N.uuid))`:                     "",
		`device.attributes["gpu." + "nvidia.com"].x == 1 && N.type == "gpu"`: "",
	} {
		in, want = short().Replace(in), short().Replace(want)
		got, err := Convert(in)
		if want == "" {
			if err == nil {
				t.Errorf("%s\nbecame\n%s\nwant an error", in, got.Text)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if diff := cmp.Diff(want, got.Text); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
}

// TestConvertTypes has the types by which package convert chooses a class, and the note where one class has not all devices.
func TestConvertTypes(t *testing.T) {
	for in, want := range map[string]struct {
		types string
		note  string
	}{
		`N.type == "mig"`:                                      {types: "mig"},
		`"mig" == N.type && N.uuid == "u"`:                     {types: "mig"},
		`!(N.type != "mig" || N.uuid == "u")`:                  {types: "mig"},
		`N.type in ["mig"]`:                                    {types: "mig"},
		`N.type != "mig" && N.type != "gpu"`:                   {types: "vfio"},
		`N.type == "vfio" ? N.uuid == "u" : false`:             {types: "vfio"},
		`device.driver == "gpu.nvidia.com" && N.type == "mig"`: {types: "mig"},
		`cel.bind(t, N.type, t == "mig")`:                      {types: "mig"},
		`N.type != "mig"`:                                      {},
		`!(N.type == "mig")`:                                   {},
		`N.type == "mig" || N.productName == "NVIDIA A100"`:    {},
		`N.type == "mig" ? N.uuid == "u" : N.uuid == "v"`:      {},
		`N.type == "mig" && N.type == "gpu"`:                   {},
		`N.uuid == "u"`:                                        {},
		`M.type == "amdgpu-partition"`:                         {types: "partition"},
		`M.type != "amdgpu-partition"`:                         {note: "types gpu, vfio"},
		`M.type == "amdgpu-partition" || M.numaNode == 0`:      {note: "types gpu, partition, vfio"},
	} {
		got, err := Convert(short().Replace(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if types := strings.Join(got.Types, " "); types != want.types {
			t.Errorf("%s: types %q, want %q", in, types, want.types)
		}
		if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, want.note) || want.note == "" && notes != "" {
			t.Errorf("%s: notes %q, want %q", in, notes, want.note)
		}
	}
}

// TestConvertNamesWhatItRefuses wants the expression and what to write in the message.
func TestConvertNamesWhatItRefuses(t *testing.T) {
	for in, want := range map[string]string{
		`device.driver.startsWith("x") && N.type == "gpu"`:                  "device.driver: what it reads depends on the driver",
		`device.attributes["gpu." + "x"].y == 1 && N.type == "gpu"`:         "device: what it reads depends on the driver",
		`"gpu.nvidia.com" in device.attributes`:                             `in device.attributes: the selector names gpu.nvidia.com in a way`,
		`M.deviceID == "0x74A1"`:                                            `"0x74A1": the driver writes 0x and four digits`,
		`M.partitionProfile == "spx_nps1"`:                                  "that of a whole GPU, which has no profile in Fettle",
		`I.model == "170"`:                                                  "Fettle has no product name for it: select it by pciId",
		`[N.uuid == "u" || N.brand == "b"].exists(x, x)`:                    "write it as conditions joined by && and ||",
		`N.uuid == "u" || device.attributes["gpu.example.com"].uuid == "u"`: "write a selector for each",
	} {
		_, err := Convert(short().Replace(in))
		check.WantErr(t, err, nil, want)
	}
}

// TestConvertKeeps: a selector that depends on the driver in another way than by constants stays, and a note says so.
func TestConvertKeeps(t *testing.T) {
	for in, noted := range map[string]bool{
		`device.driver.startsWith("gpu.nvidia")`:             true,
		`device.attributes[device.driver].type == "mig"`:     true,
		`device.driver.startsWith("dra.")`:                   false,
		`device.attributes["dra.net"].rdma`:                  false,
		`device.allowMultipleAllocations`:                    false,
		`device.attributes["fettle.dev"].type == "mig"`:      false,
		`device.driver == "dra.net" || "a" == device.driver`: false,
	} {
		got, err := Convert(in)
		if err != nil || got.Changed || got.Text != in {
			t.Errorf("%s: became %q, %v", in, got.Text, err)
		}
		if notes := strings.Join(got.Notes, "\n"); strings.Contains(notes, in+" is kept") != noted {
			t.Errorf("%s: notes %q, want one: %t", in, notes, noted)
		}
	}
}

// TestConvertedDriverHasNoFPGA: Fettle has FPGAs of AMD and Intel, whose drivers for GPUs have none.
func TestConvertedDriverHasNoFPGA(t *testing.T) {
	for driver, vendor := range map[string]string{AMD: "amd", Intel: "intel"} {
		out, err := Convert(`device.driver == "` + driver + `"`)
		if err != nil {
			t.Fatal(err)
		}
		for kind, want := range map[string]string{"fpga": isNo, "gpu": isYes} {
			d := newDevice("fettle.dev")
			d.Attributes["vendor"] = resourceapi.DeviceAttribute{StringValue: &vendor}
			d.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: &kind}
			if got := verdict(t, compiledSelector(out.Text), d); got != want {
				t.Errorf("%s is %s of a device of the type %s, want %s", out.Text, got, kind, want)
			}
		}
	}
}
