// SPDX-License-Identifier: Apache-2.0

// Package publish keeps the node's ResourceSlices, and the CDI specs of its devices, as the newest snapshot wants them.
package publish

import (
	"context"
	"reflect"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// Config is what a Publisher works with.
type Config struct {
	// Node is the name of the Node object.
	Node       string
	Holder     *inventory.Holder
	Retirement *retirement.State
	Records    *record.Store
	Specs      *cdi.Dir
	// Sweep removes the specs that neither a device nor a claim needs.
	Sweep func(ctx context.Context) error
	// Freed carries a value after a claim gave back a CDI spec of its own.
	Freed notify.Signal
	// Failed is told of an error, which is tried again.
	Failed func(ctx context.Context, err error, msg string)
	// Errors counts errors outside of kubelet's calls, by where they happened.
	Errors *prometheus.CounterVec
}

// Publisher publishes the newest snapshot.
type Publisher struct {
	Config
	// synced are the devices whose specs were written last. Only Run uses it.
	synced []device.Device
}

// New makes a publisher.
func New(c Config) *Publisher { return &Publisher{Config: c} }

// Run publishes by a function, kubelet's helper's, after every change until ctx ends.
func (p *Publisher) Run(ctx context.Context, publish func(context.Context, resourceslice.DriverResources) error) {
	const retry = 5 * time.Second
	for {
		retired := p.Retirement.Changed()
		s, changed := p.Holder.Get()
		var again <-chan time.Time
		if s != nil {
			if err := p.publish(ctx, s, publish); err != nil {
				p.Failed(ctx, err, "publishing")
				again = time.After(retry)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-retired:
		case <-again:
		case <-p.Freed:
			p.sweep(ctx)
		}
	}
}

func (p *Publisher) publish(
	ctx context.Context, s *inventory.Snapshot, publish func(context.Context, resourceslice.DriverResources) error,
) error {
	if p.Retirement.On() {
		p.synced = nil // its files go; they are written again when the node is taken back
		return publish(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{}})
	}
	if err := p.syncSpecs(ctx, s); err != nil {
		return err
	}
	return publish(ctx, Resources(p.Node, s))
}

// syncSpecs writes the specs of every device before it is published and removes what neither a device nor a claim needs. A snapshot that
// shows the same devices, free or not, needs neither: what vanished meanwhile is written again by the claim that needs it.
func (p *Publisher) syncSpecs(ctx context.Context, v *inventory.Snapshot) error {
	if reflect.DeepEqual(p.synced, v.Devices) && len(v.Devices) > 0 {
		return nil
	}
	if err := p.writeSpecs(ctx, v); err != nil {
		return err
	}
	p.synced = v.Devices
	p.sweep(ctx)
	return nil
}

func (p *Publisher) sweep(ctx context.Context) {
	if err := p.Sweep(ctx); err != nil {
		// One claim's record must not keep the node's devices from being published.
		klog.FromContext(ctx).Error(err, "Files that nothing needs may stay in the CDI directory")
		p.Errors.WithLabelValues("sweep").Inc()
	}
}

func (p *Publisher) writeSpecs(ctx context.Context, v *inventory.Snapshot) error {
	specs, err := standingSpecs(v)
	if err != nil {
		return err
	}
	hold, err := p.Records.LockSpecs(ctx, false)
	if err != nil {
		return err
	}
	defer hold.Release()
	for _, spec := range specs {
		if err := p.Specs.Ensure(spec); err != nil {
			return err
		}
	}
	return nil
}
