// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/record"
)

// nodeClaim stands for the node in locks and restore points: what policies had made outlives every claim.
const nodeClaim = "node"

// lockPatience is how long a change waits for claims that are being prepared. Later it is tried again.
const lockPatience = 5 * time.Second

// Run makes what policies want beside claims, after each Review and again at the interval while something failed. It ends with ctx.
func (f *Feature) Run(ctx context.Context) {
	observed := make(chan struct{})
	go func() { defer close(observed); f.cluster.follow(ctx) }()
	defer func() { <-observed }()
	for {
		again := f.layouts.apply(ctx, f.decided.Load())
		var timer <-chan time.Time
		if again {
			timer = time.After(f.Interval)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.wanted:
		case <-timer:
		}
	}
}

// apply makes what the policies want of the GPUs that no claim has anything of, and what claims had of the others before a reboot. It
// reports whether something is left to do. Nothing is decided before the first Review.
func (l *layouts) apply(ctx context.Context, d *decision) (again bool) {
	if d == nil {
		return false
	}
	changed := false
	for _, c := range d.sorted() {
		jobs := l.jobs(c)
		if len(jobs) == 0 || c.absent || l.isQuiesced(c) {
			continue
		}
		done, err := l.exclusively(ctx, c, jobs)
		changed = changed || done
		if err == nil {
			delete(l.said, c.Device.Name)
			continue
		}
		again = true
		if ctx.Err() == nil && l.said[c.Device.Name] != err.Error() {
			l.said[c.Device.Name] = err.Error()
			klog.FromContext(ctx).Error(err, "Cannot divide a GPU as its policy wants", "device", c.Device.Name)
			l.errors.WithLabelValues("partitions").Inc()
			l.event(c.Device.Name, corev1.EventTypeWarning, "PartitionFailed", fmt.Sprintf("GPU %s: %v", c.Device.Name, err))
		}
	}
	if changed {
		l.requery.Send()
	}
	return again
}

func (l *layouts) isQuiesced(c *card) bool {
	return l.quiesced != nil && l.quiesced(device.StringOf(c.Device.Attributes[device.AttributeVendor]))
}

// exclusively does jobs in turn while no claim can get anything of the card, or give anything back. It reports whether any was done.
func (l *layouts) exclusively(ctx context.Context, c *card, jobs []job) (done bool, err error) {
	locking, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	hold, err := l.records.LockClaim(locking, nodeClaim+"-"+c.Device.Name)
	if errors.Is(err, record.ErrBusy) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer hold.Release()
	pool := device.PoolName(l.node, c.Device.Kind)
	var names []string
	for _, name := range l.holdings.names(&c.Physical) { // a claim that is being prepared may have what is not published any more
		names = append(names, pool+"/"+name)
	}
	if err := hold.Devices(locking, names); err != nil {
		return false, err
	}
	if !c.busy() && len(l.holdings.held(&c.Physical)) > 0 {
		return false, nil // a claim came first: the next Review decides
	}
	for _, do := range jobs {
		if err := do(ctx); err != nil {
			return done, err
		}
		done = true
	}
	return done, nil
}
