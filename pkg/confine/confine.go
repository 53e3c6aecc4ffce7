// SPDX-License-Identifier: Apache-2.0

// Package confine takes rights away from the kubelet plugin and from the programs that it starts. A container that may make mounts which
// the node sees, or open the node's devices, must be privileged, which gives it every capability and no filter of system calls. The plugin
// needs few of them. Which, says a table by feature.
//
// Become confines the whole process: it confines one thread and executes the program again, since Go starts threads before main. Child
// confines a program that the plugin starts further: vendors' code that reads what a tenant or a device says.
package confine

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Capabilities is a set of capabilities, one bit each, as in /proc/PID/status.
type Capabilities uint64

// Set returns the set of some capabilities, unix.CAP_CHOWN and the like.
func Set(capabilities ...int) Capabilities {
	var s Capabilities
	for _, c := range capabilities {
		s |= 1 << c
	}
	return s
}

// Has reports whether a set has all of another.
func (s Capabilities) Has(other Capabilities) bool { return other&^s == 0 }

// String writes a set as /proc/PID/status does.
func (s Capabilities) String() string { return fmt.Sprintf("%016x", uint64(s)) }

// Names lists the capabilities as Kubernetes writes them, sorted; those that no feature needs by their numbers.
func (s Capabilities) Names() []string {
	names := capabilityNames()
	out := []string{}
	for rest := uint64(s); rest != 0; rest &= rest - 1 {
		number := bits.TrailingZeros64(rest)
		out = append(out, cmp.Or(names[number], strconv.Itoa(number)))
	}
	slices.Sort(out)
	return out
}

func (s Capabilities) list() string { return cmp.Or(strings.Join(s.Names(), " "), "none") }

// capabilityNames are the names of the capabilities that the table has.
func capabilityNames() map[int]string {
	return map[int]string{
		unix.CAP_CHOWN: "CHOWN", unix.CAP_DAC_OVERRIDE: "DAC_OVERRIDE", unix.CAP_DAC_READ_SEARCH: "DAC_READ_SEARCH",
		unix.CAP_FOWNER: "FOWNER", unix.CAP_FSETID: "FSETID", unix.CAP_KILL: "KILL", unix.CAP_MKNOD: "MKNOD", unix.CAP_SETPCAP: "SETPCAP",
		unix.CAP_SETGID: "SETGID", unix.CAP_SETUID: "SETUID",
		unix.CAP_SYS_ADMIN: "SYS_ADMIN", unix.CAP_SYS_CHROOT: "SYS_CHROOT", unix.CAP_SYS_PTRACE: "SYS_PTRACE",
	}
}

// Feature is a part of the plugin that can be switched on.
type Feature string

// The features that need anything beyond what every program needs.
const (
	// HostDirectories empties directories that belong to anyone, and gives them back to their owner.
	HostDirectories Feature = "hostDirectories"
	// PresetMounts mounts directories of the host and memory for claims.
	PresetMounts Feature = "presetMounts"
	// KernelCaches mounts images and overlays for claims.
	KernelCaches Feature = "kernelCaches"
	// NVIDIA runs NVIDIA's library in a child.
	NVIDIA Feature = "nvidia"
	// PCI binds GPUs to VFIO drivers, makes virtual functions and switches modes.
	PCI Feature = "pci"
	// Sharing sets the compute mode and the time slice of GPUs that claims share.
	Sharing Feature = "sharing"
	// MPSMemory mounts memory in which claims have the directories of their MPS daemons.
	MPSMemory Feature = "mpsMemory"
	// XRT runs XRT's program with the host's root as its root directory.
	XRT Feature = "xrt"
)

// Needs is what a process may do beyond what every program may.
type Needs struct {
	Capabilities Capabilities
	// SystemCalls are allowed in addition to those of every program.
	SystemCalls []string
}

// table says what each feature needs. Programming through DFL and fpga_manager needs nothing: the nodes and attributes belong to root.
func table() map[Feature]Needs {
	mounts := []string{"fsconfig", "fsmount", "fsopen", "mount_setattr", "move_mount", "open_tree", "umount2"}
	return map[Feature]Needs{
		// A workload may make its files anyone's, and the directory itself, which gets back its owner and a mode with set-group-id.
		HostDirectories: {Capabilities: Set(unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID)},
		// An allowed directory may let only its owner search it.
		PresetMounts: {Capabilities: Set(unix.CAP_SYS_ADMIN, unix.CAP_DAC_READ_SEARCH), SystemCalls: mounts},
		// overlayfs acts with the rights of the process that mounted it: it copies files of any owner up, with owner and mode.
		KernelCaches: {
			Capabilities: Set(unix.CAP_SYS_ADMIN, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID),
			SystemCalls:  mounts,
		},
		// If the driver is loaded after the plugin's container started, the library makes the device nodes in the container's /dev.
		NVIDIA: {Capabilities: nvmlKeeps},
		// Before a driver loses a GPU, the open files of all processes tell whether one of them uses it.
		PCI: {Capabilities: Set(unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH)},
		// NVIDIA's driver asks for SYS_ADMIN when a mode of the whole GPU is set. Children that do that keep it; none may mount or trace.
		Sharing:   {Capabilities: settingKeeps},
		MPSMemory: {Capabilities: Set(unix.CAP_SYS_ADMIN), SystemCalls: mounts},
		// SETPCAP takes SYS_CHROOT from the program that was started with it.
		XRT: {Capabilities: Set(unix.CAP_SYS_CHROOT, unix.CAP_SETPCAP), SystemCalls: []string{"chroot"}},
	}
}

// nvmlKeeps is what fettle-nvml keeps.
const nvmlKeeps = Capabilities(1 << unix.CAP_MKNOD)

// settingKeeps is what NVIDIA's driver asks for when a compute mode or a time slice is set: its RM controls for both are privileged, which
// means capable(CAP_SYS_ADMIN) (open-gpu-kernel-modules, NV_IS_SUSER in nv-linux.h).
const settingKeeps = Capabilities(1 << unix.CAP_SYS_ADMIN)

// NeedsOf returns what some features need together.
func NeedsOf(features ...Feature) (Needs, error) {
	known := table()
	var out Needs
	for _, f := range features {
		needs, ok := known[f]
		if !ok {
			return Needs{}, fmt.Errorf("feature %q: want one of %s", f, strings.Join(featureNames(known), ", "))
		}
		out.Capabilities |= needs.Capabilities
		out.SystemCalls = append(out.SystemCalls, needs.SystemCalls...)
	}
	slices.Sort(out.SystemCalls)
	out.SystemCalls = slices.Compact(out.SystemCalls)
	return out, nil
}

func featureNames(known map[Feature]Needs) []string {
	var names []string
	for _, f := range slices.Sorted(maps.Keys(known)) {
		names = append(names, string(f))
	}
	return names
}
