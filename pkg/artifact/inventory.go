// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// item is a complete blob or tree, or a partial one, which is being made or was left by a process that ended.
type item struct {
	digest Digest
	// size counts towards the quota, and written is how much of it is on the disk now.
	size, written int64
	used          time.Time
	partial       bool
	tree          bool
	kept          bool // a KeptLayer
	name          string
	pins          []string
	// namespace is that of a tree's object.
	namespace string
}

// inventory lists what the store holds, each list in the order of eviction. Partials are listed first: a blob that is completed meanwhile
// is then counted twice, and not left out.
type inventory struct {
	partials, blobs []item
	trash           int64
}

func (s *Store) inventory() (inv inventory, err error) {
	err = s.each(tmpDir, func(name string, info fs.FileInfo) {
		if d, room, namespace, ok := parsePartialTree(name); ok {
			// Its files are not counted: what arrived before the reservation grew last counts as written. Its last use is zero: if no process
			// makes it, it is evicted first.
			inv.partials = append(inv.partials, item{
				digest: d, size: room, written: max(0, room-s.config.GrowBy), partial: true, tree: true, name: tmpDir + "/" + name,
				namespace: namespace,
			})
		}
		if d, size, namespace, ok := parseKept(name); ok {
			inv.partials = append(inv.partials, item{
				digest: d, size: size, written: min(size, info.Size()), used: info.ModTime(), partial: true, kept: true,
				name: tmpDir + "/" + name, namespace: namespace,
			})
		}
		if d, size, ok := parsePartial(name); ok {
			inv.partials = append(inv.partials, item{
				digest: d, size: size, written: min(size, info.Size()), used: info.ModTime(), partial: true, name: tmpDir + "/" + name,
			})
		}
	})
	if err != nil {
		return inv, err
	}
	err = s.each(blobsDir, func(name string, info fs.FileInfo) {
		var d Digest
		if parseHex(&d, name) && info.Mode().IsRegular() {
			inv.blobs = append(inv.blobs, item{digest: d, size: info.Size(), written: info.Size(), used: info.ModTime(), name: blobName(d)})
		}
	})
	if err != nil {
		return inv, err
	}
	if err := s.eachTree(func(it item) { inv.blobs = append(inv.blobs, it) }); err != nil {
		return inv, err
	}
	for i := range inv.blobs {
		if inv.blobs[i].pins, err = s.pinsOf(inv.blobs[i].digest); err != nil {
			return inv, err
		}
	}
	err = s.each(trashDir, func(name string, info fs.FileInfo) {
		if !s.trashInUse(name, info) {
			inv.trash += s.diskSize(trashDir+"/"+name, info)
		}
	})
	for _, list := range [][]item{inv.partials, inv.blobs} {
		slices.SortFunc(list, func(a, b item) int {
			return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.name, b.name))
		})
	}
	return inv, err
}

// eachTree calls do for each tree. A tree with unreadable metadata has the size of its files, and the last use zero.
func (s *directory) eachTree(do func(item)) error {
	err := s.each(treesDir, func(name string, info fs.FileInfo) {
		it := item{tree: true, name: treesDir + "/" + name}
		if !info.IsDir() || !parseHex(&it.digest, name) {
			return
		}
		if t, err := s.readTree(it.name); err == nil {
			it.size, it.written, it.used, it.namespace = t.Size, t.Size, info.ModTime(), t.Labels[namespaceLabel]
		} else {
			it.size = s.diskSize(it.name, info)
			it.written = it.size
		}
		do(it)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was unpacked yet
	}
	return err
}

// diskSize returns the size of a file, or of all files below a directory.
func (s *directory) diskSize(name string, info fs.FileInfo) int64 {
	if !info.IsDir() {
		return info.Size()
	}
	size := int64(0)
	_ = s.each(name, func(entry string, info fs.FileInfo) { size += s.diskSize(name+"/"+entry, info) })
	return size
}

// trashInUse reports whether a tree in the trash must stay because it is mounted. Its name begins with the digest.
func (s *Store) trashInUse(name string, info fs.FileInfo) bool {
	var d Digest
	digits, _, _ := strings.Cut(name, ".")
	return info.IsDir() && parseHex(&d, digits) && s.config.InUse(s, d)
}

// each calls do for each entry of a directory. It passes over entries that vanish meanwhile.
func (s *directory) each(dir string, do func(name string, info fs.FileInfo)) error {
	f, err := s.root.Open(dir)
	if err != nil {
		return onDisk(err)
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return onDisk(err)
	}
	for _, e := range entries {
		if info, err := s.root.Lstat(dir + "/" + e.Name()); err == nil {
			do(e.Name(), info)
		}
	}
	return nil
}

// Usage is what the store holds.
type Usage struct {
	// Bytes is the size of all complete blobs and trees, and Pinned that of the pinned ones. Partial is reserved for incomplete ones. Trash
	// is what Sweep would free.
	Bytes, Pinned, Partial, Trash int64
	// MaxBytes is the quota, or 0 for none. Free is the free space of the disk.
	MaxBytes, Free int64
	// Blobs and Trees are in the order in which they would be evicted if none were pinned.
	Blobs []BlobUsage
	Trees []BlobUsage
}

// BlobUsage is one complete blob or tree.
type BlobUsage struct {
	Digest   Digest
	Size     int64
	LastUsed time.Time
	// Pins are the owners of its pins, sorted.
	Pins []string
}

// Digests returns the digests of the complete blobs, sorted.
func (s *Store) Digests() ([]Digest, error) {
	var out []Digest
	err := s.each(blobsDir, func(name string, info fs.FileInfo) {
		var d Digest
		if parseHex(&d, name) && info.Mode().IsRegular() {
			out = append(out, d)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list the artifact store %s: %w", s.dir, err)
	}
	slices.SortFunc(out, func(a, b Digest) int { return bytes.Compare(a[:], b[:]) })
	return out, nil
}

// Usage counts what the store holds.
func (s *Store) Usage() (Usage, error) {
	inv, err := s.inventory()
	u := Usage{Trash: inv.trash, MaxBytes: s.config.MaxBytes}
	if err == nil {
		u.Free, err = s.free()
	}
	if err != nil {
		return Usage{}, fmt.Errorf("count what is in the artifact store %s: %w", s.dir, err)
	}
	for _, p := range inv.partials {
		u.Partial += p.size
	}
	for _, b := range inv.blobs {
		u.Bytes += b.size
		if len(b.pins) > 0 {
			u.Pinned += b.size
		}
		list := &u.Blobs
		if b.tree {
			list = &u.Trees
		}
		*list = append(*list, BlobUsage{Digest: b.digest, Size: b.size, LastUsed: b.used, Pins: b.pins})
	}
	return u, nil
}
