// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"math"
	"math/rand/v2"
	"slices"
)

// extremes emits what most likely shows a mistake, however much is pending.
func (c *chooser) extremes(emit emit) bool {
	for _, at := range append([]int{-1}, c.positions()...) {
		if !c.emit(emit, func(change *change) bool { return change.at <= at }, c.upTo(at)) {
			return false
		}
	}
	for _, one := range c.changes {
		all := func(change *change) bool { return change != one }
		if !c.emit(emit, all, c.upTo(math.MaxInt)) {
			return false
		}
		only := map[*change]bool{}
		one.needs(only)
		for _, at := range []int{-1, math.MaxInt} {
			if !c.emit(emit, func(change *change) bool { return only[change] }, c.upTo(at)) {
				return false
			}
		}
	}
	return c.oneFile(emit)
}

// oneFile emits, with all names surviving, every fate of one node beside those that survive, and beside those that do not.
func (c *chooser) oneFile(emit emit) bool {
	every := func(*change) bool { return true }
	for _, it := range c.walk(c.keep(every)) {
		each, choices := len(c.contents(it.node).each), c.choices(it.node)
		if choices == 1 {
			continue
		}
		for number := range choices {
			for _, at := range []int{-1, math.MaxInt} {
				rest := c.upTo(at)
				more := c.emit(emit, every, func(n *node) fate {
					if n == it.node {
						return fate{content: number % each, attrs: number / each}
					}
					return rest(n)
				})
				if !more {
					return false
				}
			}
		}
	}
	return true
}

// sample emits at random, each time with another share of the changes.
func (c *chooser) sample(emit emit) {
	random := rand.New(rand.NewPCG(c.seed, 1))
	for range c.limit {
		share := random.Float64()
		chosen := map[*node]fate{}
		more := c.emit(emit, func(*change) bool { return random.Float64() < share }, func(n *node) fate {
			if _, ok := chosen[n]; !ok {
				chosen[n] = fate{content: random.IntN(len(c.contents(n).each)), attrs: random.IntN(len(n.attrs) + 1)}
			}
			return chosen[n]
		})
		if !more {
			return
		}
	}
}

// emit emits the changes that are wanted and can survive together.
func (c *chooser) emit(emit emit, wanted func(*change) bool, f fates) bool {
	keep := c.keep(wanted)
	return emit(keep, c.walk(keep), f)
}

func (c *chooser) keep(wanted func(*change) bool) []bool {
	var keep []bool
	for _, change := range c.changes {
		keep = append(keep, wanted(change) && c.allowed(keep))
	}
	return keep
}

// upTo is the fate of each node where all survives up to a place in the log, and nothing later.
func (c *chooser) upTo(at int) fates {
	return func(n *node) fate {
		var f fate
		writes := 0
		for _, w := range n.writes {
			if w.at <= at {
				writes++
			}
		}
		for _, a := range n.attrs {
			if a.at <= at {
				f.attrs++
			}
		}
		f.content = c.contents(n).prefix[writes]
		return f
	}
}

// positions are the places in the log of what is pending, in order.
func (c *chooser) positions() []int {
	var all []int
	for _, change := range c.changes {
		all = append(all, change.at)
	}
	for n := range c.nodes() {
		for _, w := range n.writes {
			all = append(all, w.at)
		}
		for _, a := range n.attrs {
			all = append(all, a.at)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// nodes are all that have a name in some state.
func (c *chooser) nodes() map[*node]bool {
	all := map[*node]bool{}
	var add func(n *node)
	add = func(n *node) {
		if n == nil || all[n] {
			return
		}
		all[n] = true
		for _, child := range n.names {
			add(child)
		}
	}
	add(c.root)
	for _, change := range c.changes {
		for _, s := range change.sets {
			add(s.to)
		}
	}
	return all
}

// needs adds the change to what survives, and all that it depends on.
func (c *change) needs(all map[*change]bool) {
	if all[c] {
		return
	}
	all[c] = true
	for _, earlier := range slices.Concat(c.after, c.in) {
		earlier.needs(all)
	}
}
