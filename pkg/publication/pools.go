// SPDX-License-Identifier: Apache-2.0

// Package publication decides what a node publishes: the pools and slices of its devices, and those of a machine that is not there yet.
//
//	Content   what may be allocated now; Pools cuts it into slices
//	Machine   a machine without claims; Content finds what its plugin would publish
//	Objects   the ResourceSlices as the API server has them
package publication

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
)

// Content is what the scheduler may allocate of a node.
type Content struct {
	// Devices are of all kinds, without those that are withheld.
	Devices []device.Device
	// Cards have the counters of divided devices, and Counters is the form of slices in which the API server keeps counters.
	Cards    []device.Card
	Counters partition.Form
	// BindLate lists the kinds of devices whose pods are bound only after the plugin has confirmed it.
	BindLate []device.Kind
}

// Pool is a pool of devices, in as many slices as they need.
type Pool struct {
	Name   string
	Slices []Slice
}

// Slice is what a ResourceSlice says of devices. Devices is nil beside counters that have a slice of their own, as the API wants it.
type Slice struct {
	SharedCounters []resourceapi.CounterSet
	Devices        []resourceapi.Device
}

// Pools returns one pool for each kind that has devices, in a fixed order, so that equal hardware gives equal bytes. A node without devices
// has one empty pool, which says that the driver runs and found nothing.
func (c *Content) Pools(node string) []Pool {
	var pools []Pool
	for _, kind := range device.Kinds() {
		parts := c.slices(kind)
		if len(parts) == 0 {
			continue
		}
		if slices.Contains(c.BindLate, kind) {
			for i := range parts {
				addBindingConditions(parts[i].Devices, kind)
			}
		}
		pools = append(pools, Pool{Name: device.PoolName(node, kind), Slices: parts})
	}
	if len(pools) == 0 {
		empty := Slice{Devices: []resourceapi.Device{}}
		pools = []Pool{{Name: device.PoolName(node, device.KindGPU), Slices: []Slice{empty}}}
	}
	return pools
}

// slices cuts the devices of a kind into slices, with the counters of the cards that they are of. A card that the form has no room for is
// left out; DivideInto leaves such a card whole.
func (c *Content) slices(kind device.Kind) []Slice {
	var devices []device.Device
	for i := range c.Devices {
		if c.Devices[i].Kind == kind {
			devices = append(devices, c.Devices[i])
		}
	}
	cut, _ := partition.Slices(c.Cards, devices, c.Counters)
	out := make([]Slice, len(cut))
	for i := range cut {
		out[i].SharedCounters = cut[i].SharedCounters
		if cut[i].Devices == nil {
			continue
		}
		out[i].Devices = make([]resourceapi.Device, len(cut[i].Devices))
		for j := range cut[i].Devices {
			out[i].Devices[j] = cut[i].Devices[j].Resource()
		}
	}
	return out
}

// BindingConditions returns two conditions on a claim's devices. The scheduler waits for one of them before it binds the pod (KEP-5007):
// the pod's data is ready, or has failed. Each kind has its own, since a claim with devices of two kinds waits for both.
func BindingConditions(kind device.Kind) (ready, failed string) {
	what := "Bitstream"
	if kind == device.KindGPU {
		what = "KernelCaches"
	}
	return v1alpha1.GroupName + "/" + what + "Ready", v1alpha1.GroupName + "/" + what + "Failed"
}

// addBindingConditions marks devices whose pods are bound only after the plugin sets a condition.
func addBindingConditions(devices []resourceapi.Device, kind device.Kind) {
	ready, failed := BindingConditions(kind)
	for i := range devices {
		devices[i].BindsToNode = new(true)
		devices[i].BindingConditions = []string{ready}
		devices[i].BindingFailureConditions = []string{failed}
	}
}
