// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	go func() { defer close(observed); f.observe(ctx) }()
	defer func() { <-observed }()
	said := map[string]string{}
	for {
		again := f.apply(ctx, said)
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
// reports whether something is left to do. said has what was reported of each GPU.
func (f *Feature) apply(ctx context.Context, said map[string]string) (again bool) {
	d := f.decided.Load()
	if d == nil {
		return false
	}
	changed := false
	for _, c := range d.sorted() {
		jobs := f.jobs(c)
		if len(jobs) == 0 || c.absent || f.quiesced(c) {
			continue
		}
		done, err := f.exclusively(ctx, c, jobs)
		changed = changed || done
		if err == nil {
			delete(said, c.Device.Name)
			continue
		}
		again = true
		if ctx.Err() == nil && said[c.Device.Name] != err.Error() {
			said[c.Device.Name] = err.Error()
			klog.FromContext(ctx).Error(err, "Cannot divide a GPU as its policy wants", "device", c.Device.Name)
			f.Errors.WithLabelValues("partitions").Inc()
			f.Event(c.Device.Name, corev1.EventTypeWarning, "PartitionFailed", fmt.Sprintf("GPU %s: %v", c.Device.Name, err))
		}
	}
	if changed {
		f.Requery.Send()
	}
	return again
}

func (f *Feature) quiesced(c *card) bool {
	return f.Quiesced != nil && f.Quiesced(device.StringOf(c.Device.Attributes[device.AttributeVendor]))
}

func (d *decision) sorted() []*card {
	var cards []*card
	for _, c := range d.cards {
		cards = append(cards, c)
	}
	slices.SortFunc(cards, func(a, b *card) int { return device.Compare(a.Device, b.Device) })
	return cards
}

// exclusively does jobs in turn while no claim can get anything of the card, or give anything back. It reports whether any was done.
func (f *Feature) exclusively(ctx context.Context, c *card, jobs []job) (done bool, err error) {
	locking, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	hold, err := f.Records.LockClaim(locking, nodeClaim+"-"+c.Device.Name)
	if errors.Is(err, record.ErrBusy) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer hold.Release()
	pool := device.PoolName(f.Node, c.Device.Kind)
	var names []string
	for _, name := range f.namesOf(&c.Physical) { // a claim that is being prepared may have what is not published any more
		names = append(names, pool+"/"+name)
	}
	if err := hold.Devices(locking, names); err != nil {
		return false, err
	}
	if !c.busy() && len(f.heldOf(&c.Physical)) > 0 {
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
