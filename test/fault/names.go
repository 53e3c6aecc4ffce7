// SPDX-License-Identifier: Apache-2.0

package fault

import "slices"

// change is a change of names that survives as a whole or not at all.
type change struct {
	at   int
	op   *Op
	sets []set
	// after are the changes without which this one cannot survive. In is that which made its directory: that need not be certain
	// where this one is, and then both may be lost.
	after, in []*change
	// moves: a directory goes from one to another.
	moves bool
	done  bool
}

// set gives a name in a directory to a node, or to none.
type set struct {
	dir  *node
	name string
	to   *node
}

// change gives names to nodes for the running system, and notes on what the change depends.
func (r *replay) change(at int, op *Op, sets ...set) {
	c := &change{at: at, op: op, sets: sets}
	var emptied []*node
	for _, s := range sets {
		if old := s.dir.live[s.name]; old != nil && s.to != old && !c.places(old) && old.mode.IsDir() {
			emptied = append(emptied, old)
		}
		c.moves = c.moves || s.to != nil && s.to.mode.IsDir() && len(sets) > 1 && sets[0].dir != sets[1].dir
	}
	for _, earlier := range r.changes {
		if c.dependsOn(earlier, emptied) {
			c.after = append(c.after, earlier)
		}
		if slices.ContainsFunc(sets, func(s set) bool { return earlier.op.Kind == Mkdir && earlier.places(s.dir) }) {
			c.in = append(c.in, earlier)
		}
	}
	r.changes = append(r.changes, c)
	for _, s := range sets {
		apply(s.dir.live, s)
	}
}

// places says whether the change gives a name to a node.
func (c *change) places(n *node) bool {
	return slices.ContainsFunc(c.sets, func(s set) bool { return s.to == n })
}

// dependsOn: changes to one name survive in order, a directory goes only with all that went from it, and directories move in order.
func (c *change) dependsOn(earlier *change, emptied []*node) bool {
	return c.moves && earlier.moves || slices.ContainsFunc(earlier.sets, func(e set) bool {
		sameName := func(s set) bool { return s.dir == e.dir && s.name == e.name }
		return slices.ContainsFunc(c.sets, sameName) || slices.Contains(emptied, e.dir)
	})
}

func apply(names map[string]*node, s set) {
	if s.to == nil {
		delete(names, s.name)
		return
	}
	names[s.name] = s.to
}

// syncDir makes the names of a directory durable, and its own mode and owner.
func (r *replay) syncDir(dir *node) {
	dir.syncAttributes()
	for _, c := range r.changes {
		if slices.ContainsFunc(c.sets, func(s set) bool { return s.dir == dir }) {
			c.commit()
		}
	}
	r.changes = slices.DeleteFunc(r.changes, func(c *change) bool { return c.done })
}

// syncFS makes durable all that there is.
func (r *replay) syncFS() {
	for _, c := range r.changes {
		c.commit()
	}
	r.changes = nil
	var sync func(n *node)
	sync = func(n *node) {
		n.syncContent()
		n.syncAttributes()
		for _, kid := range n.names {
			sync(kid)
		}
	}
	sync(r.root)
}

// commit makes a change durable, and those that it depends on before it.
func (c *change) commit() {
	if c.done {
		return
	}
	for _, earlier := range c.after {
		earlier.commit()
	}
	for _, s := range c.sets {
		apply(s.dir.names, s)
	}
	c.done = true
}
