// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/plan/judge"
)

const wait = "Wait until that ends, or delete what is not needed"

// namedHolders is how many claims a sentence names.
const namedHolders = 4

// tally counts the devices that would do for a request if nothing was allocated.
type tally struct {
	class        string
	match, taken int
	nodes        []string
	holders      holderCounts
}

// held says which claims have what the pod waits for. It counts all nodes that are refused for nothing else.
func (w *work) held(n *nodeWork) string {
	t := tally{holders: holderCounts{}}
	want, all := "", false
	for _, r := range n.requests() {
		if r.Usable() < r.Count {
			want, all = r.Name, r.All
			break
		}
	}
	for i := range w.nodes {
		if other := &w.nodes[i]; len(other.refused) == 0 {
			t.add(other, want)
		}
	}
	where := listed(t.nodes, 3)
	free := t.match - t.taken
	switch {
	case t.match == 0: // counters or shares of several devices
		return fmt.Sprintf("what the pod needs on %s is held: %s. %s", n.input.Node.Name, n.holders().text(), wait)
	case all:
		return fmt.Sprintf("request %s wants all %s of a node that match, and some are held on each: %s. %s", want, noun(t.class, 2),
			t.holders.text(), wait)
	case free == 0 && t.match == 1:
		return fmt.Sprintf("the only %s that would do is on %s, and is held: %s. %s", noun(t.class, 1), where, t.holders.text(), wait)
	case free == 0:
		return fmt.Sprintf("all %s that would do on %s are held: %s. %s", counted(t.match, t.class), where, t.holders.text(), wait)
	}
	return fmt.Sprintf("%d of %s that would do on %s %s free, which is too few on one node, and %d %s held: %s", free,
		counted(t.match, t.class), where, are(free), t.taken, are(t.taken), t.holders.text())
}

// add counts the devices of a node.
func (t *tally) add(n *nodeWork, request string) {
	found := false
	for _, r := range n.requests() {
		if request != "" && r.Name != request {
			continue
		}
		t.class = r.Class
		for i := range r.Devices {
			d := &r.Devices[i]
			if !takenOnly(d) {
				continue
			}
			found = true
			t.match++
			if d.Usable() {
				continue
			}
			t.taken++
			t.holders.add(d)
		}
	}
	if found {
		t.nodes = append(t.nodes, n.input.Node.Name)
	}
}

// takenOnly says whether a device would do if no claim had anything.
func takenOnly(d *judge.DeviceVerdict) bool {
	return !slices.ContainsFunc(d.Failed, func(c judge.Check) bool {
		return c.Kind != judge.KindInUse && c.Kind != judge.KindCounters && c.Kind != judge.KindCapacity
	})
}

// holder names a claim, or stands for one that may not be named.
type holder struct {
	namespace, name string
	unnamed         int
}

// holderCounts counts devices by the claims that have them.
type holderCounts map[holder]int

func (h holderCounts) add(d *judge.DeviceVerdict) {
	for _, check := range d.Failed {
		for _, of := range check.Holders {
			h[holder{of.Namespace, of.Name, of.Unnamed}]++
		}
	}
}

// holders counts all devices of a node.
func (n *nodeWork) holders() holderCounts {
	out := holderCounts{}
	for _, r := range n.requests() {
		for i := range r.Devices {
			out.add(&r.Devices[i])
		}
	}
	return out
}

// text names the claims with the most devices, and counts the others.
func (h holderCounts) text() string {
	order := slices.SortedFunc(maps.Keys(h), func(a, b holder) int {
		return cmp.Or(cmp.Compare(h[b], h[a]), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	var parts []string
	foreign, more := 0, 0
	for _, one := range order {
		switch {
		case one.name == "":
			foreign++
		case len(parts) == namedHolders:
			more++
		case h[one] == 1:
			parts = append(parts, "by claim "+one.namespace+"/"+one.name)
		default:
			parts = append(parts, fmt.Sprintf("by claim %s/%s (%d)", one.namespace, one.name, h[one]))
		}
	}
	if more > 0 {
		parts = append(parts, fmt.Sprintf("by %d more", more))
	}
	switch {
	case foreign == 1:
		parts = append(parts, "by a claim of another namespace")
	case foreign > 1:
		parts = append(parts, fmt.Sprintf("by %d claims of other namespaces", foreign))
	case len(parts) == 0:
		return "by other claims"
	}
	return strings.Join(parts, ", ")
}

// closest says what is missing on the node that comes closest, if no single change helps.
func (w *work) closest() (Reason, string) {
	n := &w.nodes[0]
	for i := range w.nodes {
		if len(w.nodes[i].refused) == 0 {
			n = &w.nodes[i]
			break
		}
	}
	lines := n.lines()
	reason := Other
	switch {
	case n.verdict.Outcome == judge.TimedOut:
		reason = Slow
	case n.verdict.Outcome == judge.Refused || n.waitsForPools():
		reason = PoolBroken
	case n.verdict.Outcome == judge.DoesNotFit || n.verdict.Impossible():
		reason = TooFew
	}
	tried := "no single change helps"
	if w.slow || w.ctx.Err() != nil {
		tried = "no single change is known to help, since not all could be tried in time"
	}
	return reason, fmt.Sprintf("%s; node %s comes closest: %s", tried, n.input.Node.Name, strings.Join(lines, "; "))
}

// waitsForPools reports whether a request has too few devices and all devices that it cannot have are in incomplete or invalid pools.
func (n *nodeWork) waitsForPools() bool {
	for _, r := range n.requests() {
		if r.Usable() >= r.Count || len(r.Devices) == 0 {
			continue
		}
		return !slices.ContainsFunc(r.Devices, func(d judge.DeviceVerdict) bool { return !d.Usable() && !fails(&d, judge.KindPool) })
	}
	return false
}
