// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"crypto/sha256"
	"fmt"
	"slices"
)

// variant says how much of a file's pending writes survives: the first ones whole, and then what rest says.
type variant struct {
	upTo int
	rest rest
}

type rest int

const (
	nothing rest = iota // no later write
	half                // half of the next
	zeros               // the length that all later ones make, and none of their data
	hole                // the length of the next, and all later ones whole
)

// content applies the variant to what is durable.
func (n *node) content(v variant) []byte {
	data := slices.Clone(n.data)
	for i, w := range n.writes {
		switch {
		case i < v.upTo, v.rest == hole && i > v.upTo:
			data = w.apply(data, w.op.Data)
		case v.rest == half && i == v.upTo:
			data = w.apply(data, w.op.Data[:len(w.op.Data)/2])
		case v.rest == zeros, v.rest == hole:
			data = w.lengthen(data)
		default:
			return data
		}
	}
	return data
}

func (w write) apply(data, part []byte) []byte {
	if w.truncate {
		return resize(data, w.off)
	}
	data = resize(data, max(int64(len(data)), w.off+int64(len(part))))
	copy(data[w.off:], part)
	return data
}

// lengthen is a write of which only the length arrived.
func (w write) lengthen(data []byte) []byte {
	if w.truncate {
		return resize(data, w.off)
	}
	return resize(data, max(int64(len(data)), w.off+int64(len(w.op.Data))))
}

func resize(data []byte, size int64) []byte {
	if grow := size - int64(len(data)); grow > 0 {
		return append(data, make([]byte, grow)...)
	}
	return data[:size]
}

// contents are the distinct contents that a file may have, and which of them it is after each write.
type contents struct {
	each   []content
	prefix []int // by the number of writes that survive
}

type content struct {
	data []byte
	sum  [sha256.Size]byte
	lost string
}

// contents lists them.
func (n *node) contents(base string) *contents {
	c := &contents{}
	c.add(n, variant{upTo: len(n.writes)}, base) // first, so that what equals it lost nothing
	for k := range len(n.writes) + 1 {
		c.prefix = append(c.prefix, c.add(n, variant{upTo: k}, base))
	}
	for k, w := range n.writes {
		if w.truncate {
			continue
		}
		for _, rest := range []rest{half, zeros, hole} {
			c.add(n, variant{k, rest}, base)
		}
	}
	return c
}

// add returns the index of the content, which may be there already.
func (c *contents) add(n *node, v variant, base string) int {
	data := n.content(v)
	sum := sha256.Sum256(data)
	if at := slices.IndexFunc(c.each, func(other content) bool { return other.sum == sum }); at >= 0 {
		return at
	}
	c.each = append(c.each, content{data: data, sum: sum, lost: n.lost(v, base)})
	return len(c.each) - 1
}

// lost says what a variant leaves out.
func (n *node) lost(v variant, base string) string {
	if v.upTo == len(n.writes) {
		return ""
	}
	first := n.writes[v.upTo].op
	how := map[rest]string{
		nothing: "%s and later",
		half:    "half of %s and all later",
		zeros:   "%s and later, but for the length",
		hole:    "only %s, but for the length",
	}[v.rest]
	return fmt.Sprintf(how, first.short(base))
}
