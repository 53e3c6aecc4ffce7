// SPDX-License-Identifier: Apache-2.0

// Package publish keeps the node's ResourceSlices, and the CDI specs of its devices, as the newest snapshot wants them.
package publish

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/notify"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
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
	specs specs
}

// New makes a publisher.
func New(c Config) *Publisher { return &Publisher{Config: c, specs: specs{Config: c}} }

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
			p.specs.sweep(ctx)
		}
	}
}

func (p *Publisher) publish(
	ctx context.Context, s *inventory.Snapshot, publish func(context.Context, resourceslice.DriverResources) error,
) error {
	if p.Retirement.On() {
		p.specs.synced = nil // its files go; they are written again when the node is taken back
		return publish(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{}})
	}
	if err := p.specs.sync(ctx, s); err != nil {
		return err
	}
	return publish(ctx, Resources(p.Node, s))
}
