// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
)

// MaxDevices is how many devices a slice has: 64 although 128 are allowed: the first taint on a device would make a longer slice invalid.
const MaxDevices = 64

// Resources are the slices of a snapshot: one pool a kind of device, in a fixed order, so that equal hardware gives equal bytes. A
// retired node publishes nothing at all.
func Resources(node string, v *inventory.Snapshot) resourceslice.DriverResources {
	pools := make(map[string]resourceslice.Pool)
	for _, kind := range device.Kinds() {
		slices, late := slicesOf(v.Published(kind)), slices.Contains(v.BindLate, kind)
		for i := range slices {
			taint(slices[i].Devices, v)
			if late {
				bindLate(slices[i].Devices, kind)
			}
		}
		pools[inventory.PoolName(node, kind)] = resourceslice.Pool{Slices: slices}
	}
	return resourceslice.DriverResources{Pools: pools}
}

// taintTenant is the key of the taint on the free regions of a chip that a claim holds. Its value is the namespace whose claims may join,
// or the UID of the claim that shares with no other.
const taintTenant = v1alpha1.GroupName + "/tenant"

// taint marks the devices that are not healthy, and those of chips that others hold. The time is left to the API server and kept by the
// helper while the taint stays.
func taint(devices []resourceapi.Device, v *inventory.Snapshot) {
	for i := range devices {
		if s, bad := v.Health.Statuses[devices[i].Name]; bad {
			devices[i].Taints = []resourceapi.DeviceTaint{inventory.Taint(s, v.Health.NoEviction)}
		}
		if tenant := v.Tenants[devices[i].Name]; tenant != "" {
			devices[i].Taints = append(devices[i].Taints, resourceapi.DeviceTaint{
				Key: taintTenant, Value: tenant, Effect: resourceapi.DeviceTaintEffectNoSchedule,
			})
		}
	}
}

// slicesOf cuts devices into slices. No device still makes one slice: an empty pool says that the driver runs.
func slicesOf(devices []device.Device) []resourceslice.Slice {
	chunks := device.Slices(devices, MaxDevices)
	if len(chunks) == 0 {
		return []resourceslice.Slice{{Devices: []resourceapi.Device{}}}
	}
	slices := make([]resourceslice.Slice, len(chunks))
	for i, chunk := range chunks {
		slices[i] = resourceslice.Slice{Devices: chunk}
	}
	return slices
}

// standingSpecs are the CDI specs of all devices of a snapshot, for claims that ask for nothing special.
func standingSpecs(v *inventory.Snapshot) ([]cdi.Spec, error) {
	var (
		specs []cdi.Spec
		errs  []error
	)
	for i := range v.Devices {
		spec, err := cdi.Common(v.Devices[i].Edits)
		if _, held := v.Withheld[v.Devices[i].Name]; err != nil && held {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", v.Devices[i].Name, err))
			continue
		}
		specs = append(specs, spec)
	}
	return specs, errors.Join(errs...)
}
