// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"slices"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// vendorDrivers decides where each vendor's driver is taken from. As with device nodes, the requests that containers use together say the
// same: two versions of one library in a container would be a broken one.
func (r *resolver) vendorDrivers() {
	var vendors []v1alpha1.DriverVendor
	for _, d := range r.drivers {
		vendors = append(vendors, d.driver.Vendor)
	}
	slices.Sort(vendors)
	for _, vendor := range slices.Compact(vendors) {
		all := slices.DeleteFunc(slices.Clone(r.drivers), func(d driving) bool { return d.driver.Vendor != vendor })
		for _, key := range receivers(all, func(d driving) []at { return d.to }) {
			r.given[key].Drivers = append(r.given[key].Drivers, r.driverOf(key, all))
		}
	}
}

// driverOf is the latest of those that are given to the request or to one that is used together with it.
func (r *resolver) driverOf(key at, all []driving) Driver {
	var out Driver
	for _, d := range slices.Backward(all) {
		switch {
		case !r.grouped(key, d.to):
		case out.Vendor == "":
			out = Driver{PresetDriver: d.driver, From: d.from}
		case out.PresetDriver != d.driver:
			out.Overrode = append(out.Overrode, d.from)
		}
	}
	slices.Reverse(out.Overrode)
	return out
}
