// SPDX-License-Identifier: Apache-2.0

package fault

import "io/fs"

// pending is what the running system has of a node, and a power loss may take.
type pending struct {
	live   map[string]*node
	size   int64
	writes []write
	attrs  []attrChange
	// spoilt: a sync failed, so no later one can be relied on.
	spoilt bool
}

// write is a change of content: data at an offset, or a new size.
type write struct {
	at       int // index in the log
	op       *Op
	off      int64
	truncate bool
}

type attrChange struct {
	attributes
	at int
	op *Op
}

func (n *node) write(w write) {
	if w.truncate {
		n.size = w.off
	} else {
		n.size = max(n.size, w.off+int64(len(w.op.Data)))
	}
	n.writes = append(n.writes, w)
}

// attribute notes a change of mode or owner.
func (n *node) attribute(at int, op *Op) {
	now := n.attributes
	if len(n.attrs) > 0 {
		now = n.attrs[len(n.attrs)-1].attributes
	}
	if op.Kind == Chmod {
		now.mode = now.mode.Type() | op.Mode&^fs.ModeType
	}
	if op.Kind == Chown && op.UID >= 0 {
		now.uid = op.UID
	}
	if op.Kind == Chown && op.GID >= 0 {
		now.gid = op.GID
	}
	n.attrs = append(n.attrs, attrChange{attributes: now, at: at, op: op})
}

func (n *node) syncContent() {
	if !n.spoilt {
		n.data, n.writes = n.content(variant{upTo: len(n.writes)}), nil
	}
}

func (n *node) syncAttributes() {
	if len(n.attrs) > 0 && !n.spoilt {
		n.attributes, n.attrs = n.attrs[len(n.attrs)-1].attributes, nil
	}
}
