// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"reflect"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/engine"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// specKeeper keeps the spec directory equal to what the view and the records need.
type specKeeper struct {
	store   *record.Store
	dir     *cdi.Dir
	engine  *engine.Engine
	metrics *metrics
	// synced are the devices whose specs were written last. Only sync uses it.
	synced []device.Device
}

// sync writes the specs of every device before it is published and removes what neither a device nor a claim needs. A view that shows
// the same devices, free or not, needs neither: what vanished meanwhile is written again by who needs it.
func (k *specKeeper) sync(ctx context.Context, v *view) error {
	if reflect.DeepEqual(k.synced, v.devices) && len(v.devices) > 0 {
		return nil
	}
	if err := k.write(ctx, v); err != nil {
		return err
	}
	k.synced = v.devices
	k.sweep(ctx)
	return nil
}

func (k *specKeeper) sweep(ctx context.Context) {
	if err := k.engine.SweepSpecs(ctx); err != nil {
		// One claim's record must not keep the node's devices from being published.
		klog.FromContext(ctx).Error(err, "Files that nothing needs may stay in the CDI directory")
		k.metrics.backgroundErrors.WithLabelValues("sweep").Inc()
	}
}

func (k *specKeeper) write(ctx context.Context, v *view) error {
	specs, err := standingSpecs(v)
	if err != nil {
		return err
	}
	hold, err := k.store.LockSpecs(ctx, false)
	if err != nil {
		return err
	}
	defer hold.Release()
	for _, spec := range specs {
		if err := k.dir.Ensure(spec); err != nil {
			return err
		}
	}
	return nil
}
