// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/engine"
	"github.com/fettle-dev/fettle/pkg/record"
)

// specKeeper keeps the spec directory equal to what the view and the records need.
type specKeeper struct {
	store   *record.Store
	dir     *cdi.Dir
	engine  *engine.Engine
	metrics *metrics
}

// sync writes the specs of every device before it is published and removes what neither a device nor a claim needs.
func (k *specKeeper) sync(ctx context.Context, v *view) error {
	if err := k.write(ctx, v); err != nil {
		return err
	}
	if err := k.engine.SweepSpecs(ctx); err != nil {
		// One claim's record must not keep the node's devices from being published.
		klog.FromContext(ctx).Error(err, "Files that nothing needs may stay in the CDI directory")
		k.metrics.backgroundErrors.WithLabelValues("sweep").Inc()
	}
	return nil
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
