// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/blang/semver/v4"
	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
)

func TestNormalizeVersion(t *testing.T) {
	for _, tc := range []struct{ raw, want string }{
		{"550.54.15", "550.54.15"},
		{"550.054.15", "550.54.15"},
		{"580.95.05\n", "580.95.5"},
		{"390.157", "390.157.0"},
		{"9.0", "9.0.0"},
		{"12", "12.0.0"},
		{"v6.12.12", "6.12.12"},
		{"6.8.0-amd", "6.8.0-amd"},
		{"6.8.0-45-generic", "6.8.0-45-generic"},
		{"5.14.0-570.12.1.el9_6.x86_64", "5.14.0-570.12.1.el9-6.x86-64"},
		{"6.1.0-rc1+", "6.1.0-rc1"},
		{"6.12.0+", "6.12.0"},
		{"1.2.3-007.0a", "1.2.3-7.0a"},
		{"1.2.3-000", "1.2.3-0"},
		{"1.2.3+007", "1.2.3+007"},
		{"", ""},
		{"6.19.14.31400000", "6.19.14+31400000"},
		{"96.00.74.00.01", "96.0.74+00.01"},
		{"1.25.2.23-rc1", "1.25.2-rc1+23"},
		{"1:25.3-0ubuntu1~22.04", "25.3.0-0ubuntu1-22.4+epoch-1"},
		{"2.16.204~rc1", "2.16.204-rc1"},
		{"5.0rc1", "5.0.0+rc1"},
		{"12.2 (release)", "12.2.0+--release-"},
		{"1.2.3-" + strings.Repeat("x", 64), "1.2.3-" + strings.Repeat("x", 49) + "+76c0febb"},
		{"1.2.3-" + strings.Repeat("x", 65), "1.2.3-" + strings.Repeat("x", 49) + "+86bf709c"},
		{"1.2.3-" + strings.Repeat("x", 50) + "+build", "1.2.3-" + strings.Repeat("x", 50) + "+build"},
		{"latest", ""},
		{"1..2", ""},
		{"1.2.", ""},
		{"99999999999999999999.0.0", ""},
	} {
		got, err := device.NormalizeVersion(tc.raw)
		if got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("NormalizeVersion(%q) = %q, %v; want %q", tc.raw, got, err, tc.want)
		}
	}
}

// FuzzNormalizeVersion checks against the parser that selectors use.
func FuzzNormalizeVersion(f *testing.F) {
	for _, seed := range []string{
		"550.54.15", "6.8.0-45-generic", "1.2.3-007", "6.19.14.31400000", "1:2.3.4.5-6~7+8", "5.0rc1", strings.Repeat("9", 70),
		"5.14.0-570.el9_6+x", "1.2.3-+", "1.2.3--", "0", "1.2.3-\xff",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		version, err := device.NormalizeVersion(raw)
		if err != nil {
			return
		}
		if _, err := semver.Parse(version); err != nil || len(version) > 64 {
			t.Errorf("%q became %q: %v", raw, version, err)
		}
		if again, err := device.NormalizeVersion(version); err != nil || again != version {
			t.Errorf("%q became %q, which became %q, %v", raw, version, again, err)
		}
	})
}

func TestString(t *testing.T) {
	if a, err := device.String("NVIDIA H100"); err != nil || *a.StringValue != "NVIDIA H100" {
		t.Errorf("got %v, %v", a, err)
	}
	for _, bad := range []string{"", strings.Repeat("x", 65), strings.Repeat("é", 33), "a\nb", "\xff", "a\x7f"} {
		if _, err := device.String(bad); err == nil {
			t.Errorf("String(%q) was accepted", bad)
		}
	}
}

func healthy(t *testing.T) device.Device {
	t.Helper()
	name, err := device.String("gpu")
	if err != nil {
		t.Fatal(err)
	}
	version, err := device.Version("550.54.15")
	if err != nil {
		t.Fatal(err)
	}
	return device.Device{
		Kind: device.KindGPU, Name: "nvidia-0000-1b-00-0",
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			device.AttributeType: name, device.AttributeDriverVersion: version,
			"resource.kubernetes.io/numaNode": device.Int(0), "healthy": device.Bool(true),
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{device.CapacityMemory: device.Bytes(80 << 30)},
		Edits: container.Edits{
			Nodes:  []container.Node{{Path: "/dev/nvidia0", Major: 195, Minor: 0, Permissions: "rw"}},
			Mounts: []container.Mount{{HostPath: "/mnt/disks/ssd0", ContainerPath: "/mnt/localssd/ssd0"}},
		},
	}
}

func TestValidate(t *testing.T) {
	if err := healthy(t).Validate(); err != nil {
		t.Errorf("healthy device: %v", err)
	}
	bad := "1.02.3"
	for want, spoil := range map[string]func(*device.Device){
		"name:":                         func(d *device.Device) { d.Name = "Upper_Case" },
		"kind \"tpu\"":                  func(d *device.Device) { d.Kind = "tpu" },
		"want at most 32":               func(d *device.Device) { fill(d, 33) },
		"attribute a-b:":                func(d *device.Device) { d.Attributes["a-b"] = device.Int(1) },
		"attribute a/b/c:":              func(d *device.Device) { d.Attributes["a/b/c"] = device.Int(1) },
		"attribute /b:":                 func(d *device.Device) { d.Attributes["/b"] = device.Int(1) },
		"a domain of at most 63":        func(d *device.Device) { d.Attributes[longName] = device.Int(1) },
		"0 scalar values":               func(d *device.Device) { d.Attributes["a"] = resourceapi.DeviceAttribute{} },
		"want a semantic version":       func(d *device.Device) { d.Attributes["a"] = resourceapi.DeviceAttribute{VersionValue: &bad} },
		"capacity memory: -1 is":        func(d *device.Device) { d.Capacity["memory"] = device.Bytes(-1) },
		"node \"dev/x\": want a":        func(d *device.Device) { d.Edits.Nodes[0].Path = "dev/x" },
		"numbers 0:0":                   func(d *device.Device) { d.Edits.Nodes[0].Major = 0 },
		"permissions \"x\"":             func(d *device.Device) { d.Edits.Nodes[0].Permissions = "x" },
		"mount of \"a\": want":          func(d *device.Device) { d.Edits.Mounts[0].HostPath = "a" },
		"mount \"/dev/nvidia0\" appear": func(d *device.Device) { d.Edits.Mounts[0].ContainerPath = "/dev/nvidia0" },
	} {
		d := healthy(t)
		spoil(&d)
		if err := d.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

const longName = resourceapi.QualifiedName("a23456789.b23456789.c23456789.d23456789.e23456789.f23456789.g23456789/x")

func fill(d *device.Device, n int) {
	for i := range n {
		d.Attributes[resourceapi.QualifiedName(fmt.Sprintf("a%d", i))] = device.Int(1)
	}
}

func TestSlices(t *testing.T) {
	var devices []device.Device
	for i := range 130 {
		devices = append(devices, device.Device{Kind: device.KindGPU, Name: fmt.Sprintf("gpu-%03d", (i*37)%130)})
	}
	cut := device.Slices(devices, device.MaxPerSlice)
	var sizes []int
	var names []string
	for _, run := range cut {
		sizes = append(sizes, len(run))
		for _, d := range run {
			names = append(names, d.Name)
		}
	}
	if diff := cmp.Diff([]int{64, 64, 2}, sizes); diff != "" {
		t.Error(diff)
	}
	for i, name := range names {
		if name != fmt.Sprintf("gpu-%03d", i) {
			t.Fatalf("device %d is %s", i, name)
		}
	}
	if devices[1].Name != "gpu-037" {
		t.Error("the argument was reordered")
	}
	if diff := cmp.Diff([][]resourceapi.Device{{}}, device.Slices(nil, 64)); diff != "" {
		t.Errorf("no devices: %s", diff)
	}
}

func TestResourceIsACopy(t *testing.T) {
	d := healthy(t)
	published := d.Resource()
	published.Attributes["more"] = device.Int(1)
	if _, ok := d.Attributes["more"]; ok {
		t.Error("the device's own attributes changed")
	}
	if published.Name != d.Name || len(published.Capacity) != 1 {
		t.Errorf("got %+v", published)
	}
}
