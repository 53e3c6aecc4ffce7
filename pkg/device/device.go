// SPDX-License-Identifier: Apache-2.0

// Package device is the vendor-neutral model of one allocatable device: what it is called, what the scheduler may know of it,
// and what a container needs to use it. Discovery produces these values; everything after it only reads them.
package device

import (
	"cmp"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/mountpath"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/fpga"
)

// Device is one allocatable device of this node. Its Name is stable over reboots and module reloads: it derives from the PCI
// address (or the host path), never from a minor or card number.
type Device struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	// Attributes are published as they are. A name without a domain belongs to the driver's own.
	Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes,omitempty"`
	Capacity   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity,omitempty"`
	// Shared says that several claims may have the device at once, each a part of its capacity (KEP-5075).
	Shared bool `json:"shared,omitempty"`
	// Edits are what a container that is given this device needs. They are never published.
	Edits container.Edits `json:"edits"`
	// Place is where a directory or a character device of the configuration is, on this machine only. It is the zero value of every other
	// device.
	Place container.Place `json:"-"`
	// Card names the counters that the device shares with others which are parts of the same physical device, or the whole of it. It is the
	// name of the physical device. Empty: the device shares nothing. Consumes is what the device takes of them.
	Card     string                         `json:"card,omitempty"`
	Consumes map[string]resourceapi.Counter `json:"consumes,omitempty"`
	// Parent is the name of the physical device that this one is a part of, or its form for virtual machines. Empty: it is whole.
	Parent string `json:"parent,omitempty"`
	// Region is how an FPGA's region is programmed. It is nil for every other device, never published and never given to a container.
	Region *fpga.Region `json:"region,omitempty"`
}

// Card has the counters of a physical device whose parts can be allocated.
type Card struct {
	Name     string                         `json:"name"`
	Counters map[string]resourceapi.Counter `json:"counters"`
}

// MaxPerSlice is the most devices that Fettle puts into one slice. The API allows 128, but only 64 once any of them has a taint,
// and a taint may come later.
const MaxPerSlice = 64

// Resource is what is published of the device: all but its edits. The maps are the result's own.
func (d Device) Resource() resourceapi.Device {
	out := resourceapi.Device{Name: d.Name, Attributes: maps.Clone(d.Attributes), Capacity: maps.Clone(d.Capacity)}
	if d.Shared {
		out.AllowMultipleAllocations = new(true)
	}
	if d.Card != "" {
		out.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: d.Card, Counters: maps.Clone(d.Consumes)}}
	}
	return out
}

// Compare orders devices by kind and then by name. The scheduler prefers the devices that come first.
func Compare(a, b Device) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// Slices cuts the devices of one pool into runs of at most limit (at least 1), in the order of Compare, so that the same devices
// give the same slices. No devices give one empty slice: a pool without a slice would look as if the driver were not there.
func Slices(devices []Device, limit int) [][]resourceapi.Device {
	sorted := slices.SortedFunc(slices.Values(devices), Compare)
	if len(sorted) == 0 {
		return [][]resourceapi.Device{{}}
	}
	var cut [][]resourceapi.Device
	for run := range slices.Chunk(sorted, max(limit, 1)) {
		published := make([]resourceapi.Device, 0, len(run))
		for _, d := range run {
			published = append(published, d.Resource())
		}
		cut = append(cut, published)
	}
	return cut
}

// SharesDirectory reports whether two devices, of which there are the edits and the places, are the same directory of the host, or one is
// inside the other.
func SharesDirectory(a, b container.Edits, at, other container.Place) bool {
	return at.Overlaps(other) || slices.ContainsFunc(a.Mounts, func(one container.Mount) bool {
		return slices.ContainsFunc(b.Mounts, func(other container.Mount) bool {
			return mountpath.Within(one.HostPath, other.HostPath) || mountpath.Within(other.HostPath, one.HostPath)
		})
	})
}
