// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/device"
)

// maxDevicesPerSlice is 64 although 128 are allowed: the first taint on a device would make a longer slice invalid.
const maxDevicesPerSlice = 64

// resources are the slices of a view: one pool a kind of device, in a fixed order, so that equal hardware gives equal bytes. A
// retired node publishes nothing at all.
func resources(node string, v *view) resourceslice.DriverResources {
	pools := make(map[string]resourceslice.Pool)
	for _, kind := range kinds() {
		slices, late := slicesOf(v.published(kind)), slices.Contains(v.bindLate, kind)
		for i := range slices {
			taint(slices[i].Devices, v)
			if late {
				bindLate(slices[i].Devices, kind)
			}
		}
		pools[poolName(node, kind)] = resourceslice.Pool{Slices: slices}
	}
	return resourceslice.DriverResources{Pools: pools}
}

// taint marks the devices that are not healthy, and those of chips that others hold. The time is left to the API server and kept by the
// helper while the taint stays.
func taint(devices []resourceapi.Device, v *view) {
	for i := range devices {
		if s, bad := v.health.statuses[devices[i].Name]; bad {
			devices[i].Taints = []resourceapi.DeviceTaint{taintOf(s, v.health.noEviction)}
		}
		taintTenant(&devices[i], v.tenants)
	}
}

// slicesOf cuts devices into slices. No device still makes one slice: an empty pool says that the driver runs.
func slicesOf(devices []device.Device) []resourceslice.Slice {
	chunks := device.Slices(devices, maxDevicesPerSlice)
	if len(chunks) == 0 {
		return []resourceslice.Slice{{Devices: []resourceapi.Device{}}}
	}
	slices := make([]resourceslice.Slice, len(chunks))
	for i, chunk := range chunks {
		slices[i] = resourceslice.Slice{Devices: chunk}
	}
	return slices
}

// standingSpecs are the CDI specs of all devices of a view, for claims that ask for nothing special.
func standingSpecs(v *view) ([]cdi.Spec, error) {
	var (
		specs []cdi.Spec
		errs  []error
	)
	for i := range v.devices {
		spec, err := cdi.Common(v.devices[i].Edits)
		if _, held := v.withheld[v.devices[i].Name]; err != nil && held {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", v.devices[i].Name, err))
			continue
		}
		specs = append(specs, spec)
	}
	return specs, errors.Join(errs...)
}
