// SPDX-License-Identifier: Apache-2.0

package usage

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/device"
)

// shares says what claims leave of a device that several may have.
func (d *Device) shares(published *resourceapi.Device, known bool) {
	if published.AllowMultipleAllocations == nil || !*published.AllowMultipleAllocations {
		return
	}
	total := published.Capacity[device.CapacityShares].Value
	d.Shares = &Shares{Total: total.Value(), Left: total.Value()}
	if !known {
		return
	}
	d.Shares.LeftOf = map[resourceapi.QualifiedName]resource.Quantity{}
	for name, capacity := range published.Capacity {
		if counted(&capacity) {
			d.Shares.LeftOf[name] = capacity.Value.DeepCopy()
		}
	}
	for _, c := range d.Claims {
		for name, amount := range c.Granted {
			if left, ok := d.Shares.LeftOf[name]; ok {
				left.Sub(amount)
				d.Shares.LeftOf[name] = left
			}
		}
	}
	for name, left := range d.Shares.LeftOf {
		capacity := published.Capacity[name]
		smallest := least(&capacity)
		d.Shares.full = d.Shares.full || left.Cmp(smallest) < 0
	}
	left := d.Shares.LeftOf[device.CapacityShares]
	d.Shares.Left = max(left.Value(), 0)
}

// counted says whether a share takes something of a capacity. What is not counted has 0 as the one amount.
func counted(c *resourceapi.DeviceCapacity) bool {
	smallest := least(c)
	return smallest.Sign() > 0
}

// least is what a share takes at least of a capacity.
func least(c *resourceapi.DeviceCapacity) resource.Quantity {
	switch p := c.RequestPolicy; {
	case p == nil:
		return c.Value
	case p.ValidRange != nil && p.ValidRange.Min != nil:
		return *p.ValidRange.Min
	case len(p.ValidValues) > 0:
		return p.ValidValues[0]
	case p.Default != nil:
		return *p.Default
	}
	return c.Value
}

// open says whether a further claim could get a share: the smallest that the device has.
func (s *Shares) open() bool { return s != nil && s.LeftOf != nil && s.Left > 0 && !s.full }

// overcommitted says whether claims were granted more of a capacity than there is. Shares do not count: a device that is closed to further
// claims has one, whichever number has claims.
func (d *Device) overcommitted() bool {
	if d.Shares == nil {
		return false
	}
	for name, left := range d.Shares.LeftOf {
		if name != device.CapacityShares && left.Sign() < 0 {
			return true
		}
	}
	return false
}
