// SPDX-License-Identifier: Apache-2.0

// Package device is the vendor-neutral model of one allocatable device: what it is called, what the scheduler may know of it,
// and what a container needs to use it. Discovery produces these values; everything after it only reads them.
package device

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/fpga"
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

// Kinds are all kinds, sorted. A node publishes a pool for each, an empty one too: it says that the driver runs and found nothing.
func Kinds() []Kind { return []Kind{KindFPGA, KindGPU, KindHost} }

// Device is one allocatable device of this node. Its Name is stable over reboots and module reloads: it derives from the PCI
// address (or the host path), never from a minor or card number.
type Device struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	// Attributes are published as they are. A name without a domain belongs to the driver's own.
	Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes,omitempty"`
	Capacity   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity,omitempty"`
	// Edits are what a container that is given this device needs. They are never published.
	Edits container.Edits `json:"edits"`
	// Region is how an FPGA's region is programmed. It is nil for every other device, never published and never given to a container.
	Region *fpga.Region `json:"region,omitempty"`
}
