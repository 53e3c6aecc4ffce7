// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

// oneH100 is the least that makes an NVIDIA GPU.
const oneH100 = `
-- proc/devices --
Character devices:
195 nvidia
511 nvidia-uvm
-- proc/driver/nvidia/version --
NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.144.03  Mon Dec 30 17:44:08 UTC 2024
GCC version:  gcc version 12.3.0
-- proc/driver/nvidia/gpus/0000:1b:00.0/information --
Model: 		 NVIDIA H100
GPU UUID: 	 GPU-????????-????-????-????-????????????
Device Minor: 	 3
GPU Excluded:	 No
-- sys/bus/pci/devices/0000:1b:00.0/* --
vendor 0x10de
device 0x2330
class 0x030200
driver -> ../../drivers/nvidia
`

// oneMI300X is the least that makes an AMD GPU.
const oneMI300X = `
-- sys/bus/pci/devices/0000:05:00.0/* --
vendor 0x1002
device 0x74a1
class 0x120000
driver -> ../../drivers/amdgpu
drm/renderD128/dev 226:128
-- sys/class/kfd/kfd/dev --
509:0
`

// inMachine makes a host tree of a machine's text, changed by pairs of old and new.
func inMachine(t *testing.T, text string, change ...string) string {
	t.Helper()
	for i := 0; i < len(change); i += 2 {
		if !strings.Contains(text, change[i]) {
			t.Fatalf("no %q in the machine", change[i])
		}
	}
	machine, err := sim.Parse([]byte(strings.TrimLeft(strings.NewReplacer(change...).Replace(text), "\n")))
	check.Must(t, err)
	return expand(t, machine)
}

// summary is one line a device or problem.
func summary(inventory Inventory) []string {
	out := []string{}
	for _, d := range inventory.Devices {
		out = append(out, d.Name)
	}
	for _, p := range inventory.Problems {
		if p.Reason == ReasonAttributeUnreadable && strings.Contains(p.Message, "link /sys/bus/pci/devices/") {
			continue // These machines have directories where real ones have links.
		}
		if strings.Contains(p.Message, "invalid argument") {
			continue
		}
		out = append(out, p.Subject+" "+p.Reason)
	}
	return out
}

func TestNVIDIA(t *testing.T) {
	minor, wrong, mig := 3, 4, true
	answer := func(devices ...nvml.Device) func(context.Context) (nvml.Report, error) {
		return func(context.Context) (nvml.Report, error) {
			return nvml.Report{DriverVersion: "550.144.03", Devices: devices}, nil
		}
	}
	lacking := func(field string, dev nvml.Device) func(context.Context) (nvml.Report, error) {
		fault := nvml.Fault{Device: dev.PCIBusID, Field: field, Message: "ERROR_UNKNOWN"}
		return func(context.Context) (nvml.Report, error) {
			return nvml.Report{Devices: []nvml.Device{dev}, Faults: []nvml.Fault{fault}}, nil
		}
	}
	failing := func(err error) func(context.Context) (nvml.Report, error) {
		return func(context.Context) (nvml.Report, error) {
			const bus = "00000000:1B:00.0"
			return nvml.Report{Devices: []nvml.Device{{PCIBusID: bus}}, Faults: []nvml.Fault{
				nvml.NewFault(bus, "serial", err), nvml.NewFault(bus, "uuid", err),
			}}, nil
		}
	}
	nameless := func(err error) func(context.Context) (nvml.Report, error) {
		return func(context.Context) (nvml.Report, error) {
			return nvml.Report{
				Devices: []nvml.Device{{PCIBusID: "00000000:1C:00.0"}}, Faults: []nvml.Fault{nvml.NewFault("device 1", "", err)},
			}, nil
		}
	}
	const name, bus, address = "nvidia-0000-1b-00-0", "00000000:1B:00.0", "0000:1b:00.0"
	const driver = "/proc/driver/nvidia"
	hangs := func(context.Context) (nvml.Report, error) { return nvml.Report{}, context.DeadlineExceeded }
	// capabilities is the directory of a GPU instance in the kernel's tree.
	capabilities := func(gpu string) []string {
		const before = "-- sys/bus/pci/devices/0000:1b:00.0"
		return []string{before, "-- proc/driver/nvidia/capabilities/" + gpu + "/mig/gi1/access --\nDeviceFileMinor: 30\n" + before}
	}
	for title, tc := range map[string]struct {
		change []string
		nvml   func(context.Context) (nvml.Report, error)
		// plain says that NVML told before that the GPU has no MIG mode.
		plain bool
		want  []string
	}{
		"healthy":               {want: []string{name}},
		"older driver":          {change: []string{"195 nvidia\n", "195 nvidia-frontend\n"}, want: []string{name}},
		"no memory manager":     {change: []string{"511 nvidia-uvm\n", ""}, want: []string{"/proc/devices DriverNotLoaded"}},
		"no driver in devices":  {change: []string{"195 nvidia\n", ""}, want: []string{"/proc/devices DriverNotLoaded"}},
		"no minor":              {change: []string{"Device Minor", "Device Major"}, want: []string{address + " DeviceNumbersUnknown"}},
		"garbage minor":         {change: []string{" 3\n", " three\n"}, want: []string{address + " DeviceNumbersUnknown"}},
		"control node as minor": {change: []string{" 3\n", " 255\n"}, want: []string{address + " DeviceNumbersUnknown"}},
		"excluded":              {change: []string{"No\n", "Yes\n"}, want: []string{address + " Excluded"}},
		"nouveau": {
			change: []string{"drivers/nvidia", "drivers/nouveau"}, want: []string{address + " DriverNotSupported"},
		},
		"virtual function": {
			change: []string{"drivers/nvidia", "drivers/nvidia\nphysfn -> ../0000:1a:00.0"}, want: []string{},
		},
		"minor from NVML": {
			change: []string{"Device Minor", "Device Major"},
			nvml:   answer(nvml.Device{PCIBusID: bus, Minor: &minor}), want: []string{name},
		},
		"NVML contradicts": {
			nvml: answer(nvml.Device{PCIBusID: bus, Minor: &wrong}), want: []string{address + " DeviceNumbersUnknown"},
		},
		"NVML misses it": {nvml: answer(nvml.Device{PCIBusID: "00000000:1C:00.0"}), want: []string{address + " NotResponding"}},
		// No answer about a GPU is not the answer that MIG mode is off.
		"NVML sees none":                    {nvml: answer(), want: []string{address + " Partitioned"}},
		"MIG mode":                          {nvml: answer(nvml.Device{PCIBusID: bus, MIGMode: &mig}), want: []string{address + " Partitioned"}},
		"NVML hangs":                        {nvml: hangs, want: []string{driver + " NVMLUnavailable", address + " Partitioned"}},
		"NVML hangs, and it has no MIG":     {nvml: hangs, plain: true, want: []string{name, driver + " NVMLUnavailable"}},
		"NVML sees none, and it has no MIG": {nvml: answer(), plain: true, want: []string{name}},
		"the kernel shows an instance":      {change: capabilities("gpu3"), want: []string{address + " Partitioned"}},
		"the kernel shows one of another":   {change: capabilities("gpu4"), want: []string{name}},
		"NVML says that there is none": {
			change: capabilities("gpu3"), nvml: answer(nvml.Device{PCIBusID: bus, MIGMode: new(false)}), want: []string{name},
		},
		"NVML cannot read the memory": {
			nvml: lacking("memoryBytes", nvml.Device{PCIBusID: bus}), want: []string{name, address + " AttributeUnreadable"},
		},
		"nor the MIG mode": {
			nvml: lacking(nvml.FieldMIGMode, nvml.Device{PCIBusID: bus}),
			want: []string{address + " AttributeUnreadable", address + " Partitioned"},
		},
		"nor the instances in MIG mode": {
			nvml: lacking(nvml.FieldMIG, nvml.Device{PCIBusID: bus, MIGMode: &mig}),
			want: []string{address + " AttributeUnreadable", address + " Partitioned"},
		},
		"the GPU is lost while it is asked": {nvml: failing(nvml.ErrGone), want: []string{address + " NotResponding"}},
		"it lacks power":                    {nvml: failing(nvml.ErrNoPower), want: []string{address + " NotResponding"}},
		"the plugin may not ask": {
			nvml: failing(nvml.ErrForbidden), want: []string{name, address + " NotPermitted", address + " NotPermitted"},
		},
		"another GPU does not answer at all": {nvml: nameless(nvml.ErrGone), want: []string{address + " NotResponding"}},
		"the plugin may not open it":         {nvml: nameless(nvml.ErrForbidden), want: []string{address + " NotPermitted"}},
		"nor how it could be divided": {
			nvml: lacking(nvml.FieldMIG, nvml.Device{PCIBusID: bus, MIGMode: new(false)}),
			want: []string{name, address + " AttributeUnreadable"},
		},
	} {
		t.Run(title, func(t *testing.T) {
			opts := Options{NVML: tc.nvml, Whole: map[pci.Address]bool{{Bus: 0x1b}: tc.plain}}
			got := discoverIn(t, inMachine(t, oneH100, tc.change...), opts)
			if diff := cmp.Diff(tc.want, summary(got)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Problems)
			}
		})
	}
}

// TestUnlinked: GPUs of which only NVIDIA's library tells are named, and published where the admin says so, with the numbers of the host's
// nodes.
func TestUnlinked(t *testing.T) {
	zero, one := 0, 1
	gpu := func(bus string, minor *int) nvml.Device {
		return nvml.Device{PCIBusID: bus, Name: "NVIDIA RTX A2000", UUID: "GPU-" + bus, MemoryBytes: 4 << 30, Minor: minor}
	}
	if os.Getuid() != 0 {
		t.Skip("device nodes take root")
	}
	const sandbox = "char dev/nvidia0 195:0\nchar dev/nvidiactl 195:255\nchar dev/nvidia-uvm 511:0\n"
	const wsl = "char dev/dxg 10:125\n"
	const seen = `
-- sys/bus/pci/devices/0000:01:00.0/* --
vendor 0x10de
device 0x2531
class 0x030200
`
	const first, second = "0000:01:00.0", "0000:02:00.0"
	a, b := gpu("00000000:01:00.0", &zero), gpu("00000000:02:00.0", nil)
	for title, tc := range map[string]struct {
		machine string
		report  nvml.Report
		err     error
		publish bool
		want    []string
		nodes   []string
	}{
		"in a sandbox": {
			machine: sandbox,
			report:  nvml.Report{Devices: []nvml.Device{a}}, want: []string{first + " NoDriverLink"},
		},
		"in a sandbox with PCI": {
			machine: sandbox + seen,
			report:  nvml.Report{Devices: []nvml.Device{a}}, want: []string{first + " NoDriverLink"},
		},
		"published": {
			machine: sandbox + seen, report: nvml.Report{Devices: []nvml.Device{a}}, publish: true, want: []string{"nvidia-0000-01-00-0"},
			nodes: []string{"/dev/nvidia-uvm 511:0", "/dev/nvidia0 195:0", "/dev/nvidiactl 195:255"},
		},
		"another minor": {
			machine: sandbox, report: nvml.Report{Devices: []nvml.Device{gpu("00000000:01:00.0", &one)}}, publish: true,
			want: []string{first + " DeviceNumbersUnknown"},
		},
		"no minor": {
			machine: sandbox, report: nvml.Report{Devices: []nvml.Device{b}}, publish: true, want: []string{second + " DeviceNumbersUnknown"},
		},
		"WSL": {
			machine: wsl, report: nvml.Report{Devices: []nvml.Device{b}}, publish: true, want: []string{"nvidia-0000-02-00-0"},
			nodes: []string{"/dev/dxg 10:125"},
		},
		"WSL with two": {
			machine: wsl, report: nvml.Report{Devices: []nvml.Device{a, b}}, publish: true,
			want: []string{first + " DeviceNumbersUnknown", second + " DeviceNumbersUnknown"},
		},
		"divided": {
			machine: sandbox, report: nvml.Report{Devices: []nvml.Device{{PCIBusID: a.PCIBusID, Minor: &zero, MIGMode: new(true)}}}, publish: true,
			want: []string{first + " Partitioned"},
		},
		"lost": {
			machine: sandbox, publish: true, want: []string{first + " NotResponding"},
			report: nvml.Report{Devices: []nvml.Device{a}, Faults: []nvml.Fault{nvml.NewFault(a.PCIBusID, "name", nvml.ErrGone)}},
		},
		"a node is left over": {machine: sandbox + seen, err: nvml.ErrNotLoaded, publish: true, want: []string{first + " DriverNotLoaded"}},
		"no node": {
			machine: seen, report: nvml.Report{Devices: []nvml.Device{a}}, publish: true, want: []string{first + " DriverNotLoaded"},
		},
		"beside one with a driver": {
			machine: sandbox + oneH100, want: []string{"nvidia-0000-1b-00-0", first + " NoDriverLink"},
			report: nvml.Report{Devices: []nvml.Device{{PCIBusID: "00000000:1B:00.0"}, a}},
		},
	} {
		t.Run(title, func(t *testing.T) {
			asked := 0
			got := discoverIn(t, inMachine(t, tc.machine), Options{PublishUnlinked: tc.publish, NVML: func(context.Context) (nvml.Report, error) {
				asked++
				return tc.report, tc.err
			}})
			if diff := cmp.Diff(tc.want, summary(got)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Problems)
			}
			if asked > 1 {
				t.Errorf("the library was asked %d times", asked)
			}
			var nodes []string
			for _, d := range got.Devices {
				for _, n := range d.Edits.Nodes {
					nodes = append(nodes, fmt.Sprintf("%s %d:%d", n.Path, n.Major, n.Minor))
				}
			}
			if tc.nodes != nil {
				if diff := cmp.Diff(tc.nodes, nodes); diff != "" {
					t.Errorf("nodes (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestNVIDIAWithoutLibrary(t *testing.T) {
	got := discoverIn(t, inMachine(t, oneH100), Options{}).Devices[0]
	if version := got.Attributes[device.AttributeDriverVersion].VersionValue; version == nil || *version != "550.144.3" {
		t.Errorf("driver version %v", version)
	}
	if _, ok := got.Attributes[device.AttributeUUID]; ok {
		t.Error("the driver's placeholder was published as a UUID")
	}
	want := []container.Node{
		{Path: "/dev/nvidia-uvm", Major: 511, Minor: 0, Permissions: "rw"},
		{Path: "/dev/nvidia-uvm-tools", Major: 511, Minor: 1, Permissions: "rw"},
		{Path: "/dev/nvidia3", Major: 195, Minor: 3, Permissions: "rw"},
		{Path: "/dev/nvidiactl", Major: 195, Minor: 255, Permissions: "rw"},
	}
	if diff := cmp.Diff(want, got.Edits.Nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

// TestNVMLIsNotAskedInVain: a child process for nothing at every look would be a waste.
func TestNVMLIsNotAskedInVain(t *testing.T) {
	discoverIn(t, inMachine(t, oneMI300X), Options{NVML: func(context.Context) (nvml.Report, error) {
		t.Error("NVML was asked on a machine without NVIDIA GPUs")
		return nvml.Report{}, nil
	}})
}

func TestAMD(t *testing.T) {
	const name, address = "amd-0000-05-00-0", "0000:05:00.0"
	const topology = "/sys/class/kfd/kfd/topology/nodes AttributeUnreadable"
	for title, tc := range map[string]struct {
		change []string
		want   []string
	}{
		"healthy, no topology": {want: []string{name, topology}},
		"no compute driver": {
			change: []string{"sys/class/kfd/kfd/dev", "sys/class/kfd/version"}, want: []string{"/sys/class/kfd/kfd/dev DriverNotLoaded"},
		},
		"garbage compute driver": {change: []string{"509:0", "kfd"}, want: []string{"/sys/class/kfd/kfd/dev DeviceNumbersUnknown"}},
		"no render node": {
			change: []string{"renderD128", "controlD64"}, want: []string{topology, address + " DeviceNumbersUnknown"},
		},
		"partitioned": {
			change: []string{"vendor", "current_compute_partition CPX\nvendor"}, want: []string{topology, address + " Partitioned"},
		},
		"name too long": {
			change: []string{"vendor", "product_name " + strings.Repeat("x", 65) + "\nvendor"},
			want:   []string{name, topology, address + " AttributeInvalid"},
		},
		"negative memory": {
			change: []string{"vendor", "mem_info_vram_total -1\nvendor"}, want: []string{name, topology, address + " AttributeUnreadable"},
		},
	} {
		t.Run(title, func(t *testing.T) {
			got := discoverIn(t, inMachine(t, oneMI300X, tc.change...), Options{})
			if diff := cmp.Diff(tc.want, summary(got)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Problems)
			}
		})
	}
}

// TestSameNumbers gives two GPUs one render node: neither may be handed out.
func TestSameNumbers(t *testing.T) {
	single, _, _ := strings.Cut(oneMI300X, "-- sys/class/kfd")
	twin := strings.ReplaceAll(single, "0000:05:00.0", "0000:06:00.0")
	got := discoverIn(t, inMachine(t, oneMI300X+twin), Options{})
	if len(got.Devices) != 0 {
		t.Errorf("%d devices published", len(got.Devices))
	}
}

func TestGFXName(t *testing.T) {
	for version, want := range map[uint64]string{90402: "gfx942", 90010: "gfx90a", 90500: "gfx950", 110001: "gfx1101", 0: ""} {
		if got := gfxName(version); got != want {
			t.Errorf("gfxName(%d) = %q, want %q", version, got, want)
		}
	}
}

func TestStaleNodeIsAProblem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making device nodes needs root")
	}
	got := discoverIn(t, inMachine(t, "char dev/kfd 510:0\nchar dev/dri/renderD128 226:128\n"+oneMI300X[1:]), Options{})
	want := []string{"amd-0000-05-00-0", "/dev/kfd NodeMismatch", "/sys/class/kfd/kfd/topology/nodes AttributeUnreadable"}
	if diff := cmp.Diff(want, summary(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestOpenableMachines: simulated nodes with other numbers are no problem as long as the tree agrees with itself.
func TestOpenableMachines(t *testing.T) {
	for _, name := range []string{"8xh100-sxm", "8xmi300x", "2xintel-gpu", "2xa100-2xn6000", "4xfpga"} {
		machine := parseMachine(t, "../../test/machines/"+name+".txtar")
		want := discoverIn(t, expand(t, machine), machineOptions())
		machine, err := machine.Openable()
		check.Must(t, err)
		got := discoverIn(t, expand(t, machine), machineOptions())
		if len(got.Problems) > 0 || len(got.Devices) != len(want.Devices) {
			t.Errorf("%s: %d devices, want %d; %v", name, len(got.Devices), len(want.Devices), got.Problems)
		}
		for _, d := range got.Devices {
			for _, n := range d.Edits.Nodes {
				if n.Major != 4 || n.Minor == 0 || n.Minor > 63 {
					t.Errorf("%s: %s has %d:%d, want a virtual terminal", d.Name, n.Path, n.Major, n.Minor)
				}
			}
		}
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := discoverWith(t, ctx, inMachine(t, oneH100), Options{})
	if diff := cmp.Diff([]string{"/ Cancelled"}, summary(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestHostDevices(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"mnt/disks/ssd0", "mnt/disks/SSD_1", "mnt/other/ssd0", "elsewhere/ssd9"} {
		check.Must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	check.Must(t, os.Symlink("../../elsewhere/ssd9", filepath.Join(dir, "mnt/disks/ssd9")),
		os.WriteFile(filepath.Join(dir, "mnt/disks/file"), nil, 0o644))
	capacity := func(name string) (int64, error) {
		if strings.HasSuffix(name, "SSD_1") {
			return 0, errors.New("statfs: input/output error")
		}
		return 1 << 40, nil
	}
	for title, tc := range map[string]struct {
		devices []HostDevice
		want    []string
	}{
		"disks": {
			devices: []HostDevice{{Name: "ssd", Directories: []string{"/mnt/disks/*", "/mnt/disks/ssd*"}}},
			want: []string{
				"ssd-ssd-1-92ed8cf1", "ssd-ssd0", "/mnt/disks/SSD_1 AttributeUnreadable",
				"/mnt/disks/file HostPathUnusable", "/mnt/disks/ssd9 HostPathUnusable",
			},
		},
		"same name": {
			devices: []HostDevice{{Name: "ssd", Directories: []string{"/mnt/*/ssd0"}}},
			want:    []string{"/mnt/disks/ssd0 DuplicateName", "/mnt/other/ssd0 DuplicateName"},
		},
		"nothing there": {devices: []HostDevice{{Name: "ssd", Directories: []string{"/srv/*"}}}, want: []string{}},
		"not a device": {
			devices: []HostDevice{{Name: "x", CharDevices: []string{"/mnt/disks/file"}}},
			want:    []string{"/mnt/disks/file HostPathUnusable"},
		},
		"wrong glob":       {devices: []HostDevice{{Name: "x", Directories: []string{"relative/*"}}}, want: []string{"x Invalid"}},
		"nothing is named": {devices: []HostDevice{{Name: "x"}}, want: []string{"x Invalid"}},
	} {
		t.Run(title, func(t *testing.T) {
			got := discoverIn(t, dir, Options{HostDevices: tc.devices, Capacity: capacity})
			if diff := cmp.Diff(tc.want, summary(got)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Problems)
			}
		})
	}
}

// TestHostMemory: the memory of the machine is given to no pod, whatever the node is called.
func TestHostMemory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may make device nodes")
	}
	dir := t.TempDir()
	check.Must(t, os.Mkdir(filepath.Join(dir, "dev"), 0o755))
	check.Must(t, unix.Mknod(filepath.Join(dir, "dev/harmless"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1))))
	check.Must(t, unix.Mknod(filepath.Join(dir, "dev/ng0n1"), unix.S_IFCHR|0o600, int(unix.Mkdev(240, 0))))
	check.Must(t, unix.Mknod(filepath.Join(dir, "dev/root"), unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0))))
	got := discoverIn(t, dir, Options{HostDevices: []HostDevice{{Name: "x", CharDevices: []string{"/dev/*"}}}})
	if len(got.Devices) > 0 || len(got.Problems) != 3 {
		t.Errorf("found %v, problems %v", got.Devices, got.Problems)
	}
	for i, want := range []string{"gives control over the whole node", "gives control over the whole node", "want a character device"} {
		if i < len(got.Problems) && !strings.Contains(got.Problems[i].Message, want) {
			t.Errorf("problem %q, want %q", got.Problems[i].Message, want)
		}
	}
}

func TestHostCharDevice(t *testing.T) {
	got := discoverIn(t, "/", Options{HostDevices: []HostDevice{{Name: "null", CharDevices: []string{"/dev/nul[l]"}}}})
	for _, d := range got.Devices {
		if d.Kind != device.KindHost {
			continue
		}
		want := container.Edits{Nodes: []container.Node{{Path: "/dev/null", Major: 1, Minor: 3, Permissions: "rw"}}}
		place, _ := os.Readlink("/sys/dev/char/1:3") // nothing where /sys is not mounted
		if diff := cmp.Diff(want, d.Edits); diff != "" || d.Name != "null-null" || d.Place.Device != place {
			t.Errorf("%s (-want +got):\n%s", d.Name, diff)
		}
		return
	}
	t.Errorf("not found: %v", got)
}

func TestDeviceNameIsALabel(t *testing.T) {
	h := HostDevice{Name: strings.Repeat("a", maxHostName)}
	for _, base := range []string{"x", "X", "x.y", strings.Repeat("z", 200), "___", "é", "-a-"} {
		d := device.Device{Kind: device.KindHost, Name: h.deviceName("mnt/" + base)}
		if err := d.Validate(); err != nil {
			t.Errorf("%q: %v", base, err)
		}
	}
}

func FuzzParsers(f *testing.F) {
	f.Add("Character devices:\n195 nvidia\n\nBlock devices:\n8 sd\n")
	f.Add("simd_count 1216\nsimd_per_cu 4\n")
	f.Fuzz(func(t *testing.T, text string) {
		for name, major := range sysfs.ParseCharMajors(text) {
			if name == "" || major < 1 || major > 4095 {
				t.Errorf("%q has major %d", name, major)
			}
		}
		if properties, err := parseProperties(text); err == nil {
			computeUnits(properties)
			gfxName(properties["gfx_target_version"])
		}
		if version := nvml.KernelVersion(text); strings.ContainsAny(version, " \t\n") {
			t.Errorf("version %q", version)
		}
	})
}

// TestSameDirectory: no two devices of the configuration have one directory, whichever globs matched it.
func TestSameDirectory(t *testing.T) {
	root := t.TempDir()
	check.Must(t, os.MkdirAll(filepath.Join(root, "mnt/disks/ssd0/sub"), 0o755), os.MkdirAll(filepath.Join(root, "mnt/disks/ssd1"), 0o755))
	got := discoverIn(t, root, Options{HostDevices: []HostDevice{
		{Name: "scratch", Directories: []string{"/mnt/disks/*"}},
		{Name: "fast", Directories: []string{"/mnt/disks/ssd0"}},
		{Name: "in", Directories: []string{"/mnt/disks/ssd0/*"}},
	}})
	want := []string{
		"scratch-ssd1", "/mnt/disks/ssd0 SameDirectory", "/mnt/disks/ssd0 SameDirectory", "/mnt/disks/ssd0/sub SameDirectory",
	}
	if diff := cmp.Diff(want, summary(got)); diff != "" {
		t.Errorf("-want +got:\n%s\n%v", diff, got.Problems)
	}
}

// TestMountedTwice: a directory that is mounted at a second path, whole or in part, is no second device.
func TestMountedTwice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	root := t.TempDir()
	for _, name := range []string{"ssd0/in", "ssd1", "ssd2", "ssd3"} {
		check.Must(t, os.MkdirAll(filepath.Join(root, "mnt/disks", name), 0o755))
	}
	at := func(name string) string { return filepath.Join(root, "mnt/disks", name) }
	for from, to := range map[string]string{"ssd0/in": "ssd1", "ssd2": "ssd2"} {
		check.Must(t, unix.Mount(at(from), at(to), "", unix.MS_BIND, ""))
		t.Cleanup(func() { check.Must(t, unix.Unmount(at(to), unix.MNT_DETACH)) })
	}
	got := discoverIn(t, root, Options{HostDevices: []HostDevice{{Name: "disk", Directories: []string{"/mnt/disks/*"}}}})
	want := []string{"disk-ssd2", "disk-ssd3", "/mnt/disks/ssd0 SameDirectory", "/mnt/disks/ssd1 SameDirectory"}
	if diff := cmp.Diff(want, summary(got)); diff != "" {
		t.Errorf("-want +got:\n%s\n%v", diff, got.Problems)
	}
}

// TestHangingDirectory: a directory whose disk or server does not answer is withheld, and holds up the look at no other device for longer
// than the limit. It is looked at again once the look before has ended.
func TestHangingDirectory(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"mnt/disks/ssd0", "mnt/disks/ssd1", "srv/nfs"} {
		check.Must(t, os.MkdirAll(filepath.Join(root, name), 0o755))
	}
	check.HangingMount(t, filepath.Join(root, "srv/nfs"))
	const limit = 5 * time.Second
	opts := Options{Locked: sysfs.NewReads(clock.RealClock{}, limit), HostDevices: []HostDevice{
		{Name: "disk", Directories: []string{"/mnt/disks/*"}}, {Name: "nfs", Directories: []string{"/srv/*", "/srv/nfs/*"}},
	}}
	for range 2 {
		check.Ends(t, "Discover", func() {
			got := discoverIn(t, root, opts)
			want := []string{"disk-ssd0", "disk-ssd1", "/srv/nfs HostPathUnusable", "/srv/nfs/* ListingFailed"}
			if diff := cmp.Diff(want, summary(got)); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, got.Problems)
			}
		})
	}
}

// TestDriverVersionText: whatever a driver prints as its version is published, and two that are not the same can be told apart.
func TestDriverVersionText(t *testing.T) {
	machine, err := os.ReadFile("../../test/machines/8xmi300x.txtar")
	check.Must(t, err)
	long := strings.Repeat("9.", 40) + "1"
	for _, tc := range []struct{ raw, version, text string }{
		{"6.12.12", "6.12.12", ""},
		{"6.19.14.31400000", "6.19.14+31400000", "6.19.14.31400000"},
		{"6.19.14.31400001", "6.19.14+31400001", "6.19.14.31400001"},
		{"nightly 20261101", "", "nightly 20261101"},
		{long, "9.9.9+56dfdec8", long[:55] + "+56dfdec8"},
	} {
		got := discoverIn(t, inMachine(t, string(machine), "amdgpu/version 6.12.12", "amdgpu/version "+tc.raw), Options{})
		if len(got.Devices) != 8 {
			t.Fatalf("%s: %d devices, want 8: %v", tc.raw, len(got.Devices), got.Problems)
		}
		for _, d := range got.Devices {
			version := device.StringOf(d.Attributes[device.AttributeDriverVersion])
			text := device.StringOf(d.Attributes[device.AttributeDriverVersionText])
			if version != tc.version || text != tc.text {
				t.Errorf("%s: version %q and text %q, want %q and %q", tc.raw, version, text, tc.version, tc.text)
			}
		}
	}
}

// TestPlaceOf: a directory is where the scan found it until another has its name, and so is a character device.
func TestPlaceOf(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"mnt/a", "mnt/b"} {
		check.Must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	found := discoverIn(t, dir, Options{HostDevices: []HostDevice{{Name: "disk", Directories: []string{"/mnt/*"}}}}).Devices
	null := Options{HostDevices: []HostDevice{{Name: "null", CharDevices: []string{"/dev/nul[l]"}}}}
	found = append(found, discoverIn(t, "/", null).Devices...)
	found = slices.DeleteFunc(found, func(d device.Device) bool { return d.Kind != device.KindHost })
	if len(found) != 3 {
		t.Fatalf("found %v", found)
	}
	now := func(d *device.Device) container.Place {
		t.Helper()
		root := dir
		if len(d.Edits.Nodes) > 0 {
			root = "/"
		}
		tree, err := sysfs.Open(root)
		check.Must(t, err)
		defer tree.Close()
		place, err := PlaceOf(tree, d)
		check.Must(t, err)
		return place
	}
	for i := range found {
		if got := now(&found[i]); got != found[i].Place {
			t.Errorf("%s is at %v, found at %v", found[i].Name, got, found[i].Place)
		}
	}
	exchange := filepath.Join(dir, "mnt")
	check.Must(t, unix.Renameat2(unix.AT_FDCWD, exchange+"/a", unix.AT_FDCWD, exchange+"/b", unix.RENAME_EXCHANGE))
	for i := range found[:2] {
		if d := &found[i]; d.Place != (container.Place{}) && !d.Place.Moved(now(d)) {
			t.Errorf("%s has another's name and is still at %v", d.Name, d.Place)
		}
	}
}
