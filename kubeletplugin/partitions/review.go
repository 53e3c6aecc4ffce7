// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/migparted"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sriov"
	"github.com/fettle-dev/fettle/pkg/vfio"
)

// setting is what a Review decides by.
type setting struct {
	counters partition.Form
	kept     partition.Kept
	result   policy.Result
	// known says that counters and policies are the API server's. Otherwise they are what the last Review knew.
	known bool
}

// Review replaces the GPUs that are divided by what is published of them.
func (f *Feature) Review(ctx context.Context, s *inventory.Snapshot) {
	if len(s.Physical)+len(f.memory.Cards) == 0 {
		f.decided.Store(&decision{})
		return
	}
	select {
	case <-f.known:
	case <-ctx.Done():
		return
	}
	cards := f.cards(s)
	now := f.setting(ctx, cards)
	s.Counters, s.PartitionPolicies = now.counters, nil
	held, heldErr := f.mig.Held()
	remains := f.left(held)
	next := &decision{cards: map[string]*card{}, parts: map[string]partition.Part{}, settling: map[string]bool{}}
	reasons := map[string][]partition.Reason{}
	s.ForVMs, s.Unbinding = map[string]bool{}, map[string]bool{}
	for _, c := range cards {
		if c.foreign != "" && !c.busy() {
			continue // another driver has it, with whatever policies had made of it
		}
		governed := f.govern(c, &now.result)
		if !governed && !c.busy() {
			if c.left = remains.of(c.Address); c.left.empty() {
				continue // it stays as discovery described it
			}
		}
		if !governed && c.ofOneClaim() {
			continue
		}
		if c.MIG != nil {
			note(s, c, heldErr)
		}
		f.divide(c, now, s, held)
		reasons[c.Device.Name] = c.division.Reasons
		next.add(c)
		replace(s, c)
		if name := c.Device.Name; c.held[partition.VFIOName(name)] {
			if c.absent {
				s.ForVMs[name] = true
			} else {
				s.Unbinding[device.StringOf(c.Device.Attributes[device.AttributeVendor])] = true
			}
		}
		report(s, c, governed)
	}
	s.PartitionPolicies = outcomes(now.result.Policies, reasons)
	f.decided.Store(next)
	f.remember(ctx, now, next)
	f.wanted.Send()
}

// govern gives a card what its policy wants, and reports whether there is something that it wants. Under a policy that cannot be carried
// out the card keeps what it had; under one that another program's label overrules, that program decides.
func (f *Feature) govern(c *card, result *policy.Result) bool {
	name := c.Device.Name
	settings, governed := result.Settings[name]
	c.settings, c.policy = settings, result.Holding[name]
	c.frozen = !governed && c.policy != ""
	was, known := f.memory.Cards[name]
	if c.frozen && known && was.Policy != "" && !result.OtherManager(c.policy, name) {
		c.settings, governed = was.Settings, true
	}
	return governed
}

// setting finds out what the policies want of the GPUs.
func (f *Feature) setting(ctx context.Context, cards []*card) setting {
	policies, synced := f.policiesNow()
	f.mu.Lock()
	around := f.surroundings
	f.mu.Unlock()
	if !synced || !around.read {
		was := setting{counters: f.memory.Counters, kept: f.memory.Kept, result: policy.Result{Settings: map[string]partition.Settings{}}}
		was.kept.Counters = was.counters != ""
		for name, c := range f.memory.Cards {
			was.result.Settings[name] = c.Settings
		}
		return was
	}
	node := policy.Node{Labels: around.labels}
	for _, c := range cards {
		node.Devices = append(node.Devices, policy.Device{
			Device: c.known, Model: migparted.Model{Device: c.Model, Subsystem: c.Subsystem}, Former: f.memory.Cards[c.Device.Name].Policy,
			Foreign: c.foreign,
		})
	}
	return setting{counters: around.counters, kept: around.kept(), result: f.resolver.Resolve(ctx, node, policies), known: true}
}

// divide decides what a GPU is published as.
func (f *Feature) divide(c *card, now setting, s *inventory.Snapshot, held []mig.Held) {
	if forbidden := needsPCI(c.settings); !f.PCI && len(forbidden) > 0 {
		c.settings = partition.Settings{
			MIG: c.settings.MIG, Sharing: c.settings.Sharing, Strategies: c.settings.Strategies, Interval: c.settings.Interval,
		}
		defer c.forbid(forbidden)
	}
	p := partition.Physical{
		Device: c.Device, MIG: c.MIG, MIGUnknown: c.MIGUnknown, Divided: c.Divided != "", AMD: c.AMD, Held: c.held, Shares: c.shares,
	}
	if c.MIG != nil {
		p.Foreign = f.foreign(c, held)
		f.askAgain(c, held)
	}
	if c.VirtualFunctions > 0 {
		enabled, err := sriov.VirtualFunctions(f.tree, c.Address)
		note(s, c, err)
		p.Functions, c.functions = &partition.Functions{Total: c.VirtualFunctions, Enabled: enabled}, len(enabled)
	}
	if c.settings.Passthrough {
		candidates, err := vfio.Candidates(f.tree, []pci.Function{{Address: c.Address}})
		note(s, c, err)
		p.IOMMU = len(candidates) == 1 && len(candidates[0].Obstacles) == 0
	}
	c.division = partition.Divide(p, c.settings, now.kept)
	if c.division.Card == nil {
		return
	}
	// A card that no slice has room for would take the whole pool along.
	if _, err := partition.Slices([]device.Card{*c.division.Card}, c.division.Devices, now.counters); err != nil {
		c.division = partition.Divide(p, partition.Settings{}, now.kept)
		c.division.Reasons = append(c.division.Reasons, partition.Reason{Reason: partition.ReasonNotDivisible, Message: err.Error()})
	}
}

// remember keeps what the next process must know before the API server and the machine tell it.
func (f *Feature) remember(ctx context.Context, now setting, d *decision) {
	if !now.known {
		return
	}
	next := remembered{Counters: now.counters, Kept: now.kept}
	for name, c := range d.cards {
		if next.Cards == nil {
			next.Cards = map[string]rememberedCard{}
		}
		physical := c.Physical
		physical.Device = c.known
		physical.Device.Edits = container.Edits{}
		if c.held[partition.VFIOName(name)] {
			// The version before publishes nothing while a card that it remembers has no edits.
			physical.Device.Edits.Made = []string{name}
		}
		next.Cards[name] = rememberedCard{Physical: physical, Settings: c.settings, Policy: c.policy}
	}
	if err := f.memory.keep(next, f.Retired != nil && f.Retired()); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot note how GPUs are divided, which the plugin needs after a restart")
		f.Errors.WithLabelValues("partitions").Inc()
	}
}

var errNotDecided = errors.New("how GPUs are divided is not known yet: kubelet tries again")
