// SPDX-License-Identifier: Apache-2.0

// Package publish keeps the node's ResourceSlices and the CDI specs of its devices equal to the newest snapshot.
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
	"github.com/fettle-dev/fettle/kubeletplugin/retry"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// Config has the services and functions that a Publisher uses.
type Config struct {
	// Node is the name of the Node object.
	Node       string
	Holder     *inventory.Holder
	Retirement *retirement.State
	Records    *record.Store
	Specs      *cdi.Dir
	Names      *cdi.Names
	// Sweep removes the specs that neither a device nor a claim needs.
	Sweep func(ctx context.Context) error
	// Freed is sent after the release of a claim that named a spec of no present device.
	Freed notify.Signal
	// Failed is called with an error of publishing, which is retried.
	Failed func(ctx context.Context, err error, msg string)
	// Errors counts errors outside of kubelet's calls, by source.
	Errors *prometheus.CounterVec
}

// Publisher publishes the newest snapshot.
type Publisher struct {
	Config
	// synced are the devices whose specs were written last. Only Run uses it.
	synced []device.Device
}

// New returns a publisher.
func New(c Config) *Publisher { return &Publisher{Config: c} }

// Run publishes after every change until ctx ends. It calls publish, which is from kubelet's helper.
func (p *Publisher) Run(ctx context.Context, publish func(context.Context, resourceslice.DriverResources) error) {
	const longestRetry, look = 30 * time.Second, 15 * time.Second
	failing := retry.New(longestRetry)
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		next := triggers{retired: p.Retirement.Changed()}
		s, changed := p.Holder.Get()
		next.changed = changed
		if s != nil {
			if err := p.publish(ctx, s, publish); err != nil {
				p.Failed(ctx, err, "publishing")
				next.again = time.After(failing.Next())
			} else {
				failing.Reset()
			}
		}
		if !p.wait(ctx, s, ticker.C, next) {
			return
		}
	}
}

// triggers start the next publication.
type triggers struct {
	// changed is closed when there is a newer snapshot, and retired when the node retires or serves again.
	changed, retired <-chan struct{}
	// again is when a publication that failed is tried again. It is nil if none failed.
	again <-chan time.Time
}

// wait looks after the specs until there is something to publish. It returns false once ctx has ended.
func (p *Publisher) wait(ctx context.Context, s *inventory.Snapshot, look <-chan time.Time, next triggers) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-next.changed:
			return true
		case <-next.retired:
			return true
		case <-next.again:
			return true
		case <-look:
			p.restoreSpecs(ctx, s)
		case <-p.Freed:
			p.sweep(ctx)
		}
	}
}

// restoreSpecs writes specs that vanished since they were published. During a rolling update the older plugin, which may see other devices,
// removes what it does not need.
func (p *Publisher) restoreSpecs(ctx context.Context, s *inventory.Snapshot) {
	if s == nil || p.Retirement.On() {
		return
	}
	if err := p.writeSpecs(ctx, s); err != nil {
		p.Failed(ctx, err, "restoring CDI files")
	}
}

func (p *Publisher) publish(
	ctx context.Context, s *inventory.Snapshot, publish func(context.Context, resourceslice.DriverResources) error,
) error {
	if p.Retirement.On() {
		p.synced = nil // all files are removed, and written again when the node serves again
		return publish(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{}})
	}
	if err := p.syncSpecs(ctx, s); err != nil {
		return err
	}
	return publish(ctx, Resources(p.Node, s))
}

// syncSpecs writes the specs of all devices before they are published, and removes specs that neither a device nor a claim needs. It skips
// a snapshot with the same devices: restoreSpecs, Prepare and the engine's pass write specs again that vanish.
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
		// An unreadable record must not keep the node's devices from being published.
		klog.FromContext(ctx).Error(err, "Cannot remove unused files in the CDI directory")
		p.Errors.WithLabelValues("sweep").Inc()
	}
}

func (p *Publisher) writeSpecs(ctx context.Context, v *inventory.Snapshot) error {
	specs, err := deviceSpecs(p.Names, v)
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
