// SPDX-License-Identifier: Apache-2.0

// Package vendors is the table of the makers of devices. Whatever loops over vendors reads it: discovery, DeviceClasses, presets, conflicts
// with device plugins, changes of drivers, recordings of machines, and, by a generated file, the chart. It has plain values only.
package vendors

import (
	"fmt"
	"slices"

	"github.com/fettle-dev/fettle/pkg/device"
)

// Vendor is one maker of devices.
type Vendor struct {
	// Name is the value of the attribute vendor. Names of the vendor's PCI devices begin with it.
	Name string
	// IDs are the identifiers of the vendor's PCI functions.
	IDs []uint16
	// GPUs says which PCI functions are the vendor's GPUs. Nil: the vendor has none.
	GPUs *GPUs
	// Accelerators are its cards in the kernel's class of accelerators. One that is not here is found all the same once a driver has
	// registered it: the rows tell what a card lacks that has no driver.
	Accelerators []Accelerators
	// XRT is which of IDs its cards for XRT have. 0: it has none.
	XRT uint16
	// Types are the values of the attribute type of its devices.
	Types []string
	// Plugins are how the names of extended resources begin by which device plugins allocate the vendor's devices, by kind.
	Plugins map[device.Kind][]string
	// Nodes are how the paths of the device files begin by which a process holds the vendor's drivers. A vendor without any has no driver that
	// is changed while the plugin runs.
	Nodes []string
	// Record is what a recording of a machine has beside what it has of all PCI functions.
	Record Record
}

// GPUs says which PCI functions are a vendor's GPUs.
type GPUs struct {
	ID uint16
	// Classes are the PCI base classes and subclasses.
	Classes []uint16
	// Drivers are the kernel drivers whose GPUs are handed out.
	Drivers []string
}

// Accelerators are accelerators of one kernel driver.
type Accelerators struct {
	// Vendor is one of the vendor's identifiers.
	Vendor uint16
	// Devices are the PCI device identifiers.
	Devices []uint16
	Driver  string
}

// Record is what of a vendor is recorded.
type Record struct {
	// Modules are kernel modules.
	Modules []string
	// Files are patterns of files in the directory of a PCI function, Nodes patterns of files in /dev.
	Files, Nodes []string
}

// The classes that GPUs have (PCI Code and ID Assignment Specification, base classes 03 and 12).
const (
	ClassVGA         = 0x0300
	Class3D          = 0x0302
	ClassDisplay     = 0x0380
	ClassAccelerator = 0x1200
)

// The types of whole devices.
const (
	gpu         = string(device.KindGPU)
	fpga        = string(device.KindFPGA)
	accelerator = string(device.KindAccelerator)
)

// All returns the table. The chart lists vendors in its order.
func All() []Vendor { return slices.Concat(makersOfGPUs(), otherMakers()) }

// makersOfGPUs are the rows of vendors with GPUs, and whatever else these make.
func makersOfGPUs() []Vendor {
	return []Vendor{
		{
			Name: "nvidia", IDs: []uint16{0x10de},
			GPUs: &GPUs{
				ID: 0x10de, Classes: []uint16{ClassVGA, Class3D, ClassDisplay, ClassAccelerator}, Drivers: []string{"nvidia"},
			},
			Types:   []string{gpu, device.TypeMIG, device.TypeVFIO},
			Plugins: map[device.Kind][]string{device.KindGPU: {"nvidia.com/gpu", "nvidia.com/mig-"}}, // NVIDIA/k8s-device-plugin
			Nodes:   []string{"/dev/nvidia"},
			Record: Record{
				Modules: []string{"nvidia", "nvidia_uvm", "nvidia_drm"},
				Nodes:   []string{"nvidia*", "nvidia-caps/*", "nvidia-caps-imex-channels/*"},
			},
		},
		{
			Name: "amd", IDs: []uint16{0x1002, 0x1022, 0x10ee}, XRT: 0x10ee,
			GPUs: &GPUs{
				ID: 0x1002, Classes: []uint16{ClassVGA, Class3D, ClassDisplay, ClassAccelerator}, Drivers: []string{"amdgpu"},
			},
			Accelerators: []Accelerators{{Vendor: 0x1022, Devices: []uint16{0x1502, 0x17f0}, Driver: "amdxdna"}},
			Types:        []string{gpu, device.TypePartition, device.TypeVF, device.TypeVFIO, fpga, accelerator},
			// ROCm/k8s-device-plugin, the names of partitions by compute and memory mode
			Plugins: map[device.Kind][]string{
				device.KindGPU: {"amd.com/gpu", "amd.com/spx_", "amd.com/dpx_", "amd.com/tpx_", "amd.com/qpx_", "amd.com/cpx_"},
			},
			Nodes: []string{"/dev/kfd", "/dev/dri/", "/dev/xclmgmt", "/dev/xfpga/", "/dev/accel/"},
			Record: Record{
				Modules: []string{"amdgpu", "amdxdna", "xclmgmt", "xocl"}, Nodes: []string{"kfd", "xclmgmt*", "dpu*"},
				Files: []string{
					"product_name", "product_number", "serial_number", "unique_id", "vbios_version", "mem_info_*_total", "mem_info_vram_vendor",
					"current_*_partition", "available_*_partition", "fw_version/*_fw_version", "vbnv", "fw_version",
				},
			},
		},
		{
			Name: "intel", IDs: []uint16{0x8086},
			// Intel's processing accelerators are its FPGAs and NPUs, not GPUs.
			GPUs: &GPUs{ID: 0x8086, Classes: []uint16{ClassVGA, Class3D, ClassDisplay}, Drivers: []string{"i915", "xe"}},
			Accelerators: []Accelerators{
				{Vendor: 0x8086, Devices: []uint16{0x643e, 0x7d1d, 0xad1d, 0xb03e, 0xd71d, 0xfd3e}, Driver: "intel_vpu"},
			},
			Types: []string{gpu, device.TypeVF, device.TypeVFIO, fpga, accelerator},
			// intel/intel-device-plugins-for-kubernetes
			Plugins: map[device.Kind][]string{device.KindGPU: {"gpu.intel.com/"}, device.KindAccelerator: {"npu.intel.com/"}},
			Nodes:   []string{"/dev/dri/", "/dev/accel/", "/dev/dfl"},
			Record: Record{
				Modules: []string{"i915", "xe", "dfl_pci", "intel_vpu"},
				Files: []string{
					"tile*/physical_vram_size_bytes", "tile*/gt*/freq*/max_freq", "drm/card*/lmem_total_bytes", "drm/card*/gt/gt*/id",
					"drm/card*/gt/gt*/rps_max_freq_mhz",
				},
			},
		},
	}
}

// otherMakers are the rows of all other vendors.
func otherMakers() []Vendor {
	return []Vendor{
		{
			Name: "habana", IDs: []uint16{0x1da3},
			Accelerators: []Accelerators{
				{Vendor: 0x1da3, Devices: []uint16{0x0001, 0x1000, 0x1010, 0x1020, 0x1060}, Driver: "habanalabs"},
			},
			Types:   []string{accelerator},
			Plugins: map[device.Kind][]string{device.KindAccelerator: {"habana.ai/gaudi"}}, // Intel's plugin for Gaudi
			Nodes:   []string{"/dev/accel/"},
			Record:  Record{Modules: []string{"habanalabs"}, Files: []string{"device_type", "cpucp_ver", "status"}},
		},
		{
			Name: "qualcomm", IDs: []uint16{0x17cb},
			Accelerators: []Accelerators{{Vendor: 0x17cb, Devices: []uint16{0xa080, 0xa100, 0xa110}, Driver: "qaic"}},
			Types:        []string{accelerator},
			Plugins:      map[device.Kind][]string{device.KindAccelerator: {"qualcomm.com/qaic"}},
			Nodes:        []string{"/dev/accel/"},
			Record:       Record{Modules: []string{"qaic"}, Files: []string{"mhi0/serial_number"}},
		},
		// Makers of cards with FPGAs alone.
		{Name: "advantech", IDs: []uint16{0x13fe}, XRT: 0x13fe, Types: []string{fpga}},
		{Name: "amazon", IDs: []uint16{Amazon}, XRT: Amazon, Types: []string{fpga}},
		{Name: "arista", IDs: []uint16{0x3475}, XRT: 0x3475, Types: []string{fpga}},
		{Name: "silicom", IDs: []uint16{0x1c2c}, Types: []string{fpga}},
		// Accelerators that are part of the machine, whose maker sysfs does not tell.
		{Name: Platform, Types: []string{accelerator}},
		// The administrator's directories and character devices.
		{Name: Host, Types: []string{string(device.KindHost)}},
	}
}

// Host is the vendor of devices that the administrator names, Platform that of accelerators that are part of the machine.
const (
	Host     = "host"
	Platform = "platform"
)

// Amazon makes much else that looks like an accelerator, among it FPGAs that XRT has nothing to do with.
const Amazon = 0x1d0f

// Find returns the row of a vendor. The second result is false if there is none.
func Find(name string) (Vendor, bool) {
	for _, v := range All() {
		if v.Name == name {
			return v, true
		}
	}
	return Vendor{}, false
}

// NameOf returns the name of the vendor with a PCI identifier: the identifier itself for one that the table does not have.
func NameOf(id uint16) string {
	for _, v := range All() {
		if slices.Contains(v.IDs, id) {
			return v.Name
		}
	}
	return fmt.Sprintf("pci%04x", id)
}

// AcceleratorOf returns the row of the accelerators with PCI identifiers. The second result is false if the table has none.
func AcceleratorOf(id, deviceID uint16) (Accelerators, bool) {
	for _, v := range All() {
		for _, a := range v.Accelerators {
			if a.Vendor == id && slices.Contains(a.Devices, deviceID) {
				return a, true
			}
		}
	}
	return Accelerators{}, false
}

// WithGPUs returns the vendors that make GPUs.
func WithGPUs() []Vendor { return with(func(v Vendor) bool { return v.GPUs != nil }) }

// WithNodes returns the vendors whose drivers are held by device files.
func WithNodes() []Vendor { return with(func(v Vendor) bool { return len(v.Nodes) > 0 }) }

func with(has func(Vendor) bool) []Vendor {
	return slices.DeleteFunc(All(), func(v Vendor) bool { return !has(v) })
}

// Names returns the names of vendors, sorted.
func Names(of []Vendor) []string {
	names := make([]string, 0, len(of))
	for _, v := range of {
		names = append(names, v.Name)
	}
	slices.Sort(names)
	return names
}

// MakesXRT returns the vendor whose cards for XRT have a PCI identifier.
func MakesXRT(id uint16) (name string, ok bool) {
	for _, v := range All() {
		if v.XRT == id && id != 0 {
			return v.Name, true
		}
	}
	return "", false
}
