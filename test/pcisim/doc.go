// SPDX-License-Identifier: Apache-2.0

// Package pcisim is a machine whose PCI functions react as the kernel's do: drivers bind and unbind, IOMMU groups get their VFIO nodes,
// virtual functions appear and vanish, and AMD's GPUs divide themselves. It models drivers/base/bus.c and driver.c (bind, unbind,
// driver_override), drivers/pci/iov.c (sriov_numvfs), drivers/vfio/{group,device_cdev}.c (nodes), and the partition modes of amdgpu with
// amdkfd's topology.
//
// A machine is a host tree as text (FromTree), of which the sys is served through FUSE over that of the expanded tree, by a process of its
// own (Main), because a program that waits in the kernel for itself hangs. One process gives it commands as JSON lines: faults, what other
// programs do, and the trace of all writes.
//
// What differs from a kernel: a driver's own files (drm, sound, nvme, net) come back with the numbers that they had, drivers match the
// functions that they held at first, and no device node does anything when it is opened.
package pcisim
