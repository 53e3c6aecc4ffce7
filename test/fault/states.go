// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
)

// chooser enumerates what may survive of a replay's pending changes.
type chooser struct {
	*replay
	limit int
	seed  uint64
	index map[*change]int
	known map[*node]*contents
}

func newChooser(r *replay, o Options) *chooser {
	c := &chooser{replay: r, limit: o.Limit, seed: o.Seed, index: map[*change]int{}, known: map[*node]*contents{}}
	if c.limit == 0 {
		c.limit = 1 << 10
	}
	for i, change := range r.changes {
		c.index[change] = i
	}
	return c
}

// fate is which of its contents and which of its attributes a node has: of the latter the durable ones are 0.
type fate struct{ content, attrs int }

// fates choose for each node; whether its name survives is chosen before.
type fates func(n *node) fate

// item is a name that a choice of surviving changes leaves.
type item struct {
	path string
	node *node
}

// states yields each state once, and first that in which everything survives.
func (c *chooser) states(yield func(State) bool) {
	seen := map[[sha256.Size]byte]bool{}
	emit := func(keep []bool, items []item, f fates) bool {
		s := c.state(keep, items, f)
		if seen[s.Sum] {
			return true
		}
		seen[s.Sum] = true
		return yield(s)
	}
	everything := c.emit(emit, func(*change) bool { return true }, c.upTo(math.MaxInt))
	switch {
	case !everything:
	case c.fits():
		c.enumerate(emit)
	case c.extremes(emit):
		c.sample(emit)
	}
}

type emit func(keep []bool, items []item, f fates) bool

// fits says whether all states are few enough.
func (c *chooser) fits() bool {
	total := 0
	return c.subsets(nil, func(keep []bool) bool {
		product := 1
		for _, it := range c.walk(keep) {
			product *= c.choices(it.node)
			if product > c.limit {
				return false
			}
		}
		total += product
		return total <= c.limit
	})
}

// subsets yields every set of changes that can survive together, each with all that it depends on.
func (c *chooser) subsets(keep []bool, yield func(keep []bool) bool) bool {
	if len(keep) == len(c.changes) {
		return yield(keep)
	}
	if c.allowed(keep) && !c.subsets(append(keep, true), yield) {
		return false
	}
	return c.subsets(append(keep, false), yield)
}

// allowed says whether the next change may survive after those before it.
func (c *chooser) allowed(keep []bool) bool {
	lost := func(earlier *change) bool {
		at, pending := c.index[earlier]
		return pending && !keep[at]
	}
	next := c.changes[len(keep)]
	return !slices.ContainsFunc(next.after, lost) && !slices.ContainsFunc(next.in, lost)
}

// walk lists the names that a set of surviving changes leaves, each directory before what it holds.
func (c *chooser) walk(keep []bool) []item {
	names := map[*node]map[string]*node{}
	for i, kept := range keep {
		if !kept {
			continue
		}
		for _, s := range c.changes[i].sets {
			if names[s.dir] == nil {
				names[s.dir] = maps.Clone(s.dir.names)
			}
			apply(names[s.dir], s)
		}
	}
	var items []item
	var add func(item)
	add = func(it item) {
		items = append(items, it)
		children, changed := names[it.node]
		if !changed {
			children = it.node.names
		}
		for _, name := range slices.Sorted(maps.Keys(children)) {
			add(item{path: path.Join(it.path, name), node: children[name]})
		}
	}
	add(item{path: ".", node: c.root})
	return items
}

func (c *chooser) contents(n *node) *contents {
	known, ok := c.known[n]
	if !ok {
		known = n.contents(c.base)
		c.known[n] = known
	}
	return known
}

// choices is how many fates a node has.
func (c *chooser) choices(n *node) int { return len(c.contents(n).each) * (len(n.attrs) + 1) }

// enumerate emits all.
func (c *chooser) enumerate(emit emit) bool {
	return c.subsets(nil, func(keep []bool) bool {
		items := c.walk(keep)
		number := map[*node]int{} // of the fate, counted through like the digits of a number
		for {
			more := emit(keep, items, func(n *node) fate {
				each := len(c.contents(n).each)
				return fate{content: number[n] % each, attrs: number[n] / each}
			})
			if !more {
				return false
			}
			if !c.next(items, number) {
				return true
			}
		}
	})
}

func (c *chooser) next(items []item, number map[*node]int) bool {
	for _, it := range items {
		number[it.node]++
		if number[it.node] < c.choices(it.node) {
			return true
		}
		number[it.node] = 0
	}
	return false
}

// state puts a choice together.
func (c *chooser) state(keep []bool, items []item, f fates) State {
	var lost []string
	for i, kept := range keep {
		if !kept {
			lost = append(lost, c.changes[i].op.short(c.base))
		}
	}
	s := State{entries: make([]entry, 0, len(items))}
	sum := sha256.New()
	for _, it := range items {
		n, fate := it.node, f(it.node)
		chosen := c.contents(n).each[fate.content]
		e := entry{path: it.path, attributes: n.attributes, data: chosen.data, target: n.target, rdev: n.rdev}
		if fate.attrs > 0 {
			e.attributes = n.attrs[fate.attrs-1].attributes
		}
		if fate.attrs < len(n.attrs) {
			lost = append(lost, n.attrs[fate.attrs].op.short(c.base))
		}
		if chosen.lost != "" {
			lost = append(lost, chosen.lost)
		}
		s.entries = append(s.entries, e)
		fmt.Fprintf(sum, "%q %d %d %d %q %d %x\n", e.path, e.mode, e.uid, e.gid, e.target, e.rdev, chosen.sum)
	}
	sum.Sum(s.Sum[:0])
	s.Lost = strings.Join(lost, "; ")
	return s
}

// short names an operation with paths relative to the base.
func (o *Op) short(base string) string {
	local := func(path string) string { return strings.TrimPrefix(path, strings.TrimSuffix(base, "/")+"/") }
	if o.To != "" {
		return fmt.Sprintf("%s %s -> %s (#%d)", o.Kind, local(o.Path), local(o.To), o.N)
	}
	return fmt.Sprintf("%s %s (#%d)", o.Kind, local(o.Path), o.N)
}
