// SPDX-License-Identifier: Apache-2.0

// Package conflict finds what keeps a claim from devices that the scheduler gave it: another claim that holds the same thing by another
// name, another tenant on the same chip, a device that became another one, and mounts that hide each other. It reads what the records of
// claims say and changes nothing.
package conflict

import (
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// Machine is what a check needs of the result of a scan.
type Machine interface {
	Find(kind device.Kind, name string) (device.Device, bool)
	All() []device.Device
	// Card returns the counters of a card whose parts are among the devices.
	Card(name string) (device.Card, bool)
	// RegionsOf returns the names of the regions of an FPGA's card, including those that the machine does not show now.
	RegionsOf(card string) []string
}

// Check looks for other claims in the way of one.
type Check struct {
	Store   *record.Store
	Machine Machine
	// Node and BootID are those of the engine.
	Node, BootID string
}

func (c Check) pool(d device.Device) string { return device.PoolName(c.Node, d.Kind) }
