// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"cmp"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// Sink is where a tree goes. Paths are relative and clean, a name is made once and its directory before it, and modes are those of
// Entry.
type Sink interface {
	Mkdir(path string, mode fs.FileMode) error
	// File begins a file. The one before it was closed.
	File(path string, mode fs.FileMode) (File, error)
	// Remove removes a file or an empty directory, which a later layer hides.
	Remove(path string, dir bool) error
	// Finish is called once all is there. What has to be durable is so when it returns.
	Finish(t *Tree) error
}

// File is a file of a sink being written. Close says where the content is, if the sink must be told when it finishes.
type File interface {
	io.Writer
	Close() (at int64, err error)
}

// node is a name that exists now.
type node struct {
	Entry
	// layer is that which made it, or made something below it.
	layer int
	// named: that layer has an entry for it. Archivers may leave directories out.
	named bool
	gone  bool
	kids  []*node
}

// builder puts layers on each other.
type builder struct {
	sink   Sink
	nodes  map[string]*node
	layer  int
	hidden []hidden
	buffer []byte
}

// hidden is a whiteout of the layer: of one name, or of all that earlier layers have in a directory.
type hidden struct {
	path string
	all  bool
}

func newBuilder(sink Sink) *builder {
	root := &node{Entry: Entry{Mode: fs.ModeDir | dirMode}}
	return &builder{sink: sink, nodes: map[string]*node{"": root}, buffer: make([]byte, copySize)}
}

const (
	dirMode  fs.FileMode = 0o777
	fileMode fs.FileMode = 0o666
)

func parentOf(path string) string {
	if at := strings.LastIndexByte(path, '/'); at >= 0 {
		return path[:at]
	}
	return ""
}

// begin is for the next layer.
func (b *builder) begin(layer int) { b.layer, b.hidden = layer, nil }

// dir makes a directory, or finds it. Named: the layer has an entry for it.
func (b *builder) dir(path string, named bool) (*node, error) {
	n := b.nodes[path]
	if n != nil && !n.Mode.IsDir() {
		if n.layer == b.layer {
			return nil, broke(RuleDuplicate, "%s is a file of this layer already: expected a directory or nothing", quote(path))
		}
		if err := b.remove(n); err != nil {
			return nil, err
		}
		n = nil
	}
	if n == nil {
		return b.make(path, named)
	}
	if n.layer == b.layer && n.named && named {
		return nil, broke(RuleDuplicate, "the layer has it twice")
	}
	b.claim(n)
	n.named = n.named || named
	return n, nil
}

// claim says that this layer, too, has the directory, and so all above it.
func (b *builder) claim(n *node) {
	for n.layer != b.layer {
		n.layer, n.named = b.layer, false
		if n.Path == "" {
			return
		}
		n = b.nodes[parentOf(n.Path)]
	}
}

func (b *builder) make(path string, named bool) (*node, error) {
	parent, err := b.dir(parentOf(path), false)
	if err != nil {
		return nil, err
	}
	if err := b.sink.Mkdir(path, dirMode); err != nil {
		return nil, err
	}
	n := &node{Entry: Entry{Path: path, Mode: fs.ModeDir | dirMode}, named: named}
	b.add(parent, n)
	return n, nil
}

func (b *builder) add(parent, n *node) {
	n.layer = b.layer
	b.nodes[n.Path] = n
	parent.kids = append(parent.kids, n)
}

// file reads a file of the size from r.
func (b *builder) file(path string, exec bool, size int64, r io.Reader) error {
	if old := b.nodes[path]; old != nil {
		if old.layer == b.layer {
			return broke(RuleDuplicate, "the layer has it twice")
		}
		if err := b.remove(old); err != nil {
			return err
		}
	}
	parent, err := b.dir(parentOf(path), false)
	if err != nil {
		return err
	}
	n := &node{Entry: Entry{Path: path, Mode: fileMode, Size: size}, named: true}
	if exec {
		n.Mode |= 0o111
	}
	f, err := b.sink.File(path, n.Mode)
	if err != nil {
		return err
	}
	copied := b.copy(&n.Entry, f, r)
	at, err := f.Close()
	if copied != nil {
		return copied
	}
	if err != nil {
		return err
	}
	n.At = at
	b.add(parent, n)
	return nil
}

func (b *builder) copy(e *Entry, f File, r io.Reader) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{r}, b.buffer)
	if err == nil && n != e.Size {
		err = broke(RuleTar, "it ends after %d bytes, expected %d", n, e.Size)
	}
	return err
}

// remove removes a node and all below it.
func (b *builder) remove(n *node) error {
	return b.removeBelow(n, func(*node) bool { return true })
}

// removeBelow removes from the leaves up what is to go. What holds something that stays is one that stays.
func (b *builder) removeBelow(n *node, goes func(*node) bool) error {
	kept := n.kids[:0]
	for _, kid := range n.kids {
		if kid.gone {
			continue
		}
		if err := b.removeBelow(kid, goes); err != nil {
			return err
		}
		if !kid.gone {
			kept = append(kept, kid)
		}
	}
	n.kids = kept
	if n.Path == "" || !goes(n) {
		return nil
	}
	n.gone = true
	delete(b.nodes, n.Path)
	return b.sink.Remove(n.Path, n.Mode.IsDir())
}

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// hide notes a whiteout; end applies it, since it is meant for earlier layers wherever in this one it stands.
func (b *builder) hide(path string) error {
	dir, name := "", path
	if parent := parentOf(path); parent != "" {
		dir, name = parent+"/", path[len(parent)+1:]
	}
	switch hides := strings.TrimPrefix(name, whiteout); {
	case b.layer == 1:
		return broke(RuleWhiteout, "it hides something of an earlier layer, and this is the first")
	case name == opaque:
		b.hidden = append(b.hidden, hidden{path: strings.TrimSuffix(dir, "/"), all: true})
	case hides == "" || hides == "." || hides == ".." || strings.HasPrefix(hides, whiteout):
		return broke(RuleWhiteout, "it hides nothing: expected %sNAME or %s", whiteout, opaque)
	default:
		b.hidden = append(b.hidden, hidden{path: dir + hides})
	}
	return nil
}

// end applies the whiteouts of the layer to those before it.
func (b *builder) end() error {
	for _, h := range b.hidden {
		n := b.nodes[h.path]
		if n == nil {
			continue
		}
		goes := func(below *node) bool { return below.layer != b.layer && (below != n || !h.all) }
		if err := b.removeBelow(n, goes); err != nil {
			return err
		}
	}
	return nil
}

// tree is all that is there.
func (b *builder) tree() *Tree {
	t := &Tree{Entries: make([]Entry, 0, len(b.nodes)-1)}
	for path, n := range b.nodes {
		if path != "" {
			t.Entries = append(t.Entries, n.Entry)
			t.Bytes += n.Size
		}
	}
	b.nodes = nil
	slices.SortFunc(t.Entries, func(a, b Entry) int { return cmp.Compare(a.Path, b.Path) })
	return t
}
