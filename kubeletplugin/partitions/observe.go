// SPDX-License-Identifier: Apache-2.0

package partitions

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/migparted"
	"github.com/fettle-dev/fettle/pkg/partition/policy"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/publication"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// observation is all that a Review decides by.
type observation struct {
	setting
	// cards are the GPUs by name, with those that the machine does not show while claims hold something of them.
	cards []*seen
}

// setting is what a Review decides by that is the same for all GPUs.
type setting struct {
	counters partition.Form
	kept     partition.Kept
	result   policy.Result
	// known says that counters and policies are the API server's. Otherwise they are what the last Review knew.
	known bool
}

// seen is all that was seen of a GPU.
type seen struct {
	discover.Physical
	// absent says that the machine does not show the GPU now.
	absent bool
	// known is the GPU as policies judge it: with the last answers where the machine or the library does not answer now.
	known device.Device
	// foreign is the driver that the node's configuration leaves the GPU to. Empty: it is Fettle's.
	foreign string
	// held are the names of the devices of the card that claims hold.
	held map[string]bool
	// shares are those of held of which claims have shares.
	shares map[string]bool
	// wish is what its policy wants of the GPU.
	wish
	// remains is what policies have made of the GPU.
	remains left
	// What follows is looked at only on a GPU that Fettle divides. foreignInstances are the places of instances of others, and shown is what
	// the machine shows of the GPU without claims.
	foreignInstances []nvml.MIGPlacement
	shown            partition.Physical
	// unreadable are the errors of looking.
	unreadable []error
}

// functions are the virtual functions that the GPU has.
func (s *seen) functions() []pci.Address {
	if s.shown.Functions == nil {
		return nil
	}
	return s.shown.Functions.Enabled
}

// busy says whether a claim holds anything of the card.
func (s *seen) busy() bool { return len(s.held) > 0 }

// ofOneClaim says whether one claim has the GPU whole and for itself.
func (s *seen) ofOneClaim() bool {
	return len(s.held) == 1 && s.held[s.Device.Name] && len(s.shares) == 0 && !s.absent && s.Divided == ""
}

// concerned says whether Fettle has to do with how the GPU is divided. Another stays as discovery described it.
func (s *seen) concerned() bool {
	switch {
	case s.foreign != "" && !s.busy():
		return false // another driver has it, with whatever policies had made of it
	case s.governed:
		return true
	case s.busy():
		return !s.ofOneClaim()
	}
	return !s.remains.empty()
}

// switchesMIG says whether claims switch the GPU's MIG mode: off for the whole GPU, on for an instance.
func (s *seen) switchesMIG() bool {
	want := s.settings.MIG
	return s.MIG != nil && want != nil && want.Mode == partition.MIGDynamic && !partition.MIGNeedsReset(s.Device)
}

// observer sees how the node's GPUs are divided. It belongs to Review, which runs in one goroutine, and changes nothing.
type observer struct {
	// pci says that attributes of PCI devices may be written.
	pci      bool
	tree     *sysfs.Tree
	mig      *mig.Instances
	points   *restorepoint.Store
	holdings Holdings
	foreign  *foreignInstances
	resolver policy.Resolver
}

// observe returns what is seen of the GPUs of a snapshot, under what the cluster wants. was is the last decision, nil before the first.
func (o *observer) observe(ctx context.Context, s *inventory.Snapshot, wanted wanted, was *decision) *observation {
	out := &observation{cards: o.cards(s, was)}
	out.setting = o.setting(ctx, out.cards, wanted)
	held, heldErr := o.mig.Held()
	remains := o.remains(held)
	for _, c := range out.cards {
		name := c.Device.Name
		c.wish = wishFor(name, &out.result, o.holdings.memory.Cards[name], o.pci)
		c.remains = remains.of(c.Address)
		if !c.concerned() {
			continue
		}
		if c.MIG != nil {
			c.note(heldErr)
			c.foreignInstances = o.foreign.placesOn(c, held)
			o.foreign.askAgain(c, held)
		}
		var errs []error
		c.shown, errs = publication.LookAt(o.tree, &c.Physical, c.settings)
		c.unreadable = append(c.unreadable, errs...)
	}
	return out
}

// cards returns the machine's GPUs by name. What a claim holds of a GPU stays, with the answers of then, while the machine does not show
// the GPU.
func (o *observer) cards(s *inventory.Snapshot, was *decision) []*seen {
	var cards []*seen
	memory := o.holdings.memory
	for i := range s.Physical {
		former := memory.Cards[s.Physical[i].Device.Name].Physical
		cards = append(cards, &seen{Physical: lastAnswer(former, s.Physical[i], func() bool { return len(o.holdings.held(&former)) > 0 })})
	}
	for _, p := range o.holdings.Absent(s) {
		cards = append(cards, &seen{Physical: p, absent: true})
	}
	for _, c := range cards {
		c.known = knownOf(memory.Cards[c.Device.Name].Physical, &c.Physical)
		c.held = o.holdings.held(&c.Physical)
		c.shares = o.holdings.shares(c, was)
		c.foreign = s.Foreign[c.Device.Name].Owner
	}
	slices.SortFunc(cards, func(a, b *seen) int { return cmp.Compare(a.Device.Name, b.Device.Name) })
	return cards
}

// setting finds out what the policies want of the GPUs.
func (o *observer) setting(ctx context.Context, cards []*seen, wanted wanted) setting {
	memory := o.holdings.memory
	if !wanted.known {
		was := setting{counters: memory.Counters, kept: memory.Kept, result: policy.Result{Settings: map[string]partition.Settings{}}}
		was.kept.Counters = was.counters != ""
		for name, c := range memory.Cards {
			was.result.Settings[name] = c.Settings
		}
		return was
	}
	node := policy.Node{Labels: wanted.labels}
	for _, c := range cards {
		node.Devices = append(node.Devices, policy.Device{
			Device: c.known, Model: migparted.Model{Device: c.Model, Subsystem: c.Subsystem}, Former: memory.Cards[c.Device.Name].Policy,
			Foreign: c.foreign,
		})
	}
	return setting{
		counters: wanted.counters, kept: wanted.kept(), result: o.resolver.Resolve(ctx, node, wanted.policies), known: true,
	}
}

func (s *seen) note(err error) {
	if err != nil {
		s.unreadable = append(s.unreadable, err)
	}
}

// left is what policies had made of the node's GPUs, and what their claims' steps switched.
type left struct {
	instances []mig.Held
	points    []restorepoint.Point
}

// remains lists what is left of policies, of the instances that are held. What cannot be read stays for the next Review, which reports it.
func (o *observer) remains(held []mig.Held) left {
	points, _ := o.points.List()
	return left{instances: held, points: slices.DeleteFunc(points, func(p restorepoint.Point) bool { return p.Claim != nodeClaim })}
}

// of returns what is left on one GPU.
func (l left) of(address pci.Address) left {
	var out left
	for _, h := range l.instances {
		if h.PCIAddress == address {
			out.instances = append(out.instances, h)
		}
	}
	for _, p := range l.points {
		if p.Step.Target == address.String() {
			out.points = append(out.points, p)
		}
	}
	return out
}

func (l left) empty() bool { return len(l.instances)+len(l.points) == 0 }

// lastAnswer returns a GPU with the answers of before where the machine or the library does not tell now how it is divided: what a claim
// holds of it stays, and while the library was disturbed all of it does. Steps that switch the mode look for themselves. MIGUnknown still
// says what is so now. What was said of another card in the slot is said of no GPU. holds says whether a claim held something of the GPU as
// it was.
func lastAnswer(was, now discover.Physical, holds func() bool) discover.Physical {
	modes := (now.MIG != nil || was.MIG == nil) && (now.AMD != nil || was.AMD == nil)
	functions := now.VirtualFunctions > 0 || was.VirtualFunctions == 0
	if modes && functions || !sameCard(&was, &now) || !now.MIGUnknown && !holds() {
		return now
	}
	if modes {
		now.VirtualFunctions = was.VirtualFunctions
		return now
	}
	was.Device.Edits, was.MIGUnknown = now.Device.Edits, now.MIGUnknown
	return was
}

// knownOf returns a GPU with the attributes and capacities of before where they are missing now: a selector that looks for one would not
// match, and the GPU would count as one without a policy.
func knownOf(was discover.Physical, p *discover.Physical) device.Device {
	now := p.Device
	if !sameCard(&was, p) || was.Subsystem != p.Subsystem {
		return now // there is another card in the slot, or nothing is known
	}
	now.Attributes, now.Capacity = filled(now.Attributes, was.Device.Attributes), filled(now.Capacity, was.Device.Capacity)
	return now
}

// sameCard says whether a GPU may be the one that was in its slot, as far as both are known.
func sameCard(was, now *discover.Physical) bool {
	former := device.StringOf(was.Device.Attributes[device.AttributeUUID])
	uuid := device.StringOf(now.Device.Attributes[device.AttributeUUID])
	return was.Model == now.Model && (uuid == "" || former == "" || uuid == former)
}

// filled returns what is known now, and of before what is missing now.
func filled[M ~map[K]V, K comparable, V any](now, before M) M {
	out := maps.Clone(before)
	if out == nil {
		return now
	}
	maps.Copy(out, now)
	return out
}
