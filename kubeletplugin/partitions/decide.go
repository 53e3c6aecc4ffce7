// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"cmp"
	"maps"
	"slices"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
)

// decision is what a Review decided. It never changes.
type decision struct {
	// cards has the GPUs that are divided, or are to be, by name.
	cards map[string]*card
	// parts has what can be allocated of them beside the whole, by name.
	parts map[string]partition.Part
	// settling has the devices that are shared, or not, because claims have them so.
	settling map[string]bool
}

// card is a GPU that is divided, or is to be, and what it is divided into.
type card struct {
	seen
	division partition.Division
	// left is what policies had made of a GPU for which none holds any more.
	left left
}

// decide says what each GPU is published as, and why. It is a function of what was seen alone.
func decide(o *observation) *decision {
	d := &decision{cards: map[string]*card{}, parts: map[string]partition.Part{}, settling: map[string]bool{}}
	for _, s := range o.cards {
		if s.concerned() {
			d.add(divide(s, &o.setting))
		}
	}
	return d
}

// add adds a card that is divided.
func (d *decision) add(c *card) {
	d.cards[c.Device.Name] = c
	maps.Copy(d.parts, c.division.Parts)
	for _, name := range c.division.Settling {
		d.settling[name] = true
	}
}

// divide decides what a GPU is published as.
func divide(s *seen, now *setting) *card {
	c := &card{seen: *s}
	if !c.governed && !c.busy() {
		c.left = c.remains
	}
	p := c.shown
	p.Foreign, p.Held, p.Shares = c.foreignInstances, c.held, c.shares
	c.division = partition.DivideInto(now.counters, p, c.settings, now.kept)
	if len(c.forbidden) > 0 {
		c.division.Reasons = append(c.division.Reasons, partition.Forbidden(c.forbidden))
	}
	return c
}

// wish is what a PartitionPolicy wants of a GPU.
type wish struct {
	// governed says that there is something which is wanted, and settings what, as far as this node may carry it out. forbidden names the
	// others.
	governed  bool
	settings  partition.Settings
	forbidden []string
	// policy is the PartitionPolicy that holds for the GPU.
	policy string
	// frozen says that the policy cannot be carried out, so that the node changes nothing of the GPU.
	frozen bool
}

// wishFor returns what the policies want of a GPU. Under a policy that cannot be carried out the GPU keeps what it had; under one that
// another program's label overrules, that program decides. pci says that attributes of PCI devices may be written.
func wishFor(name string, result *policy.Result, was rememberedCard, pci bool) wish {
	var w wish
	w.settings, w.governed = result.Settings[name]
	w.policy = result.Holding[name]
	w.frozen = !w.governed && w.policy != ""
	if w.frozen && was.Policy != "" && !result.OtherManager(w.policy, name) {
		w.settings, w.governed = was.Settings, true
	}
	if !pci {
		w.settings, w.forbidden = w.settings.WithoutPCI()
	}
	return w
}

// byName returns the cards in the order of their names.
func (d *decision) byName() []*card {
	return slices.SortedFunc(maps.Values(d.cards), func(a, b *card) int { return cmp.Compare(a.Device.Name, b.Device.Name) })
}

// sorted returns the cards in the order of devices.
func (d *decision) sorted() []*card {
	return slices.SortedFunc(maps.Values(d.cards), func(a, b *card) int { return device.Compare(a.Device, b.Device) })
}

// Settling says whether a GPU, or an instance of one, is to be shared, or not, once the claims end that have it.
func (f *Feature) Settling(name string) bool {
	d := f.decided.Load()
	return d != nil && d.settling[name]
}

// Allowed returns the strategies that a policy lets claims choose on a device, which is a GPU or an instance of one, and the interval of
// its shares.
func (f *Feature) Allowed(name string) (strategies []string, interval string) {
	d := f.decided.Load()
	if d == nil {
		return nil, ""
	}
	on := d.cards[name]
	if part, ok := d.parts[name]; ok && part.Instance != nil {
		on = d.cards[part.Parent]
	}
	if on == nil {
		return nil, ""
	}
	return on.settings.Strategies, on.settings.Interval
}
