// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
)

// TestOf reads machines as discovery publishes them: the values are those that the tests of Cache.Fits use.
func TestOf(t *testing.T) {
	for _, test := range []struct {
		machine string
		want    kernelcache.Device
	}{
		{"8xh100-sxm+nvml", kernelcache.Device{Backend: kernelcache.CUDA, Arch: "90", WarpSize: 32, Driver: 580, MaxPTX: 90}},
		{"8xmi300x", kernelcache.Device{Backend: kernelcache.HIP, Arch: "gfx942", WarpSize: 64}},
	} {
		data, err := os.ReadFile(filepath.Join("..", "..", "discover", "testdata", test.machine+".golden.json"))
		if err != nil {
			t.Fatal(err)
		}
		var inventory struct {
			Devices []device.Device `json:"devices"`
		}
		if err := json.Unmarshal(data, &inventory); err != nil {
			t.Fatal(err)
		}
		if len(inventory.Devices) == 0 {
			t.Fatalf("%s has no devices", test.machine)
		}
		for _, d := range inventory.Devices {
			got, err := Of(d)
			if err != nil {
				t.Fatal(err)
			}
			test.want.Name = d.Name
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", d.Name, diff)
			}
		}
	}
}

func TestOfOdd(t *testing.T) {
	attributes := func(pairs ...string) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
		all := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
		for i := 0; i < len(pairs); i += 2 {
			name := resourceapi.QualifiedName(pairs[i])
			if strings.HasSuffix(pairs[i], "ersion") || name == device.AttributeComputeCapability {
				all[name] = resourceapi.DeviceAttribute{VersionValue: &pairs[i+1]}
			} else {
				all[name] = resourceapi.DeviceAttribute{StringValue: &pairs[i+1]}
			}
		}
		return all
	}
	for _, test := range []struct {
		name       string
		attributes []string
		want       kernelcache.Device
	}{
		{
			"Blackwell for desks",
			[]string{"vendor", "nvidia", "computeCapability", "12.0.0", "driverVersion", "570.10.0"},
			kernelcache.Device{Backend: kernelcache.CUDA, Arch: "120", WarpSize: 32, Driver: 570, MaxPTX: 87},
		},
		{
			"driver newer than the table",
			[]string{"vendor", "nvidia", "computeCapability", "9.0.0", "driverVersion", "700.0.0"},
			kernelcache.Device{Backend: kernelcache.CUDA, Arch: "90", WarpSize: 32, Driver: 700},
		},
		{
			"without the library",
			[]string{"vendor", "nvidia", "driverVersion", "580.1.1"},
			kernelcache.Device{Backend: kernelcache.CUDA, WarpSize: 32, Driver: 580, MaxPTX: 90},
		},
		{
			"RDNA has warps of 32",
			[]string{"vendor", "amd", "architecture", "gfx1100"},
			kernelcache.Device{Backend: kernelcache.HIP, Arch: "gfx1100", WarpSize: 32},
		},
		{"AMD's without the topology", []string{"vendor", "amd"}, kernelcache.Device{Backend: kernelcache.HIP}},
		{"Intel's", []string{"vendor", "intel", "architecture", "xe-hpc"}, kernelcache.Device{Backend: "intel"}},
	} {
		got, err := Of(device.Device{Kind: device.KindGPU, Attributes: attributes(test.attributes...)})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
	if _, err := Of(device.Device{Kind: device.KindFPGA, Name: "f"}); err == nil {
		t.Error("an FPGA is taken for a GPU")
	}
}
