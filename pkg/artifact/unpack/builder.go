// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"cmp"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// Sink takes the files of a tree. Paths are relative and clean, each is made once and after its directory, and modes are those of Entry.
type Sink interface {
	Mkdir(path string, mode fs.FileMode) error
	// File begins a file. The file before it was closed.
	File(path string, mode fs.FileMode) (File, error)
	// Remove removes a file or an empty directory that a later layer hides or replaces.
	Remove(path string, dir bool) error
	// Finish is called when the tree is complete. It returns after everything that must be durable is durable.
	Finish(t *Tree) error
}

// File is a file of a sink that is being written. Close returns the place of the content, for sinks that need it in Finish.
type File interface {
	io.Writer
	Close() (at int64, err error)
}

// node is a file or directory of the tree so far.
type node struct {
	Entry
	// layer is the last layer that has it or something below it.
	layer int
	// named is true if that layer has an entry for it. Archivers may leave directories out.
	named    bool
	removed  bool
	children []*node
}

// builder merges layers into a tree.
type builder struct {
	sink   Sink
	budget budget
	nodes  map[string]*node
	layer  int
	// whiteouts are those of the current layer, each once.
	whiteouts map[whiteout]bool
	buffer    []byte
}

// budget is what is left of the limits that bound the memory of a tree.
type budget struct {
	limits  Limits
	entries int
	names   int64
}

// take counts an entry of a layer, or a directory that the layer has no entry for.
func (b *budget) take(name string) error {
	if b.entries--; b.entries < 0 {
		return violation(RuleEntries, "expected at most %d, with the directories that have none", b.limits.Entries)
	}
	if b.names -= int64(len(name)); b.names < 0 {
		return violation(RuleNames, "expected at most %d bytes, with the directories that have no entry", b.limits.Names)
	}
	return nil
}

// whiteout hides a path of earlier layers, or, if it is opaque, all that earlier layers have in that directory.
type whiteout struct {
	path   string
	opaque bool
}

func newBuilder(sink Sink, limits Limits) *builder {
	root := &node{Entry: Entry{Mode: fs.ModeDir | dirMode}}
	return &builder{
		sink: sink, budget: budget{limits: limits, entries: limits.Entries, names: limits.Names},
		nodes: map[string]*node{"": root}, buffer: make([]byte, copySize),
	}
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

func (b *builder) beginLayer(layer int) { b.layer, b.whiteouts = layer, map[whiteout]bool{} }

// dir returns a directory, and makes it if it is not there. named is true if the layer has an entry for it.
func (b *builder) dir(path string, named bool) (*node, error) {
	n := b.nodes[path]
	if n != nil && !n.Mode.IsDir() {
		if n.layer == b.layer {
			return nil, violation(RuleDuplicate, "%s is a file of this layer already: expected a directory or nothing", quote(path))
		}
		if err := b.remove(n); err != nil {
			return nil, err
		}
		n = nil
	}
	if n == nil {
		return b.makeDir(path, named)
	}
	if n.layer == b.layer && n.named && named {
		return nil, violation(RuleDuplicate, "the layer has it twice")
	}
	b.markUsed(n)
	n.named = n.named || named
	return n, nil
}

// markUsed notes that the current layer has the directory too, and so all directories above it.
func (b *builder) markUsed(n *node) {
	for n.layer != b.layer {
		n.layer, n.named = b.layer, false
		if n.Path == "" {
			return
		}
		n = b.nodes[parentOf(n.Path)]
	}
}

func (b *builder) makeDir(path string, named bool) (*node, error) {
	if !named {
		if err := b.budget.take(path); err != nil {
			return nil, err
		}
	}
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
	parent.children = append(parent.children, n)
}

// file adds a file, and reads its content of the given size from r.
func (b *builder) file(path string, exec bool, size int64, r io.Reader) error {
	if old := b.nodes[path]; old != nil {
		if old.layer == b.layer {
			return violation(RuleDuplicate, "the layer has it twice")
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
		err = violation(RuleTar, "it ends after %d bytes, expected %d", n, e.Size)
	}
	return err
}

// remove removes a node and all below it.
func (b *builder) remove(n *node) error {
	return b.removeBelow(n, func(*node) bool { return true })
}

// removeBelow removes the nodes that match, from the leaves up. The caller's condition does not match the parent of a node that stays.
func (b *builder) removeBelow(n *node, matches func(*node) bool) error {
	kept := n.children[:0]
	for _, child := range n.children {
		if child.removed {
			continue
		}
		if err := b.removeBelow(child, matches); err != nil {
			return err
		}
		if !child.removed {
			kept = append(kept, child)
		}
	}
	n.children = kept
	if n.Path == "" || !matches(n) {
		return nil
	}
	n.removed = true
	delete(b.nodes, n.Path)
	return b.sink.Remove(n.Path, n.Mode.IsDir())
}

const (
	whiteoutPrefix = ".wh."
	opaqueWhiteout = ".wh..wh..opq"
)

// addWhiteout notes a whiteout, which applyWhiteouts applies at the end of the layer: it hides names of earlier layers only, wherever in
// its own layer it is.
func (b *builder) addWhiteout(path string) error {
	dir, name := "", path
	if parent := parentOf(path); parent != "" {
		dir, name = parent+"/", path[len(parent)+1:]
	}
	hides := strings.TrimPrefix(name, whiteoutPrefix)
	w := whiteout{path: dir + hides}
	switch {
	case b.layer == 1:
		return violation(RuleWhiteout, "it hides something of an earlier layer, and this is the first")
	case name == opaqueWhiteout:
		w = whiteout{path: strings.TrimSuffix(dir, "/"), opaque: true}
	case hides == "" || hides == "." || hides == ".." || strings.HasPrefix(hides, whiteoutPrefix):
		return violation(RuleWhiteout, "it hides nothing: expected %sNAME or %s", whiteoutPrefix, opaqueWhiteout)
	}
	if b.whiteouts[w] { // each looks through all below its path
		return violation(RuleDuplicate, "the layer has it twice")
	}
	b.whiteouts[w] = true
	return nil
}

// applyWhiteouts removes what the whiteouts of the layer hide of earlier layers.
func (b *builder) applyWhiteouts() error {
	for w := range b.whiteouts {
		n := b.nodes[w.path]
		if n == nil {
			continue
		}
		hidden := func(below *node) bool { return below.layer != b.layer && (below != n || !w.opaque) }
		if err := b.removeBelow(n, hidden); err != nil {
			return err
		}
	}
	return nil
}

// tree returns the merged tree. The builder cannot be used after it.
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
