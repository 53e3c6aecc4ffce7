// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"slices"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// vendorDrivers decides for each vendor where its driver is taken from. As with device nodes, requests that a container uses together get
// the same one: two versions of a library would break the container.
func (r *resolver) vendorDrivers() {
	var vendors []v1alpha1.DriverVendor
	for _, d := range r.drivers {
		vendors = append(vendors, d.driver.Vendor)
	}
	slices.Sort(vendors)
	for _, vendor := range slices.Compact(vendors) {
		all := slices.DeleteFunc(slices.Clone(r.drivers), func(d driverEntry) bool { return d.driver.Vendor != vendor })
		for _, key := range requestsIn(all, func(d driverEntry) []requestKey { return d.to }) {
			r.given[key].Drivers = append(r.given[key].Drivers, r.lastDriver(key, all))
		}
	}
}

// lastDriver returns the last driver that is given to the request, or to a request that a container uses together with it.
func (r *resolver) lastDriver(key requestKey, all []driverEntry) Driver {
	var out Driver
	for _, d := range slices.Backward(all) {
		switch {
		case !r.inGroup(key, d.to):
		case out.Vendor == "":
			out = Driver{PresetDriver: d.driver, From: d.from}
		case out.PresetDriver != d.driver:
			out.Overrode = append(out.Overrode, d.from)
		}
	}
	slices.Reverse(out.Overrode)
	return out
}
