// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	mockserver "github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/nvml"
)

// newServer is go-nvml's DGX A100 with the answers that it lacks.
func newServer() *mockserver.Server {
	server := dgxa100.New()
	for i, dev := range server.Devices {
		gpu := dev.(*mockserver.Device)
		gpu.UUID = "GPU-0000000" + string(rune('0'+i))
		gpu.GetPciInfoFunc = func() (gonvml.PciInfo, gonvml.Return) {
			info := gonvml.PciInfo{}
			for j, c := range "0000" + gpu.PciBusID {
				info.BusId[j] = int8(c)
			}
			return info, gonvml.SUCCESS
		}
		gpu.GetSerialFunc = func() (string, gonvml.Return) { return "", gonvml.ERROR_NOT_SUPPORTED }
		gpu.GetVbiosVersionFunc = func() (string, gonvml.Return) { return "92.00.45.00.03", gonvml.SUCCESS }
		gpu.GetNumGpuCoresFunc = func() (int, gonvml.Return) { return 6912, gonvml.SUCCESS }
		gpu.GetAddressingModeFunc = func() (gonvml.DeviceAddressingMode, gonvml.Return) {
			return gonvml.DeviceAddressingMode{Value: uint32(gonvml.DEVICE_ADDRESSING_MODE_HMM)}, gonvml.SUCCESS
		}
		gpu.GetGpuFabricInfoFunc = func() (gonvml.GpuFabricInfo, gonvml.Return) {
			return gonvml.GpuFabricInfo{}, gonvml.ERROR_NOT_SUPPORTED
		}
	}
	return server
}

func TestGather(t *testing.T) {
	server := newServer()
	server.Devices = server.Devices[:4]
	server.DeviceGetCountFunc = func() (int, gonvml.Return) { return 4, gonvml.SUCCESS }
	server.Devices[1].(*mockserver.Device).MigMode = gonvml.DEVICE_MIG_ENABLE
	server.Devices[2].(*mockserver.Device).GetMemoryInfoFunc = func() (gonvml.Memory, gonvml.Return) {
		return gonvml.Memory{}, gonvml.ERROR_UNKNOWN
	}
	get := server.DeviceGetHandleByIndexFunc
	server.DeviceGetHandleByIndexFunc = func(i int) (gonvml.Device, gonvml.Return) {
		if i == 3 {
			return nil, gonvml.ERROR_GPU_IS_LOST
		}
		return get(i)
	}
	got, err := gather(server)
	if err != nil {
		t.Fatal(err)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	// Without the size of its memory a GPU's profiles have no names, so that nothing of them is told.
	if division := got.Devices[2].MIG; division != nil || !slices.Contains(got.UnknownMIG(), got.Devices[2].PCIBusID) {
		t.Errorf("device 2 is divided %+v, unknown of %v; want that it is not known", division, got.UnknownMIG())
	}
	for i, profiles := range []int{7, 7} {
		division := got.Devices[i].MIG
		if division == nil || division.Current != (i == 1) || len(division.Profiles) != profiles || len(division.Instances) > 0 {
			t.Errorf("device %d is divided %+v, want %d profiles", i, division, profiles)
		}
		got.Devices[i].MIG = nil // the mock's profiles have the wrong ids; the simulator's are compared
	}
	gpu := func(i int, mig bool) nvml.Device {
		return nvml.Device{
			PCIBusID: "00000000:0" + string(rune('0'+i)) + ":00.0", UUID: "GPU-0000000" + string(rune('0'+i)),
			Name: "Mock NVIDIA A100-SXM4-40GB", Brand: "Nvidia", Architecture: "Ampere", ComputeCapability: "8.0",
			MemoryBytes: 40960 << 20, Multiprocessors: 108, Minor: &i, VBIOSVersion: "92.00.45.00.03", MIGMode: &mig,
			AddressingMode: "HMM",
		}
	}
	want := nvml.Report{
		DriverVersion: got.DriverVersion, CUDADriverVersion: got.CUDADriverVersion,
		Devices: []nvml.Device{gpu(0, false), gpu(1, true), gpu(2, false)},
		Faults: []nvml.Fault{
			{Device: "00000000:02:00.0", Field: "memoryBytes", Message: "ERROR_UNKNOWN"},
			{Device: "device 3", Message: "the GPU is gone: ERROR_GPU_IS_LOST", Status: 9},
		},
	}
	want.Devices[2].MemoryBytes = 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.DriverVersion == "" || !strings.Contains(got.CUDADriverVersion, ".") {
		t.Errorf("versions %q and %q", got.DriverVersion, got.CUDADriverVersion)
	}
}

// TestGatherFromOldLibrary has a library without the newer functions: they must not be called, for that would end the process.
func TestGatherFromOldLibrary(t *testing.T) {
	server := newServer()
	server.ExtensionsFunc = func() gonvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return errors.New("undefined symbol") }}
	}
	for _, dev := range server.Devices {
		gpu := dev.(*mockserver.Device)
		gpu.GetMigModeFunc, gpu.GetArchitectureFunc, gpu.GetNumGpuCoresFunc = nil, nil, nil // The mock panics when they are called.
		gpu.GetAddressingModeFunc, gpu.GetGpuFabricInfoFunc = nil, nil
	}
	got, err := gather(server)
	if err != nil || len(got.Devices) != 8 || got.Devices[0].MIGMode != nil || got.Devices[0].ComputeCapability != "8.0" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestFindLibrary(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	shared := bytes.Clone(self[:4096])
	shared[16] = 3 // e_type is ET_DYN
	clear(shared[40:48])
	clear(shared[58:64]) // no sections
	for name, tc := range map[string]struct {
		make func(dir string) error
		want string
		text string
	}{
		"absent": {make: func(string) error { return nil }, text: "looked below"},
		"directory": {
			make: func(dir string) error { return os.Mkdir(filepath.Join(dir, libraryName), 0o755) },
			text: "not a regular file",
		},
		"text": {
			make: func(dir string) error { return os.WriteFile(filepath.Join(dir, libraryName), []byte("hello"), 0o644) },
			text: "not a shared library",
		},
		"outside": {
			make: func(dir string) error { return os.Symlink("/proc/self/exe", filepath.Join(dir, libraryName)) },
			text: "looked below",
		},
		"linked": {
			make: func(dir string) error {
				return errors.Join(os.WriteFile(filepath.Join(dir, "libnvidia-ml.so.580.95.05"), shared, 0o644),
					os.Symlink("libnvidia-ml.so.580.95.05", filepath.Join(dir, libraryName)))
			},
			want: "usr/lib64/libnvidia-ml.so.580.95.05",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "usr/lib64")
			if err := errors.Join(os.MkdirAll(dir, 0o755), tc.make(dir)); err != nil {
				t.Fatal(err)
			}
			got, err := findLibrary(root)
			if tc.want != "" && (err != nil || got != filepath.Join(root, tc.want)) {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
			if tc.want == "" && (!errors.Is(err, nvml.ErrNoLibrary) || !strings.Contains(err.Error(), tc.text)) {
				t.Errorf("got %v, want %q", err, tc.text)
			}
		})
	}
}

func TestRun(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want int
	}{
		{[]string{"-driver-root", t.TempDir()}, nvml.ExitNoLibrary},
		{[]string{"-library", "/nowhere/libnvidia-ml.so.1"}, nvml.ExitNoLibrary},
		{[]string{"-frobnicate"}, 2},
		{[]string{"extra"}, 2},
		{[]string{"watch", "-interval", "0s"}, 2},
		{[]string{"watch", "extra"}, 2},
		{[]string{"-driver-root", t.TempDir(), "watch", "-interval", "1s"}, nvml.ExitNoLibrary},
	} {
		var stdout, stderr bytes.Buffer
		if got := Run(tc.args, &stdout, &stderr, Load); got != tc.want || stdout.Len() > 0 || stderr.Len() == 0 {
			t.Errorf("run %q: exit %d, want %d; printed %q and %q", tc.args, got, tc.want, &stdout, &stderr)
		}
	}
}
