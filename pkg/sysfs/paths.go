// SPDX-License-Identifier: Apache-2.0

package sysfs

import "path"

// The directories and files of a host tree that other packages read. All are relative to the tree's root, as io/fs wants them;
// no other package spells them. The kernel documents them in Documentation/ABI and Documentation/filesystems/proc.rst.
const (
	// PCIDevices has one link for each PCI function, named by its address.
	PCIDevices = "sys/bus/pci/devices"
	// PCI is the PCI bus: what its functions are found, removed and reset by.
	PCI = "sys/bus/pci"
	// PCIDrivers has one directory for each driver of PCI functions, with its files bind and unbind.
	PCIDrivers = "sys/bus/pci/drivers"
	// PlatformDevices has one link for each device without a bus that can be enumerated.
	PlatformDevices = "sys/bus/platform/devices"
	// Devices has the directories of all devices, to which the links of buses and classes lead.
	Devices = "sys/devices"
	// ClassDRM has one link for each DRM node: card0, renderD128.
	ClassDRM = "sys/class/drm"
	// ClassAccel has one link for each device of the kernel's class of accelerators: accel0.
	ClassAccel = "sys/class/accel"
	// ClassKFD is AMD's compute device; its dev attribute has the numbers of /dev/kfd.
	ClassKFD = "sys/class/kfd/kfd"
	// KFDTopology has one numbered directory for each processor that AMD's compute driver knows.
	KFDTopology = "sys/class/kfd/kfd/topology/nodes"
	// ClassVFIO has one link for each IOMMU group of which a driver for virtual machines holds a device; its dev attribute has the numbers of
	// /dev/vfio/GROUP.
	ClassVFIO = "sys/class/vfio"
	// ClassFPGARegion has one link for each region of an FPGA: region0.
	ClassFPGARegion = "sys/class/fpga_region"
	// ClassFPGAManager has one link for each chip or region that the kernel can program: fpga0.
	ClassFPGAManager = "sys/class/fpga_manager"
	// ClassFPGABridge has one link for each bridge between an FPGA's region and the rest: br0.
	ClassFPGABridge = "sys/class/fpga_bridge"
	// IOMMUGroups has one numbered directory for each group of devices that an IOMMU cannot tell apart.
	IOMMUGroups = "sys/kernel/iommu_groups"
	// ClassMisc has one link for each node of the kernel's miscellaneous drivers.
	ClassMisc = "sys/class/misc"
	// DeviceTree is the tree that the firmware described the machine with; machines with ACPI have none.
	DeviceTree = "sys/firmware/devicetree/base"
	// FirmwareSearchPath has the directory that the kernel looks for firmware in first; empty where there is none.
	FirmwareSearchPath = "sys/module/firmware_class/parameters/path"
	// Firmware is the directory that the kernel looks for firmware in otherwise.
	Firmware = "lib/firmware"
	// SELinuxEnforce is there where the kernel labels files.
	SELinuxEnforce = "sys/fs/selinux/enforce"
	// Modules has one directory for each loaded kernel module.
	Modules = "sys/module"
	// ClassBlock has one link for each disk and partition.
	ClassBlock = "sys/class/block"
	// KernelModules has one directory for each kernel's modules, named by its release.
	KernelModules = "lib/modules"
	// Proc has one directory for each process, named by its id.
	Proc = "proc"
	// ProcSwaps lists the devices and files that memory is swapped to.
	ProcSwaps = "proc/swaps"
	// ProcDevices lists the majors of the loaded drivers.
	ProcDevices = "proc/devices"
	// ProcDriverNVIDIA is what NVIDIA's kernel module tells about itself and its GPUs.
	ProcDriverNVIDIA = "proc/driver/nvidia"
	// ProcNVIDIACapabilities has a file for each right that the driver of NVIDIA gives by a device node, of which MIG instances have one each.
	ProcNVIDIACapabilities = "proc/driver/nvidia/capabilities"
	// ProcNVIDIAMIGMinors has the minors of the capabilities of all MIG instances that there could be.
	ProcNVIDIAMIGMinors = "proc/driver/nvidia-caps/mig-minors"
	// ProcOSRelease has the kernel's release, as uname -r prints it.
	ProcOSRelease = "proc/sys/kernel/osrelease"
	// DevChar has a link for each character device, named by its numbers, to its directory.
	DevChar = "sys/dev/char"
	// Dev is the host's directory of device nodes.
	Dev = "dev"
)

// PCIDevice is the directory of the PCI function with this address.
func PCIDevice(address string) string { return path.Join(PCIDevices, address) }

// PCIDriver is the directory of a driver of PCI functions.
func PCIDriver(name string) string { return path.Join(PCIDrivers, name) }

// Module is the directory of a loaded kernel module.
func Module(name string) string { return path.Join(Modules, name) }

// HostPath spells a name of the tree as the absolute path a person knows: "dev/kfd" as "/dev/kfd".
func HostPath(name string) string { return path.Join("/", name) }
