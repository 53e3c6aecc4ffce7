// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
)

// Unpack makes the tree of an image. If it is there already, no layer is opened. When Unpack returns nil, the tree is complete and
// durable, and every layer had its digests to the last byte. Calls for one digest, in this process and others, unpack it once, as Fetch
// does.
//
// If package unpack refuses the image, the error is ErrInvalid, ErrMismatch or ErrTooLarge, and an *unpack.Error is in its chain.
func (s *Store) Unpack(ctx context.Context, spec TreeSpec, open unpack.Opener) (*Tree, error) {
	err := spec.check()
	var t *Tree
	if err == nil {
		t, err = s.unpack(ctx, spec, open)
	}
	if err != nil {
		return nil, fmt.Errorf("unpack the image %s: %w", spec.Digest, err)
	}
	return t, nil
}

func (s *Store) unpack(ctx context.Context, spec TreeSpec, open unpack.Opener) (*Tree, error) {
	if t, err := s.OpenTree(spec.Digest); !NeedsUnpack(err) {
		return t, err
	}
	unfinished, unlock, err := lockFetch(ctx, s, spec.Digest, spec.Origin)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if t, err := s.OpenTree(spec.Digest); !NeedsUnpack(err) { // made while this call waited
		return t, err
	}
	most := s.mostOf(&spec)
	p, err := s.reserveTree(ctx, &spec, unfinished)
	if err != nil {
		return nil, err
	}
	var t *Tree
	if err = s.fillTree(ctx, &spec, p, open); err == nil {
		t, err = s.completeTree(ctx, spec.Digest, p.dir)
	}
	if most != "" && errors.Is(err, ErrTooLarge) {
		err = fmt.Errorf("%w: %s", err, most)
	}
	if err != nil {
		return nil, errors.Join(err, s.moveToTrash(p.dir, spec.Digest))
	}
	return t, nil
}

// mostOf lets a tree take no more than the share of its namespace, whatever the image says: what is larger is too large, and does not wait
// for room that it never gets. It returns what limits the tree then.
func (s *Store) mostOf(spec *TreeSpec) (limit string) {
	share := s.config.NamespaceBytes
	if spec.Namespace == "" || share == 0 || spec.Room <= share {
		return ""
	}
	spec.Room = share
	return shareLimit(spec.Namespace, share)
}

func shareLimit(namespace string, share int64) string {
	return fmt.Sprintf("images of namespace %s may take %d bytes: have the chart's budget.pinnedBytes raised", namespace, share)
}

// NeedsUnpack reports whether an error of OpenTree or PeekTree means that the tree has to be made: it is not there, or this version cannot
// read it.
func NeedsUnpack(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrInvalid)
}

// partialTree returns the name of a tree that is being made. The name has everything that limits count, so that it changes at once.
func partialTree(d Digest, room int64, namespace string) string {
	if namespace != "" {
		namespace = "." + namespace
	}
	return fmt.Sprintf("%s/%s.%d%s%s", tmpDir, d.Hex(), room, namespace, treeSuffix)
}

const treeSuffix = ".tree"

// growingTree is a tree that is being made, and its reservation. The label of an image may say any size: what it says is the most that the
// tree may take, and is reserved only as its content arrives. So a label evicts nothing.
type growingTree struct {
	store *Store
	spec  *TreeSpec
	// dir is the directory, whose name has the digest of the unfinished fetch and the size of the reservation.
	dir        string
	unfinished Digest
	// room is that size, arrived how much of it was used.
	room, arrived int64
}

// grow makes more space when less than half of what is reserved at once is left. It renames the directory, whose open files stay usable.
func (p *growingTree) grow(ctx context.Context, n int64) error {
	by := p.store.config.GrowBy
	if p.arrived += n; p.room >= p.spec.Room || p.arrived+by/2 <= p.room {
		return nil
	}
	return p.resize(ctx, min(p.arrived+by, p.spec.Room))
}

// settle reserves what the whole tree takes on the disk. For many small files that is several times their bytes.
func (p *growingTree) settle(ctx context.Context, size int64) error {
	if share := p.store.config.NamespaceBytes; p.spec.Namespace != "" && share > 0 && size > share {
		err := fmt.Errorf("it is %w: it takes %d bytes of the disk", ErrTooLarge, size)
		if p.spec.Room < share { // else unpack says what limits it
			err = fmt.Errorf("%w: %s", err, shareLimit(p.spec.Namespace, share))
		}
		return err
	}
	if p.arrived = size; size <= p.room {
		return nil
	}
	return p.resize(ctx, size)
}

// resize makes space for another size of the reservation.
func (p *growingTree) resize(ctx context.Context, room int64) error {
	to := partialTree(p.unfinished, room, p.spec.Namespace)
	err := p.store.reserve(ctx, p.reservation(room), func() error {
		return onDisk(p.store.fs.Rename(p.store.path(p.dir), p.store.path(to)))
	})
	if err == nil {
		p.dir, p.room = to, room
	}
	return err
}

func (p *growingTree) reservation(room int64) reservation {
	return reservation{
		Descriptor: Descriptor{Digest: p.unfinished, Size: room}, opportunistic: p.spec.Opportunistic, arrived: p.arrived,
		namespace: p.spec.Namespace,
	}
}

// reserveTree makes space, and the directory whose name reserves it. The caller holds the lock of the unfinished fetch.
func (s *Store) reserveTree(ctx context.Context, spec *TreeSpec, unfinished Digest) (p *growingTree, err error) {
	if s.config.MaxBytes > 0 && spec.Room > s.config.MaxBytes {
		return nil, s.aboveQuota(spec.Digest, spec.Room)
	}
	var leftovers []string // of processes that ended
	err = s.each(tmpDir, func(name string, _ fs.FileInfo) {
		if d, _, _, ok := parsePartialTree(name); ok && d == unfinished {
			leftovers = append(leftovers, tmpDir+"/"+name)
		}
	})
	for _, name := range leftovers {
		err = errors.Join(err, s.moveToTrash(name, spec.Digest))
	}
	if err != nil {
		return nil, err
	}
	p = &growingTree{store: s, spec: spec, unfinished: unfinished, room: min(s.config.GrowBy, spec.Room)}
	p.dir = partialTree(unfinished, p.room, spec.Namespace)
	return p, s.reserve(ctx, p.reservation(p.room), func() error {
		return onDisk(s.fs.Mkdir(s.path(p.dir), 0o700))
	})
}

// fillTree unpacks into a directory in tmp and makes it durable.
func (s *Store) fillTree(ctx context.Context, spec *TreeSpec, p *growingTree, open unpack.Opener) error {
	options := spec.Options
	options.Arrived = func(n int64) error { return p.grow(ctx, n) }
	if options.Limits.Total == 0 || options.Limits.Total > spec.Room {
		options.Limits.Total = spec.Room
	}
	made, err := s.extract(ctx, spec, p.dir, func(sink unpack.Sink) (*unpack.Tree, error) {
		return unpack.Extract(ctx, spec.layers(), open, sink, options)
	})
	if err != nil {
		return classify(err)
	}
	size := s.sizeOf(spec.Form, p.dir, made)
	if err := p.settle(ctx, size); err != nil {
		return err
	}
	m := TreeMetadata{
		Version: treeVersion, Digest: spec.Digest, Form: spec.Form, FormerHash: spec.Digest, Entries: len(made.Entries),
		Bytes: made.Bytes, Size: size,
		Labels: spec.labels(), Origin: spec.Origin, Created: s.config.Clock.Now().UTC(),
	}
	for _, l := range spec.Layers {
		m.DiffIDs = append(m.DiffIDs, l.DiffID)
	}
	return onDisk(s.sealTree(p.dir, m))
}

// extract calls do with a sink for the directory. The sink opens files relative to its directory and cannot leave it.
func (s *Store) extract(ctx context.Context, spec *TreeSpec, dir string, do func(unpack.Sink) (*unpack.Tree, error)) (*unpack.Tree, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if spec.Form == TreeDirectory {
		dir += "/" + treeRoot
		if err := s.makeRoot(dir); err != nil {
			return nil, err
		}
	}
	below, root, closing, err := s.within(dir)
	if err != nil {
		return nil, err
	}
	defer closing()
	if spec.Form == TreeDirectory {
		epoch := time.Unix(0, 0)
		return do(&unpack.Directory{Files: below, Times: func(name string) error { return root.Chtimes(name, epoch, epoch) }})
	}
	image := &unpack.Image{Files: below}
	t, err := do(image)
	return t, errors.Join(err, image.Close())
}

// makeRoot makes the root of a directory tree. Every user may copy it up.
func (s *directory) makeRoot(dir string) error {
	if err := s.fs.Mkdir(s.path(dir), 0o777); err != nil {
		return err
	}
	f, err := s.fs.OpenFile(s.path(dir), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o777), f.Close())
}

// sizeOf estimates the space that a tree takes on the disk.
func (s *directory) sizeOf(form TreeForm, dir string, made *unpack.Tree) (size int64) {
	if form == TreeDirectory {
		for i := range made.Entries {
			size += (made.Entries[i].Size/onDiskBlock + 1) * onDiskBlock
		}
		return size
	}
	for _, name := range []string{unpack.ImageIndex, unpack.ImageData} {
		if info, err := s.root.Lstat(dir + "/" + name); err == nil {
			size += info.Size()
		}
	}
	return size
}

// sealTree writes the metadata and makes the tree durable. A directory tree is made durable by one sync of the file system, since a sync
// of each of some thousand files takes many times as long.
func (s *directory) sealTree(dir string, m TreeMetadata) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	f, err := s.fs.OpenFile(s.path(dir+"/"+treeMetadata), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err == nil && m.Form == TreeImage {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if m.Form == TreeImage {
		return s.fs.SyncDir(s.path(dir))
	}
	return s.fs.SyncFS(s.path(dir))
}

// completeTree gives the tree its name in the store, on the disk too after its content, and opens it. It opens the tree under the lock: an
// open tree is in use, and one that nobody uses yet could be evicted.
func (s *Store) completeTree(ctx context.Context, d Digest, dir string) (*Tree, error) {
	unlock, err := s.lockNames(ctx)
	if err != nil {
		return nil, err
	}
	t, err := s.OpenTree(d)
	if !NeedsUnpack(err) { // another repository had it meanwhile
		err = errors.Join(err, s.moveToTrash(dir, d))
	} else if err = s.moveToTrash(treeName(d), d); err == nil { // a tree that cannot be read
		if err = onDisk(s.fs.Rename(s.path(dir), s.path(treeName(d)))); err == nil {
			t, err = s.OpenTree(d)
		}
	}
	unlock()
	if err != nil {
		return nil, err
	}
	return t, onDisk(s.fs.SyncDir(s.path(treesDir)))
}

// classify adds this package's kind to an error of package unpack.
func classify(err error) error {
	var path *fs.PathError
	switch {
	case errors.Is(err, unpack.ErrRefused):
		return fmt.Errorf("it is %w: %w", ErrInvalid, err)
	case errors.Is(err, unpack.ErrMismatch):
		return fmt.Errorf("it is %w: %w", ErrMismatch, err)
	case errors.Is(err, unpack.ErrLimit):
		return fmt.Errorf("it is %w: %w", ErrTooLarge, err)
	case errors.As(err, &path):
		return onDisk(err)
	}
	return err
}
