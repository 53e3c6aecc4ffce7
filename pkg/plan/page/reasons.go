// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// footnotes are the checks that devices do not pass. Those that several cards have are written once for the page.
type footnotes struct {
	why *Why
	// devices and cards count by check.
	devices, cards map[Check]int
}

func footnotesOf(why *Why) *footnotes {
	return &footnotes{why: why, devices: map[Check]int{}, cards: map[Check]int{}}
}

// finish numbers the checks that several cards have, those of the most devices first, and makes the cards refer to them.
func (f *footnotes) finish(cards []located) []Reason {
	shared := slices.DeleteFunc(slices.Collect(maps.Keys(f.cards)), func(c Check) bool { return f.cards[c] < 2 })
	slices.SortFunc(shared, func(a, b Check) int {
		return cmp.Or(cmp.Compare(f.devices[b], f.devices[a]), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Message, b.Message))
	})
	numbers := map[Check]int{}
	var out []Reason
	for i, c := range shared {
		numbers[c] = i + 1
		out = append(out, Reason{Number: i + 1, Check: c.Name, Message: c.Message, Devices: f.devices[c]})
	}
	for i := range cards {
		refer(cards[i].Why, numbers)
		refer(cards[i].Others, numbers)
	}
	return out
}

// refer replaces checks that have a number by it.
func refer(refusals []Refusal, numbers map[Check]int) {
	for _, refusal := range refusals {
		for j, r := range refusal.Reasons {
			if n := numbers[Check{r.Check, r.Message}]; n > 0 {
				refusal.Reasons[j] = CardReason{Check: r.Check, Number: n}
			}
		}
	}
}

// addRefusals says why the devices of a card do not do.
func (d *drawing) addRefusals(c *Card, f *footnotes) {
	if f.why == nil {
		return
	}
	asked, others := &refusals{index: map[string]int{}}, &refusals{index: map[string]int{}}
	seen := map[Check]bool{}
	for i := range d.devices {
		one := &d.devices[i]
		judged, ok := f.why.Devices[strings.Join([]string{d.driver, one.Pool, one.Name}, "/")]
		if !ok {
			continue
		}
		for _, check := range judged.Failed {
			f.devices[check]++
			if !seen[check] {
				seen[check] = true
				f.cards[check]++
			}
		}
		if judged.Matches {
			asked.add(d.sortOf(one), judged.Failed)
			continue
		}
		others.add(d.sortOf(one), judged.Failed)
		c.OtherCount++
	}
	c.Why, c.Others = asked.finish(), others.finish()
}

// refusals collects devices with the same checks.
type refusals struct {
	out   []Refusal
	sorts [][]string
	index map[string]int
}

func (r *refusals) add(sort string, checks []Check) {
	same := fmt.Sprintf("%q", checks)
	at, ok := r.index[same]
	if !ok {
		at = len(r.out)
		r.index[same] = at
		r.out, r.sorts = append(r.out, Refusal{Reasons: cardReasons(checks)}), append(r.sorts, nil)
	}
	r.sorts[at] = append(r.sorts[at], sort)
}

func (r *refusals) finish() []Refusal {
	for i := range r.out {
		r.out[i].Devices = counted(r.sorts[i])
	}
	return r.out
}

func cardReasons(checks []Check) []CardReason {
	var out []CardReason
	for _, c := range checks {
		out = append(out, CardReason{Check: c.Name, Message: c.Message})
	}
	return out
}

// counted writes names with how often they are there: "1g.10gb × 7, 3g.40gb".
func counted(names []string) string {
	counts := map[string]int{}
	var order []string
	for _, name := range names {
		if counts[name]++; counts[name] == 1 {
			order = append(order, name)
		}
	}
	for i, name := range order {
		if counts[name] > 1 {
			order[i] = fmt.Sprintf("%s × %d", name, counts[name])
		}
	}
	return strings.Join(order, ", ")
}
