// SPDX-License-Identifier: Apache-2.0

// Package guest is the first process of the virtual machine: it makes a root of the host's files and runs one program there.
package guest

// Job says what the machine runs. The host puts it into the initramfs.
type Job struct {
	// Args are the program and its arguments, Env is its environment, and Dir is where it runs.
	Args []string `json:"args"`
	Env  []string `json:"env"`
	Dir  string   `json:"dir"`
	// Modules is the directory with the kernel's modules.
	Modules string `json:"modules"`
	// Load names the modules that the program needs.
	Load []string `json:"load"`
	// Cache, where it is set, is a directory that gets a file system of its own, in memory, for all but bin and tools: etcd and the
	// container runtime can keep nothing on an overlay.
	Cache string `json:"cache,omitempty"`
	// Results are directories that are kept for the host where the program fails.
	Results []string `json:"results,omitempty"`
}

const (
	// JobFile is where the initramfs has the job, and ModulesDir has the modules to load from the initramfs, in the order of names.
	JobFile    = "/job.json"
	ModulesDir = "/modules"

	// RootTag and OutTag are the mount tags of what the host shares: its root, read-only, and a directory for results.
	RootTag = "root"
	OutTag  = "out"

	// StatusFile is where the directory for results gets the exit status of the program. It is written last.
	StatusFile = "status"
	// KernelLog is where it gets what the kernel said.
	KernelLog = "dmesg"

	// Marker is the word of the kernel's command line that tells a program that it runs in the machine.
	Marker = "fettle.vm"
	// Terminal is what the program's output goes to.
	Terminal = "ttyS1"

	// Path is where programs are looked for.
	Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

	// OutDir is where programs find the directory for results.
	OutDir = "/run/out"
)

// RootModules are what the kernel must load from the initramfs to reach the host's files. Some may be built in.
func RootModules() []string { return []string{"virtio_pci", "9pnet_virtio", "9p", "overlay"} }
