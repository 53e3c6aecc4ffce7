// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"reflect"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
)

// specs keeps the spec directory equal to what the snapshot and the records need.
type specs struct {
	Config
	// synced are the devices whose specs were written last. Only sync uses it.
	synced []device.Device
}

// sync writes the specs of every device before it is published and removes what neither a device nor a claim needs. A snapshot that shows
// the same devices, free or not, needs neither: what vanished meanwhile is written again by who needs it.
func (k *specs) sync(ctx context.Context, v *inventory.Snapshot) error {
	if reflect.DeepEqual(k.synced, v.Devices) && len(v.Devices) > 0 {
		return nil
	}
	if err := k.write(ctx, v); err != nil {
		return err
	}
	k.synced = v.Devices
	k.sweep(ctx)
	return nil
}

func (k *specs) sweep(ctx context.Context) {
	if err := k.Sweep(ctx); err != nil {
		// One claim's record must not keep the node's devices from being published.
		klog.FromContext(ctx).Error(err, "Files that nothing needs may stay in the CDI directory")
		k.Errors.WithLabelValues("sweep").Inc()
	}
}

func (k *specs) write(ctx context.Context, v *inventory.Snapshot) error {
	specs, err := standingSpecs(v)
	if err != nil {
		return err
	}
	hold, err := k.Records.LockSpecs(ctx, false)
	if err != nil {
		return err
	}
	defer hold.Release()
	for _, spec := range specs {
		if err := k.Specs.Ensure(spec); err != nil {
			return err
		}
	}
	return nil
}
