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

// demand is what a fetch needs, and what there is.
type demand struct {
	// size is that of the new blob, on of which are on the disk already. Sweep needs nothing.
	size, on    int64
	max, margin int64
	free        int64 // of the disk
	// inUse says whether somebody fetches it, and mounted whether somebody has the tree mounted.
	inUse, mounted func(Digest) bool
	now            time.Time
	tooOld         time.Duration
	// spare: nothing may go for it.
	spare bool
}

// plan chooses what must go, least recently used first, so that the quota holds and the disk keeps its margin with all that is
// reserved. Where that cannot be, nothing goes for a blob, and all that may for Sweep. It is short where the disk has no room before
// the victims are deleted.
func (inv *inventory) plan(need demand) (victims []item, short bool, err error) {
	over := need.size - need.max
	lack := need.margin + need.size - need.on - need.free
	var candidates []item
	pinned := int64(0)
	for _, p := range inv.partials {
		over += p.size
		if need.inUse(p.digest) {
			lack += p.size - p.on // it will take the rest of what it reserved
			continue
		}
		candidates = append(candidates, p)
	}
	for _, b := range inv.blobs {
		over += b.size
		if len(b.pins) > 0 {
			pinned += b.size
			continue
		}
		candidates = append(candidates, b)
	}
	if need.max == 0 {
		over = 0
	}
	if need.spare {
		candidates = nil
	} else {
		short, lack = lack > 0, lack-inv.trash
	}
	for _, c := range candidates {
		stale := c.partial && need.now.Sub(c.used) > need.tooOld
		if !stale && over <= 0 && lack <= 0 {
			continue
		}
		if c.tree && !c.partial && need.mounted(c.digest) {
			pinned += c.size
		} else {
			victims = append(victims, c)
			over, lack = over-c.size, lack-c.on
		}
	}
	return victims, short, need.shortage(over, lack, pinned)
}

// shortage is the error for a blob where the quota or the disk is short by so many bytes whatever goes.
func (need *demand) shortage(over, lack, pinned int64) error {
	switch {
	case need.size > 0 && over > 0:
		return fmt.Errorf("the store has %w for %d bytes: its quota of %d is %d short, and %d bytes are pinned by "+
			"claims, regions and caches that are kept, or mounted: "+
			"raise the quota, or wait until some are released", ErrNoSpace, need.size, need.max, over, pinned)
	case need.size > 0 && lack > 0:
		return fmt.Errorf("the store's disk has %w for %d bytes: it has %d free, %d of which are for others, and is %d short: "+
			"free some of it", ErrNoSpace, need.size, need.free, need.margin, lack)
	}
	return nil
}

// reserve makes room for a blob and says so to everybody by the name of its file. The caller holds the digest.
func (s *Store) reserve(ctx context.Context, d Descriptor, spare bool) (p *partial, err error) {
	err = s.reserving(ctx, d, spare, func() (err error) {
		p, err = s.partial(d)
		return err
	})
	return p, err
}

// reserving makes room and calls claim, which makes the name that says so. The caller holds the digest.
func (s *Store) reserving(ctx context.Context, d Descriptor, spare bool, claim func() error) error {
	if s.config.MaxBytes > 0 && d.Size > s.config.MaxBytes {
		return fmt.Errorf("the blob %s is %w: %d bytes, and the store's quota is %d: raise it",
			d.Digest, ErrTooLarge, d.Size, s.config.MaxBytes)
	}
	unlock, err := s.lockNames(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	short, err := s.makeRoom(d, spare)
	if err == nil && short {
		err = s.emptyTrash(func() error { return nil }) // now, not slowly
	}
	if err != nil {
		return err
	}
	return claim()
}

// makeRoom evicts what must go for a blob, or for none. The caller holds the names, and the blob's digest.
func (s *Store) makeRoom(d Descriptor, spare bool) (short bool, err error) {
	inv, err := s.inventory()
	if err != nil {
		return false, err
	}
	need := demand{
		size: d.Size, max: s.config.MaxBytes, margin: s.config.Margin,
		inUse: s.inUse, mounted: func(d Digest) bool { return s.config.InUse(s, d) }, now: s.config.Clock.Now(), tooOld: s.config.PartialAge, spare: spare,
	}
	if need.free, err = s.free(); err != nil {
		return false, onDisk(err)
	}
	if need.on, err = s.ownPartial(d, &inv); err != nil {
		return false, err
	}
	victims, short, err := inv.plan(need)
	if err != nil {
		return false, err
	}
	for _, v := range victims {
		if err := s.evict(v); err != nil {
			return false, err
		}
	}
	return short, nil
}

// inUse says whether somebody fetches the digest.
func (s *Store) inUse(d Digest) bool {
	unlock := s.tryLock(digestOffset(d))
	if unlock == nil {
		return true
	}
	unlock()
	return false
}

// ownPartial takes the beginning of the blob out of the inventory, since it is not in its own way. One that another manifest declared
// to be of another size is removed.
func (s *Store) ownPartial(d Descriptor, inv *inventory) (on int64, err error) {
	inv.partials = slices.DeleteFunc(inv.partials, func(p item) bool {
		switch {
		case d.Digest.IsZero() || p.digest != d.Digest:
			return false
		case p.size == d.Size:
			on = p.on
		default:
			err = errors.Join(err, s.remove(p.name))
		}
		return true
	})
	return on, err
}

// evict removes a partial, or moves a blob to the trash. The caller holds the names, so nobody pins it meanwhile.
func (s *Store) evict(v item) error {
	if !v.partial {
		return s.discardName(v.name, v.digest)
	}
	unlock := s.tryLock(digestOffset(v.digest))
	if unlock == nil {
		return nil // somebody goes on with it
	}
	defer unlock()
	if v.tree {
		return s.discardName(v.name, v.digest)
	}
	return s.remove(v.name)
}

// discardName moves a blob, or a tree, whole or not, to the trash. What has it open or mounted is not disturbed. The move is not synced:
// after a power loss the blob is back, complete.
func (s *Store) discardName(name string, d Digest) error {
	to := fmt.Sprintf("%s/%s.%016x", trashDir, d.Hex(), rand.Uint64()) //nolint:gosec // a name that is free
	if err := s.fs.Rename(s.path(name), s.path(to)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return onDisk(fmt.Errorf("evict the blob %s: %w", d, err))
	}
	return nil
}

// emptyTrash deletes what was evicted, with a pause between two files.
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
		if info, err := s.root.Lstat(trashDir + "/" + name); err != nil || s.mounted(name, info) {
			continue // now, whatever it was before the pauses
		}
		if err := s.removeAll(trashDir+"/"+name, pause); err != nil {
			return err
		}
	}
	return nil
}

// removedAtOnce is how many files of a tree go without a pause: the file system's journal takes them together.
const removedAtOnce = 64

// removeAll removes a file, or a directory with all below it.
func (s *Store) removeAll(name string, pause func() error) error {
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

// Sweep brings the store below its limits, drops what nobody resumed, and deletes slowly what was evicted. The caller runs it now and
// then, in the background: deleting much at once makes some file systems slow for minutes.
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
	if _, err = s.makeRoom(Descriptor{}, false); err != nil {
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

// clean removes from tmp what is no fetch's: another process may be fetching, so what may be one is left to Sweep.
func (s *Store) clean() (err error) {
	failed := s.each(tmpDir, func(name string, info fs.FileInfo) {
		if info.IsDir() {
			err = errors.Join(err, s.cleanTree(name))
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

// cleanTree moves a tree that nobody makes any more to the trash: none is gone on with.
func (s *Store) cleanTree(name string) error {
	d, _, _ := parsePartialTree(name)
	unlock := s.tryLock(digestOffset(d))
	if unlock == nil {
		return nil
	}
	defer unlock()
	return s.discardName(tmpDir+"/"+name, d)
}
