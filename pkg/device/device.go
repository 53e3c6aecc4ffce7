// SPDX-License-Identifier: Apache-2.0

// Package device is the vendor-neutral model of one allocatable device: what it is called, what the scheduler may know of it,
// and what a container needs to use it. Discovery produces these values; everything after it only reads them.
package device

import (
	resourceapi "k8s.io/api/resource/v1"
)

// Kind says which of the node's pools a device belongs to. There is one pool a kind, so that a change of one kind does not
// renumber the pools of the others.
type Kind string

// The kinds of device, each the last segment of its pool's name.
const (
	KindGPU  Kind = "gpu"
	KindFPGA Kind = "fpga"
	KindHost Kind = "host"
)

// Device is one allocatable device of this node. Its Name is stable over reboots and module reloads: it derives from the PCI
// address (or the host path), never from a minor or card number.
type Device struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	// Attributes are published as they are. A name without a domain belongs to the driver's own.
	Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes,omitempty"`
	Capacity   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity,omitempty"`
	// Edits are what a container that is given this device needs. They are never published.
	Edits Edits `json:"edits"`
	// Region is how an FPGA's region is programmed. It is nil for every other device, never published and never given to a container.
	Region *Region `json:"region,omitempty"`
}

// Region is where what programs an FPGA's region lies on the host. All names are relative to the host's tree, and good for as long as
// the device stays where it is: whoever acts on one looks it up anew.
type Region struct {
	// Backend says which of the members below is there: one of the Backend constants.
	Backend string `json:"backend"`
	// Card is the same for all regions that are programmed through one engine, one at a time: its PCI address, or the name of its platform
	// device.
	Card string `json:"card"`
	// InterfaceID says which bitstreams fit: 32 hexadecimal digits.
	InterfaceID string         `json:"interfaceID"`
	DFL         *DFLRegion     `json:"dfl,omitempty"`
	Manager     *ManagerRegion `json:"manager,omitempty"`
	XRT         *XRTRegion     `json:"xrt,omitempty"`
}

// Mute says that the region never tells what it holds.
func (r *Region) Mute() bool { return r.Manager != nil }

// The ways of programming a region.
const (
	BackendDFL = "dfl"
	// BackendFPGAManager is AMD's kernel with its attributes.
	BackendFPGAManager = "fpga_manager"
	BackendXRT         = "xrt"
)

// ManagerRegion is a chip that the kernel's fpga_manager programs.
type ManagerRegion struct {
	// Platform is the name of the manager's platform device.
	Platform string `json:"platform"`
	// Partial: images are for a part of the chip, and the rest goes on.
	Partial bool `json:"partial,omitempty"`
}

// XRTRegion is a card with XRT's drivers: the PCI addresses of the function that programs and of the one that pods use.
type XRTRegion struct {
	Management string `json:"management"`
	User       string `json:"user"`
}

// DFLRegion is a port of a card with a device feature list, see Documentation/fpga/dfl.rst.
type DFLRegion struct {
	// Port is the kernel's name, "dfl-port.0", and PortID the port's number on its engine.
	Port   string `json:"port"`
	PortID uint32 `json:"portID"`
	// Node and EngineNode are the device nodes of the port and of the engine (FME) that programs it.
	Node       string `json:"node"`
	EngineNode string `json:"engineNode"`
	// Attributes is the port's directory, Compat that of its region's compat_id, Manager that of the engine's fpga_manager.
	Attributes string `json:"attributes"`
	Compat     string `json:"compat"`
	Manager    string `json:"manager"`
}

// Edits are the changes to a container, in the terms of the Container Device Interface, that give it a device.
type Edits struct {
	Nodes  []Node  `json:"nodes,omitempty"`
	Mounts []Mount `json:"mounts,omitempty"`
	// Env are NAME=VALUE. They replace what the image and the pod set.
	Env []string `json:"env,omitempty"`
	// Hooks run in their order, before the container's program.
	Hooks []Hook `json:"hooks,omitempty"`
}

// Empty says that there is nothing to edit.
func (e *Edits) Empty() bool { return len(e.Nodes)+len(e.Mounts)+len(e.Env)+len(e.Hooks) == 0 }

// Hook is a program of the host that the runtime runs in the container's namespaces, with the container's root as it will be and the
// host's still in reach (createContainer of the OCI runtime specification).
type Hook struct {
	// Path is the program's on the host, Args those of its command line, the first its name.
	Path string   `json:"path"`
	Args []string `json:"args"`
}

// Node is a character device node made inside the container. The numbers come from the host tree's dev attribute (or
// /proc/devices), so the node need not exist on the host's /dev.
type Node struct {
	// Path is absolute, in the container: /dev/dri/renderD128.
	Path  string `json:"path"`
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
	// Permissions are the device cgroup's: "rw" for workloads, "r" for an admin's look.
	Permissions string `json:"permissions"`
}

// Mount is a bind mount of a directory or file of the host.
type Mount struct {
	HostPath      string `json:"hostPath"`
	ContainerPath string `json:"containerPath"`
	ReadOnly      bool   `json:"readOnly,omitempty"`
	// Alone leaves out what is mounted below it on the host.
	Alone bool `json:"alone,omitempty"`
	// Follows has the container see what is mounted below it on the host later.
	Follows bool `json:"follows,omitempty"`
}
