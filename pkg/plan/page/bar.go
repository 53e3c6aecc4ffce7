// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/partition/usage"
)

// maxColumns are so many that a word fits into the narrowest block.
const maxColumns = 16

// lanes are the equal parts of a card: counters that differ in their number and of which the card has one each, such as memory-slice-0
// and memory-slice-1, or the units of its only counter. A card without such is one lane.
type lanes struct {
	// prefix is that of numbered counters, unit the only counter.
	prefix, unit string
	numbers      []int
	count        int
}

// shares is the unit of a device that several claims have.
const shares = "shares"

// lanesOf finds the lanes of a card. A device without counters that several claims share has one for each share.
func lanesOf(card *usage.Card, devices []usage.Device) lanes {
	if card == nil {
		if s := devices[0].Shares; len(devices) == 1 && s != nil && s.Total > 1 && s.Total <= maxColumns {
			return lanes{unit: shares, count: int(s.Total)}
		}
		return lanes{count: 1}
	}
	if numbered := numberedLanes(card.Counters); numbered.count > 1 {
		return numbered
	}
	for name, c := range card.Counters {
		if n := c.Value.Value(); len(card.Counters) == 1 && n > 1 && n <= maxColumns {
			return lanes{unit: name, count: int(n)}
		}
	}
	return lanes{count: 1}
}

// numberedLanes are the most counters that differ in their number alone.
func numberedLanes(counters map[string]resourceapi.Counter) lanes {
	runs := map[string][]int{}
	for name, c := range counters {
		at := strings.LastIndexByte(name, '-')
		if number, err := strconv.Atoi(name[at+1:]); at > 0 && err == nil && c.Value.Value() == 1 {
			runs[name[:at+1]] = append(runs[name[:at+1]], number)
		}
	}
	longest := lanes{count: 1}
	for _, prefix := range slices.Sorted(maps.Keys(runs)) {
		if n := len(runs[prefix]); n > longest.count && n <= maxColumns {
			slices.Sort(runs[prefix])
			longest = lanes{prefix: prefix, numbers: runs[prefix], count: n}
		}
	}
	return longest
}

// caption says what the columns are.
func (l lanes) caption() string {
	if l.count == 1 {
		return ""
	}
	words := cmp.Or(l.unit, strings.Trim(l.prefix, "-")+"s")
	return strings.ReplaceAll(words, "-", " ")
}

// takes returns the lanes that a device takes. Units have no place: they are the first that are free.
func (l lanes) takes(o occupant, owner []int) []int {
	var out []int
	consumes, units := o.device.Consumes, int64(max(o.shares, 1))
	if c, ok := consumes[l.unit]; ok && l.unit != "" {
		units = c.Value.Value()
	}
	for i := range l.count {
		switch {
		case l.prefix != "":
			if c, ok := consumes[fmt.Sprint(l.prefix, l.numbers[i])]; ok && c.Value.Sign() > 0 {
				out = append(out, i)
			}
		case owner[i] < 0 && int64(len(out)) < units:
			out = append(out, i)
		}
	}
	return out
}

// inOrder returns the devices by the first lane that they take. Those without a place stay as they are.
func (l lanes) inOrder(devices []usage.Device) []*usage.Device {
	out := make([]*usage.Device, len(devices))
	first := map[*usage.Device]int{}
	for i := range devices {
		out[i] = &devices[i]
		for j, number := range l.numbers {
			if c, ok := devices[i].Consumes[fmt.Sprint(l.prefix, number)]; ok && c.Value.Sign() > 0 {
				first[out[i]] = j
				break
			}
		}
	}
	slices.SortStableFunc(out, func(a, b *usage.Device) int { return cmp.Compare(first[a], first[b]) })
	return out
}

// bar draws the card with the devices that are held. What is left is free, unless nothing of it can be allocated.
func (d *drawing) bar(l lanes, held []occupant) Bar {
	owner := make([]int, l.count)
	for i := range owner {
		owner[i] = -1
	}
	for i, o := range held {
		for _, lane := range l.takes(o, owner) {
			owner[lane] = i
		}
	}
	rest := d.rest()
	out := Bar{Caption: l.caption(), Columns: l.count}
	for from := 0; from < len(owner); {
		to := from + 1
		for to < len(owner) && owner[to] == owner[from] {
			to++
		}
		block := rest
		if owner[from] >= 0 {
			block = held[owner[from]].block()
		}
		block.Span = to - from
		out.Blocks = append(out.Blocks, block)
		from = to
	}
	if len(held) > 0 && l.prefix != "" {
		out.Numbers = l.numbers
	}
	return out
}

// rest is the block of what no claim has.
func (d *drawing) rest() Block {
	for i := range d.devices {
		if open(&d.devices[i]) && !keepsOff(d.devices[i].Taints) {
			return Block{Text: "free"}
		}
	}
	return Block{Text: "–", Mark: MarkUnusable}
}

func (o occupant) block() Block {
	b := Block{Text: strings.Join(o.keys, " "), Mark: MarkHeld}
	if len(o.keys) > 3 {
		b.Text = fmt.Sprintf("%s … %s", o.keys[0], o.keys[len(o.keys)-1])
	}
	if o.isNew {
		b.Mark = MarkNew
	}
	return b
}
