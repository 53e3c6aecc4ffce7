// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// maxDevicesPerSlice is 64 although 128 are allowed: the first taint on a device would make a longer slice invalid.
const maxDevicesPerSlice = 64

// resources are the slices of a view: one pool a kind of device, in a fixed order, so that equal hardware gives equal bytes. A
// retired node publishes nothing at all.
func resources(node string, v *view) resourceslice.DriverResources {
	pools := make(map[string]resourceslice.Pool)
	for _, kind := range kinds() {
		pools[poolName(node, kind)] = resourceslice.Pool{Slices: slicesOf(v.published(kind))}
	}
	return resourceslice.DriverResources{Pools: pools}
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

// specKeeper keeps the spec directory equal to what the view and the records need.
type specKeeper struct {
	store   *record.Store
	dir     *cdi.Dir
	metrics *metrics
}

// sync writes the specs of every device before it is published and removes what neither a device nor a claim needs. It holds the
// store's lock, so that no claim is being prepared meanwhile, by this plugin or another.
func (k *specKeeper) sync(ctx context.Context, v *view) error {
	unlock, err := k.store.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	specs, err := standingSpecs(v)
	if err != nil {
		return err
	}
	for _, spec := range specs {
		if err := k.dir.Ensure(spec); err != nil {
			return err
		}
	}
	if err := k.sweep(specs); err != nil {
		// One claim's record must not keep the node's devices from being published.
		klog.FromContext(ctx).Error(err, "Files that nothing needs may stay in the CDI directory")
		k.metrics.backgroundErrors.WithLabelValues("sweep").Inc()
	}
	return nil
}

// sweep removes the leftovers of interrupted writes, and every spec that is neither standing nor named by a record.
func (k *specKeeper) sweep(standing []cdi.Spec) error {
	if err := k.store.SweepTemporary(); err != nil {
		return err
	}
	records, err := k.store.All()
	if err != nil {
		return err // a record that cannot be read may name any file: sweep nothing
	}
	keep := make(map[string]bool, len(standing))
	for _, spec := range standing {
		keep[spec.Device] = true
	}
	for _, r := range records {
		for i := range r.Devices {
			keep[r.Devices[i].CDIDevice] = true
		}
	}
	_, err = k.dir.Sweep(keep)
	return err
}
