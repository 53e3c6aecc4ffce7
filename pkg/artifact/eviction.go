// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"time"
)

// spaceRequest asks for the space of a new blob or tree, and describes the disk and the limits. Sweep asks for no space.
type spaceRequest struct {
	// size is that of the new blob, and written is how much of it is on the disk already.
	size, written int64
	max, margin   int64
	free          int64 // of the disk
	// inUse reports whether a process makes a partial now, and mounted whether a tree is mounted.
	inUse, mounted func(Digest) bool
	// heldByOthers reports whether only other namespaces still need a tree.
	heldByOthers func(item) bool
	now          time.Time
	// partialAge is the age from which a partial is evicted in any case.
	partialAge time.Duration
	// opportunistic: nothing may be evicted for it but kept layers, and not these either if it keeps a layer itself.
	opportunistic, keeps bool
	// namespace is that of the object which a tree is for, and share the most that trees of one namespace may take. Empty or 0: no limit.
	namespace string
	share     int64
}

// planShare chooses what to evict of a namespace's own trees, least recently used first, so that they stay within its share, and takes
// them out of the inventory. So a namespace that fetches many images evicts its own, and of others' only what its share may displace. A
// tree that is being made counts with the room that is reserved for it: two at once could otherwise both take what is left of the share.
// A tree that only other namespaces pin does not count, since this one can neither use up less nor evict it: what those may pin is
// limited, too.
func (inv *inventory) planShare(r *spaceRequest) (victims []item, err error) {
	if r.namespace == "" || r.share == 0 || r.size == 0 {
		return nil, nil
	}
	over, kept := r.size-r.share, int64(0)
	for _, it := range slices.Concat(inv.partials, inv.blobs) {
		if r.counts(it) {
			over += it.size
		}
	}
	evict := func(it item) bool {
		switch {
		case over <= 0 || !r.mayEvict(it) || !r.counts(it):
			return false
		case it.partial && !it.kept && r.inUse(it.digest), !it.partial && (len(it.pins) > 0 || r.mounted(it.digest)):
			kept += it.size
			return false
		}
		victims = append(victims, it)
		over -= it.size
		inv.trash += it.written
		return true
	}
	inv.partials = slices.DeleteFunc(inv.partials, evict) // first, since nothing continues a partial tree
	inv.blobs = slices.DeleteFunc(inv.blobs, evict)
	if over > 0 {
		return nil, fmt.Errorf("the store has %w for %d bytes: images of namespace %s may take %d, which is %d short, and %d bytes of them are "+
			"pinned, mounted or being unpacked: wait until some are released, or have the chart's budget.pinnedBytes raised",
			ErrNoSpace, r.size, r.namespace, r.share, over, kept)
	}
	return victims, nil
}

// counts reports whether a tree counts for the share of the request's namespace.
func (r *spaceRequest) counts(it item) bool {
	return it.namespace == r.namespace && !r.heldByOthers(it)
}

// mayEvict reports whether anything may go for the request that nobody needs.
func (r *spaceRequest) mayEvict(it item) bool { return !r.opportunistic || it.kept && !r.keeps }

// plan chooses what to evict, least recently used first, so that the quota holds and the disk keeps its margin with all reservations. If
// that is not possible, it returns an error for a blob, and all that may be evicted for Sweep. deleteNow is true if the disk has no space
// before the victims are deleted.
func (inv *inventory) plan(r *spaceRequest) (victims []item, deleteNow bool, err error) {
	candidates, reserved, rest, pinned := inv.candidates(r)
	overQuota, diskShort := r.size+reserved-r.max, r.margin+r.size-r.written+rest-r.free
	if r.max == 0 {
		overQuota = 0
	}
	if !r.opportunistic {
		deleteNow, diskShort = diskShort > 0, diskShort-inv.trash
	}
	for _, c := range candidates {
		stale := c.partial && r.now.Sub(c.used) > r.partialAge
		if !stale && overQuota <= 0 && diskShort <= 0 {
			continue
		}
		if c.tree && !c.partial && r.mounted(c.digest) {
			pinned += c.size
		} else {
			victims = append(victims, c)
			overQuota, diskShort = overQuota-c.size, diskShort-c.written
		}
	}
	return victims, deleteNow, r.shortage(overQuota, diskShort, pinned)
}

// candidates returns what may be evicted for a request, in this order. reserved is what everything takes, rest how much of that will still
// be written, and pinned what is pinned.
func (inv *inventory) candidates(r *spaceRequest) (candidates []item, reserved, rest, pinned int64) {
	for _, p := range inv.partials {
		reserved += p.size
		if r.inUse(p.digest) {
			rest += p.size - p.written
			if !p.kept {
				continue
			}
			p.written = p.size // it gives back what it would write, too
		}
		candidates = append(candidates, p)
	}
	for _, b := range inv.blobs {
		reserved += b.size
		if len(b.pins) > 0 {
			pinned += b.size
			continue
		}
		candidates = append(candidates, b)
	}
	return slices.DeleteFunc(candidates, func(c item) bool { return !r.mayEvict(c) }), reserved, rest, pinned
}

// shortage returns the error for a blob if the quota or the disk is short whatever is evicted.
func (r *spaceRequest) shortage(overQuota, diskShort, pinned int64) error {
	switch {
	case r.size > 0 && overQuota > 0:
		return fmt.Errorf("the store has %w for %d bytes: its quota of %d is %d short, and %d bytes are pinned by "+
			"claims, regions and caches that are kept, or mounted: "+
			"raise the quota, or wait until some are released", ErrNoSpace, r.size, r.max, overQuota, pinned)
	case r.size > 0 && diskShort > 0:
		return fmt.Errorf("the store's disk has %w for %d bytes: it has %d free, %d of which are for others, and is %d short: "+
			"free some of it", ErrNoSpace, r.size, r.free, r.margin, diskShort)
	}
	return nil
}

// reserveBlob makes space for a blob and creates its partial file, whose name reserves the space. The caller holds the lock of the
// unfinished fetch.
func (s *Store) reserveBlob(ctx context.Context, d Descriptor, unfinished Digest, opportunistic bool) (p *partial, err error) {
	reserved := reservation{Descriptor: Descriptor{Digest: unfinished, Size: d.Size}, opportunistic: opportunistic}
	err = s.reserve(ctx, reserved, func() (err error) {
		p, err = s.partial(d, unfinished)
		return err
	})
	return p, err
}

// aboveQuota returns the error for what the store cannot hold even if it is empty.
func (s *Store) aboveQuota(d Digest, size int64) error {
	return fmt.Errorf("the blob %s is %w: %d bytes, and the store's quota is %d: raise it", d, ErrTooLarge, size, s.config.MaxBytes)
}

// reservation is space for a blob or tree. The zero value asks for none.
type reservation struct {
	Descriptor
	// opportunistic: nothing is evicted for it but kept layers. keeps: it is one.
	opportunistic, keeps bool
	// arrived is how much of a tree that is being made is on the disk already.
	arrived int64
	// namespace is that of the object which a tree is for, if it has one.
	namespace string
}

// reserve makes space and calls create, which makes the name that reserves it. The caller holds the lock of the digest. Layers that are
// only kept for a later try give way.
func (s *Store) reserve(ctx context.Context, r reservation, create func() error) error {
	if s.config.MaxBytes > 0 && r.Size > s.config.MaxBytes {
		return s.aboveQuota(r.Digest, r.Size)
	}
	unlock, err := s.lockNames(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	deleteNow, err := s.makeSpace(r)
	if err == nil && deleteNow {
		err = s.emptyTrash(func() error { return nil }) // without pauses
	}
	if err != nil {
		return err
	}
	return create()
}

// makeSpace evicts what a reservation needs, or, if that is empty, what the limits need. The caller holds the locks of the names and of
// the digest.
func (s *Store) makeSpace(r reservation) (deleteNow bool, err error) {
	inv, err := s.inventory()
	if err != nil {
		return false, err
	}
	request := spaceRequest{
		size: r.Size, max: s.config.MaxBytes, margin: s.config.Margin,
		inUse: s.inUse, mounted: func(d Digest) bool { return s.config.InUse(s, d) }, now: s.config.Clock.Now(), partialAge: s.config.PartialAge,
		heldByOthers:  func(it item) bool { return heldByOthers(&s.directory, it) },
		opportunistic: r.opportunistic, keeps: r.keeps, namespace: r.namespace, share: s.config.NamespaceBytes,
	}
	if request.free, err = s.free(); err != nil {
		return false, onDisk(err)
	}
	if request.written, err = s.takeOwnPartial(r.Descriptor, &inv); err != nil {
		return false, err
	}
	request.written += r.arrived
	own, err := inv.planShare(&request)
	if err != nil {
		return false, err
	}
	victims, deleteNow, err := inv.plan(&request)
	if err != nil {
		return false, err
	}
	for _, v := range append(own, victims...) {
		if err := s.evict(v); err != nil {
			return false, err
		}
	}
	return deleteNow, nil
}

// inUse reports whether a process makes the blob or tree of a digest now.
func (s *directory) inUse(d Digest) bool {
	unlock := s.tryLock(digestOffset(d))
	if unlock == nil {
		return true
	}
	unlock()
	return false
}

// takeOwnPartial removes the blob's own partial from the inventory, since it is continued and not evicted, and returns its size on the
// disk. A partial for another declared size is deleted.
func (s *directory) takeOwnPartial(d Descriptor, inv *inventory) (written int64, err error) {
	inv.partials = slices.DeleteFunc(inv.partials, func(p item) bool {
		switch {
		case d.Digest.IsZero() || p.digest != d.Digest:
			return false
		case p.tree: // it grows
		case p.size == d.Size:
			written = p.written
		default:
			err = errors.Join(err, s.remove(p.name))
		}
		return true
	})
	return written, err
}

// evict deletes the partial of a blob, and moves everything else to the trash. The caller holds the lock of the names, so no pin is added
// meanwhile.
func (s *directory) evict(v item) error {
	if !v.partial {
		return s.moveToTrash(v.name, v.digest)
	}
	if v.kept {
		return dropKept(s, v.name)
	}
	unlock := s.tryLock(digestOffset(v.digest))
	if unlock == nil {
		return nil // another fetch continues it
	}
	defer unlock()
	if v.tree {
		return s.moveToTrash(v.name, v.digest)
	}
	return s.remove(v.name)
}

// moveToTrash moves a blob or a tree, complete or not, to the trash. Open files and mounts of it still work. The move is not synced: after
// a power loss the blob is back, complete.
func (s *directory) moveToTrash(name string, d Digest) error {
	to := fmt.Sprintf("%s/%s.%016x", trashDir, d.Hex(), rand.Uint64()) //nolint:gosec // a name that is free
	if err := s.fs.Rename(s.path(name), s.path(to)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return onDisk(fmt.Errorf("evict the blob %s: %w", d, err))
	}
	return nil
}

// emptyTrash deletes what was evicted, and calls pause between two files.
func (s *Store) emptyTrash(pause func() error) error {
	var names []string
	if err := s.each(trashDir, func(name string, _ fs.FileInfo) { names = append(names, name) }); err != nil {
		return err
	}
	for i, name := range names {
		if i > 0 {
			if err := pause(); err != nil {
				return err
			}
		}
		if info, err := s.root.Lstat(trashDir + "/" + name); err != nil || s.trashInUse(name, info) {
			continue // asked for each, since there are pauses
		}
		if err := s.removeAll(trashDir+"/"+name, pause); err != nil {
			return err
		}
	}
	return nil
}

// removedAtOnce is the number of files of a tree that are deleted without a pause: the file system's journal takes them together.
const removedAtOnce = 64

// removeAll removes a file, or a directory with all below it.
func (s *directory) removeAll(name string, pause func() error) error {
	info, err := s.root.Lstat(name)
	if err != nil || !info.IsDir() {
		return s.remove(name)
	}
	var names []string
	if err := s.each(name, func(entry string, _ fs.FileInfo) { names = append(names, entry) }); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for i, entry := range names {
		if err := s.removeAll(name+"/"+entry, pause); err != nil {
			return err
		}
		if i%removedAtOnce == removedAtOnce-1 {
			if err := pause(); err != nil {
				return err
			}
		}
	}
	return s.remove(name)
}

// Sweep brings the store below its limits, drops partial blobs that were not resumed, and deletes slowly what was evicted. The caller runs
// it now and then in the background: deleting many files at once makes some file systems slow for minutes.
func (s *Store) Sweep(ctx context.Context) error {
	err := s.shrink(ctx)
	if err == nil {
		err = s.emptyTrash(func() error { return s.pause(ctx) })
	}
	if err != nil {
		return fmt.Errorf("sweep the artifact store %s: %w", s.dir, err)
	}
	return nil
}

func (s *Store) shrink(ctx context.Context) error {
	unlock, err := s.lockNames(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err = s.makeSpace(reservation{}); err != nil {
		return err
	}
	return s.dropPinDirs()
}

func (s *Store) pause(ctx context.Context) error {
	timer := s.config.Clock.NewTimer(s.config.Pace)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// clean removes files from tmp that no fetch can continue. Partial blobs are left to Sweep, since another process may be fetching them.
func (s *Store) clean() (err error) {
	failed := s.each(tmpDir, func(name string, info fs.FileInfo) {
		if info.IsDir() {
			err = errors.Join(err, s.cleanTree(name))
			return
		}
		if _, _, _, kept := parseKept(name); kept {
			return
		}
		d, _, ok := parsePartial(name)
		if unlock := s.tryLock(digestOffset(d)); unlock != nil {
			defer unlock()
			if _, gone := s.root.Lstat(blobName(d)); !ok || gone == nil {
				err = errors.Join(err, s.remove(tmpDir+"/"+name))
			}
		}
	})
	return errors.Join(failed, err)
}

// cleanTree moves a partial tree to the trash unless a process makes it now. Trees are never continued.
func (s *directory) cleanTree(name string) error {
	d, _, _, _ := parsePartialTree(name)
	unlock := s.tryLock(digestOffset(d))
	if unlock == nil {
		return nil
	}
	defer unlock()
	return s.moveToTrash(tmpDir+"/"+name, d)
}
