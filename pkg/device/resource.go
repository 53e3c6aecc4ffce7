// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// MaxPerSlice is the most devices that Fettle puts into one slice. The API allows 128, but only 64 once any of them has a taint,
// and a taint may come later.
const MaxPerSlice = 64

// Resource is what is published of the device: all but its edits. The maps are the result's own.
func (d Device) Resource() resourceapi.Device {
	return resourceapi.Device{Name: d.Name, Attributes: maps.Clone(d.Attributes), Capacity: maps.Clone(d.Capacity)}
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
