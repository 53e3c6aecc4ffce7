// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// ErrMemory refuses a region whose card has memory with another tenant's data, which nothing clears.
var ErrMemory = errors.New("is on a card whose memory may hold data of another namespace's claim")

// ErrCardInUse refuses to clear the memory of a card that a claim uses through another region.
var ErrCardInUse = errors.New("is on a card whose memory another region's claim uses, so that it cannot be cleared now: " +
	"retried until that claim is gone")

// combined returns the tenant of two traces: that of the one if the other has none, severalTenants if they differ.
func combined(a, b string) string {
	switch {
	case a == "" || a == b:
		return b
	case b == "":
		return a
	}
	return severalTenants
}

// Data returns the tenant whose data may be in the memory that the region reaches, severalTenants for more than one, or "".
func (c *Content) Data() string {
	if c.Cleared {
		return c.Memory
	}
	return combined(c.Namespace, c.Memory)
}

// ForeignTo reports whether the region's logic or memory may hold anything that a tenant must not see.
func (c *Content) ForeignTo(tenant string) bool {
	return c.Unknown || foreign(combined(c.Namespace, c.Memory), tenant)
}

func foreign(traces, tenant string) bool { return traces != "" && traces != tenant }

// usedBy returns the content with another tenant. The data of the tenants before stay in the memory.
func (c *Content) usedBy(tenant string) Content {
	used := *c
	used.Namespace, used.Memory, used.Cleared = tenant, c.Data(), false
	return used
}

// markCard notes that a tenant's claim could write to all memory of the card: its other regions may reach the same memory. The caller
// holds the lease of a region, and with it the lock of the card, under which all its contents are written.
func (p *Programmer) markCard(device, tenant string) error {
	return p.siblings(device, func(name string, content Content) error {
		if content.Data() == combined(content.Data(), tenant) {
			return nil
		}
		content.Memory = combined(content.Memory, tenant)
		return p.config.Contents.write(name, content)
	})
}

// siblings calls visit for the other regions of the card. The caller holds the lease of a region.
func (p *Programmer) siblings(device string, visit func(name string, content Content) error) error {
	if p.config.Siblings == nil {
		return nil
	}
	for _, name := range p.config.Siblings(device) {
		content, err := p.config.Contents.Read(name)
		if err == nil {
			err = visit(name, content)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sharers are the other regions of the card that claims use now.
func (p *Programmer) sharers(device string) (out []string, err error) {
	err = p.siblings(device, func(name string, content Content) error {
		if content.Claim != "" {
			out = append(out, name)
		}
		return nil
	})
	slices.Sort(out)
	return out, err
}

// markCleared notes for the card's other regions that its memory was cleared. No claim uses them.
func (p *Programmer) markCleared(device string) error {
	return p.siblings(device, func(name string, content Content) error {
		if content.Unknown || content.Data() == "" {
			return nil
		}
		content.Memory, content.Cleared = "", content.Namespace != ""
		return p.config.Contents.write(name, content)
	})
}

// awaitCleared waits as long as a blank image needs to clear the card's memory, and wants the region to work and to show the image then.
func (p *Programmer) awaitCleared(ctx context.Context, b Backend, r *fpga.Region, image *Image) error {
	unknown := func(err error) error {
		return &backend.Error{
			Kind: backend.Unknown, Device: r.Card, Op: "clear the memory of", Err: err, Next: "the region is wiped again",
		}
	}
	timer := p.clock.NewTimer(image.ClearTime)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
		return unknown(context.Cause(ctx))
	}
	state, err := b.State(r)
	switch {
	case err != nil:
		return unknown(err)
	case state.Fault != nil:
		return unknown(state.Fault)
	case !state.shows(image.AFUID):
		return unknown(fmt.Errorf("it shows AFU id %s after %s, want %s", orNone(state.AFU), image.ClearTime, image.AFUID))
	}
	return nil
}

// wipeTimeout returns the time for wiping a region within a claim's timeout. The time to clear memory is the admin's, and counts extra.
func wipeTimeout(timeout time.Duration, blank *Image) time.Duration {
	if blank == nil {
		return timeout
	}
	return timeout + blank.ClearTime
}

// CheckDMA fails with fpga.ErrNotIsolated unless an IOMMU is between the region's logic and the machine's memory now.
func (p *Programmer) CheckDMA(r *fpga.Region) error {
	tree, err := sysfs.Open(p.config.HostRoot)
	if err != nil {
		return err
	}
	return errors.Join(r.CheckDMA(tree), tree.Close())
}
