// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/partition"
	"github.com/fettle-dev/fettle/pkg/partition/usage"
)

// drawing is a card that is to be drawn.
type drawing struct {
	driver  string
	devices []usage.Device
	// card is nil if the devices have no counters.
	card   *usage.Card
	claims claims
	why    *Why
}

// draw makes the card.
func (d *drawing) draw(footnotes *footnotes) located {
	first := &d.devices[0]
	out := located{node: first.Node, kind: string(first.Kind)}
	out.numa, out.root = place(d.driver, d.devices)
	out.Name, out.About = first.Group, d.about()
	lanes := lanesOf(d.card, d.devices)
	held := d.addHolders(&out.Card, lanes)
	out.Bar = d.bar(lanes, held)
	out.use = d.use(held)
	out.State = d.state(held, out.use, &out.Bar)
	out.Sorts = d.sorts()
	out.Published = published(out.Sorts)
	if len(d.devices) == 1 {
		out.Sorts, out.Published = nil, ""
	}
	out.Taints = d.taints()
	d.addRefusals(&out.Card, footnotes)
	return out
}

// about writes the product and the size.
func (d *drawing) about() string {
	var product, size string
	for i := range d.devices {
		product = cmp.Or(product, attribute(&d.devices[i], d.driver, device.AttributeProductName, "productName", "model"))
		if d.whole(&d.devices[i]) {
			size = cmp.Or(size, sizeOf(&d.devices[i]))
		}
	}
	return strings.Join(slices.DeleteFunc([]string{product, size}, func(s string) bool { return s == "" }), " · ")
}

// whole says whether a device is all of the card.
func (d *drawing) whole(one *usage.Device) bool {
	return !one.Part && (one.Name == one.Group || d.card == nil)
}

// sizeOf writes a device's memory, or its storage.
func sizeOf(d *usage.Device) string {
	for _, name := range []resourceapi.QualifiedName{device.CapacityMemory, device.CapacityStorage} {
		if c, ok := d.Capacity[name]; ok {
			return bytesText(c.Value)
		}
	}
	return ""
}

// bytesText writes a size. Short writes "all" for all that there is, so it is told that there is more.
func bytesText(size resource.Quantity) string {
	const counter = "memory"
	more := size.DeepCopy()
	more.Add(size)
	return partition.Short(map[string]resourceapi.Counter{counter: {Value: size}}, map[string]resourceapi.Counter{counter: {Value: more}})
}

// sortOf names what kind of part a device is.
func (d *drawing) sortOf(one *usage.Device) string {
	kind := attribute(one, d.driver, device.AttributeType)
	switch profile := attribute(one, d.driver, device.AttributeProfile); {
	case kind == device.TypeVFIO:
		return "whole, for virtual machines"
	case profile != "":
		return profile
	case kind == device.TypeVF:
		return "virtual function"
	case d.whole(one):
		return strings.TrimSpace("whole " + one.Kind.Noun())
	}
	return one.Name
}

// occupant is a device that claims hold, and the keys of its holders. Of a device whose shares are drawn there is one for each claim.
type occupant struct {
	device *usage.Device
	keys   []string
	shares int
	// isNew says that only the plan gives it.
	isNew bool
}

// addHolders lists who has the devices, in the order of their places on the card, and returns the devices that are held. Access of
// administrators takes nothing.
func (d *drawing) addHolders(c *Card, l lanes) []occupant {
	var held []occupant
	for _, one := range l.inOrder(d.devices) {
		o := occupant{device: one, isNew: true}
		for _, claim := range one.Claims {
			h := d.holder(one, claim)
			if !claim.AdminAccess {
				h.Key = key(keys(c.Holders))
			}
			c.Holders = append(c.Holders, h)
			switch {
			case claim.AdminAccess:
			case l.unit == shares:
				held = append(held, occupant{one, []string{h.Key}, claim.Shares, h.New})
			default:
				o.keys = append(o.keys, h.Key)
				o.isNew = o.isNew && h.New
			}
		}
		if len(o.keys) > 0 {
			held = append(held, o)
		}
	}
	return held
}

func (d *drawing) holder(one *usage.Device, claim usage.Claim) Holder {
	name := claim.Namespace + "/" + claim.Name
	known := d.claims[name]
	return Holder{
		What: d.sortOf(one), Takes: d.takes(one, claim), Who: known.pods, Claim: name, New: known.isNew, Admin: claim.AdminAccess,
	}
}

// keys counts the holders that have one.
func keys(holders []Holder) int {
	n := 0
	for i := range holders {
		if holders[i].Key != "" {
			n++
		}
	}
	return n
}

// key is A to Z, then A2 and so on.
func key(i int) string {
	letter := string(rune('A' + i%26))
	if i < 26 {
		return letter
	}
	return fmt.Sprintf("%s%d", letter, i/26+1)
}

// takes says what a claim has of a device that it shares, or what the device takes of the card.
func (d *drawing) takes(one *usage.Device, claim usage.Claim) string {
	if memory, ok := claim.Granted[device.CapacityMemory]; ok && claim.Shares > 0 {
		return bytesText(memory)
	}
	if d.card == nil {
		return ""
	}
	if text := partition.Short(one.Consumes, d.card.Counters); text != "all" {
		return text
	}
	return ""
}

// use says how much of the card is held.
func (d *drawing) use(held []occupant) use {
	free := slices.ContainsFunc(d.devices, func(one usage.Device) bool { return open(&one) && !keepsOff(one.Taints) })
	switch {
	case len(held) == 0 && free:
		return useNone
	case len(held) == 0:
		return useOff
	case slices.ContainsFunc(d.devices, func(one usage.Device) bool { return open(&one) }):
		return usePart
	}
	return useFull
}

// open says whether a claim could get a device, or a share of it.
func open(d *usage.Device) bool { return d.State == usage.StateFree || d.State == usage.StateShared }

// state says in a few words how much is held.
func (d *drawing) state(held []occupant, use use, bar *Bar) string {
	taken := 0
	for _, b := range bar.Blocks {
		if b.Mark == MarkHeld || b.Mark == MarkNew {
			taken += b.Span
		}
	}
	switch {
	case use == useNone:
		return "free"
	case use == useOff && slices.ContainsFunc(d.devices, func(one usage.Device) bool { return one.State == usage.StateUnknown }):
		return "not known"
	case use == useOff:
		return "tainted"
	case bar.Columns > 1 && taken < bar.Columns:
		return fmt.Sprintf("%d of %d held", taken, bar.Columns)
	case len(held) == 1 && len(held[0].keys) > 1:
		return fmt.Sprintf("shared by %d claims", len(held[0].keys))
	}
	return "held"
}

// taints lists the taints of the devices, and how many of them have each.
func (d *drawing) taints() []string {
	counts := map[string]int{}
	var texts []string
	for i := range d.devices {
		for _, t := range d.devices[i].Taints {
			text := t.Key
			if t.Value != "" {
				text += "=" + t.Value
			}
			text += ":" + string(t.Effect)
			if counts[text]++; counts[text] == 1 {
				texts = append(texts, text)
			}
		}
	}
	slices.Sort(texts)
	for i, text := range texts {
		if n := counts[text]; n < len(d.devices) {
			texts[i] = fmt.Sprintf("%s (%d of %s)", text, n, plural(len(d.devices), "device"))
		}
	}
	return texts
}

// keepsOff says whether taints keep claims without a toleration off.
func keepsOff(taints []resourceapi.DeviceTaint) bool {
	return slices.ContainsFunc(taints, func(t resourceapi.DeviceTaint) bool {
		return t.Effect == resourceapi.DeviceTaintEffectNoSchedule || t.Effect == resourceapi.DeviceTaintEffectNoExecute
	})
}
