// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
)

// pool is the newest generation of one.
type pool struct {
	node, name string
	devices    []*resourceapi.Device
	sets       Counters
	// missing is how many slices are not there.
	missing int64
}

// poolsOf puts the slices of each pool together, in the order of nodes and names. It does not matter which slice has what: Kubernetes 1.34
// has a counter set beside its devices, later versions in a slice of its own.
func poolsOf(o Objects, out *Report) []*pool {
	newest := map[string]int64{}
	var own []*resourceapi.ResourceSlice
	for _, s := range o.Slices {
		if s.Spec.Driver == o.Driver && (o.Node == "" || nodeOf(s) == o.Node) {
			own = append(own, s)
			newest[s.Spec.Pool.Name] = max(newest[s.Spec.Pool.Name], s.Spec.Pool.Generation)
		}
	}
	slices.SortFunc(own, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	byName := map[string]*pool{}
	for _, s := range own {
		name := s.Spec.Pool.Name
		if s.Spec.Pool.Generation != newest[name] {
			continue
		}
		p := byName[name]
		if p == nil {
			p = &pool{node: nodeOf(s), name: name, sets: Counters{}, missing: s.Spec.Pool.ResourceSliceCount}
			byName[name] = p
		}
		p.missing--
		p.sets.Add(s.Spec.SharedCounters)
		for i := range s.Spec.Devices {
			p.devices = append(p.devices, &s.Spec.Devices[i])
		}
	}
	pools := slices.SortedFunc(maps.Values(byName), func(a, b *pool) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.name, b.name))
	})
	for _, p := range pools {
		if p.missing != 0 {
			out.Problems = append(out.Problems, Problem{p.name, ReasonIncompletePool, fmt.Sprintf(
				"%d of its slices are missing: the plugin is writing them, or the list is not complete; the scheduler waits for them", p.missing)})
		}
	}
	return pools
}

func nodeOf(s *resourceapi.ResourceSlice) string {
	if s.Spec.NodeName == nil {
		return ""
	}
	return *s.Spec.NodeName
}

// left is what claims leave of each card. A device takes its share once, however many claims share it; nil if the claims are not known.
func (p *pool) left(unknown bool, holders holders, out *Report) Counters {
	if unknown {
		return nil
	}
	left := p.sets.clone()
	over := map[string]bool{}
	for _, d := range p.devices {
		if !holders.hold(p.name, d.Name) {
			continue
		}
		for _, name := range left.Take(d) {
			over[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(over)) {
		out.Problems = append(out.Problems, Problem{
			p.name + " " + name, ReasonOvercommitted,
			"claims have devices that take more together than the card has: two of them may use the same part of it",
		})
	}
	return left
}

func (p *pool) addCards(left Counters, out *Report) {
	for _, name := range slices.Sorted(maps.Keys(p.sets)) {
		out.Cards = append(out.Cards, Card{Node: p.node, Pool: p.name, Name: name, Counters: p.sets[name], Left: left[name]})
	}
}

// addDevices adds the pool's devices, those of one group together.
func (p *pool) addDevices(left Counters, holders holders, out *Report) {
	var own []Device
	wholes := p.wholes()
	for _, published := range p.devices {
		d := Device{
			Node: p.node, Pool: p.name, Kind: device.Kind(p.name[strings.LastIndexByte(p.name, '/')+1:]), Name: published.Name,
			Attributes: published.Attributes, Capacity: published.Capacity, Part: isPart(published.Attributes),
			Claims: holders[[2]string{p.name, published.Name}], Taints: published.Taints,
		}
		d.Group = groupOf(&d, wholes)
		if len(published.ConsumesCounters) > 0 { // Fettle's consume of one card
			d.Card, d.Consumes = published.ConsumesCounters[0].CounterSet, published.ConsumesCounters[0].Counters
			d.Group = d.Card
		}
		d.shares(published, left != nil)
		d.judge(left, holders.hold(p.name, d.Name), p.missing != 0)
		if d.overcommitted() {
			out.Problems = append(out.Problems, Problem{
				p.name + " " + d.Name, ReasonOvercommitted, "claims were granted more of the device than it has: delete one of their pods",
			})
		}
		own = append(own, d)
	}
	slices.SortStableFunc(own, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), compareBool(a.Part, b.Part))
	})
	out.Devices = append(out.Devices, own...)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// judge says whether a claim could get the device.
func (d *Device) judge(left Counters, held, incomplete bool) {
	switch {
	case held && d.Shares.open() && left != nil && !incomplete:
		d.State = StateShared
	case held:
		d.State = StateHeld
	case left == nil || incomplete:
		d.State = StateUnknown
	default:
		d.State, d.Lacks = StateFree, lacking(left[d.Card], d.Consumes)
	}
	if len(d.Lacks) > 0 {
		d.State = StateTaken
	}
}

// wholes are the names of the pool's whole devices by their uuid and PCI address.
func (p *pool) wholes() map[string]string {
	names := map[string]string{}
	for _, d := range p.devices {
		if isPart(d.Attributes) {
			continue
		}
		for _, attribute := range []resourceapi.QualifiedName{device.AttributeUUID, device.AttributePCIAddress} {
			if id := device.StringOf(d.Attributes[attribute]); id != "" {
				names[id] = d.Name
			}
		}
	}
	return names
}

// groupOf names the physical device of a device without counters. The PCI address of a virtual function is its own.
func groupOf(d *Device, wholes map[string]string) string {
	if !d.Part {
		return d.Name
	}
	id := device.StringOf(d.Attributes[device.AttributeParentUUID])
	if id == "" && device.StringOf(d.Attributes[device.AttributeType]) != device.TypeVF {
		id = device.StringOf(d.Attributes[device.AttributePCIAddress])
	}
	return cmp.Or(wholes[id], id, d.Name)
}
