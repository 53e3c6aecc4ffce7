// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/pkg/disk"
)

const (
	claimsDir  = "claims"
	ownersDir  = "owners"
	damagedDir = "damaged"
	lockFile   = "lock"
	suffix     = ".json"
)

func directories() []string { return []string{claimsDir, ownersDir, damagedDir} }

// Store is a directory of records:
//
//	claims/UID.json          one Record
//	owners/POOL_DEVICE/UID   a link for each claim that holds the device; its target says how
//	damaged/UID              an unreadable file, set aside until the claim is prepared again or released
//	lock                     byte ranges of it are locked, one for each claim and each device; it holds the tombstones
//
// Because of the links, one directory answers which claims hold a device, however many claims the node has. The links are never synced. The
// plugin makes them again from the records after a power loss.
type Store struct {
	locks
	fs  disk.FS
	dir string
}

// Open makes the missing directories of the store.
func Open(fsys disk.FS, dir string) (*Store, error) {
	s := &Store{locks: locks{path: filepath.Join(dir, lockFile)}, fs: fsys, dir: dir}
	if err := s.makeDirs(); err != nil {
		return s, err
	}
	return s, s.openTombstones()
}

func (s *Store) makeDirs() error {
	for _, d := range directories() {
		if err := disk.MkdirAll(s.fs, filepath.Join(s.dir, d), 0o700); err != nil {
			return fmt.Errorf("make the state directory: %w", err)
		}
	}
	// The names of the directories must survive a power loss, or what is synced inside them is lost with them.
	if err := s.fs.SyncDir(s.dir); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	return nil
}

// Load reads the record of one claim. For a claim without a record the error is fs.ErrNotExist; see also ErrDamaged and ErrForeign.
func (s *Store) Load(uid string) (*Record, error) { return new(Reading).Load(s, uid) }

// Reading is what was read of a claim's record. The zero value is nothing.
type Reading struct {
	content []byte
	record  *Record
}

// Load is Store.Load for a caller that may have read the record before. A file with the same content is not decoded once more. The caller
// changes only steps and phase of the record.
func (last *Reading) Load(s *Store, uid string) (*Record, error) {
	path, err := s.claimPath(uid)
	if err != nil {
		return nil, err
	}
	data, err := s.fs.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the record of claim %s: %w", uid, err)
	}
	if last.record == nil || last.record.UID != uid || !bytes.Equal(last.content, data) {
		r, err := decode(data, uid)
		if err != nil {
			return nil, fmt.Errorf("the record of claim %s (%s) %w", uid, path, err)
		}
		*last = Reading{content: data, record: r}
	}
	return last.record.Clone(), nil
}

// Stamp tells whether a file is the one that was read before.
type Stamp struct {
	modified time.Time
	size     int64
	inode    uint64
}

// Stamp returns the stamp of a claim's record without reading the record. For a claim without a record the error is fs.ErrNotExist.
func (s *Store) Stamp(uid string) (Stamp, error) {
	path, err := s.claimPath(uid)
	if err != nil {
		return Stamp{}, err
	}
	info, err := s.fs.Lstat(path)
	if err != nil {
		return Stamp{}, fmt.Errorf("look at the record of claim %s: %w", uid, err)
	}
	out := Stamp{modified: info.ModTime(), size: info.Size()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		out.inode = stat.Ino
	}
	return out, nil
}

// Create writes a new record, or one that replaces a prepared record for its renewal. It is durable when Create returns. The caller holds
// the claim.
func (s *Store) Create(r *Record) error {
	path, err := s.claimPath(r.UID)
	if err != nil {
		return err
	}
	if err := r.checkNew(); err != nil {
		return err
	}
	data, err := encode(r)
	if err != nil {
		return err
	}
	return s.write(path, data, r)
}

func (s *Store) write(path string, data []byte, r *Record) error {
	whole := withRoom(data, r)
	err := disk.ReplaceDurably(s.fs, path, whole, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		// Destroy removed the directories, and the retired node is taken back.
		if err = s.makeDirs(); err == nil {
			err = disk.ReplaceDurably(s.fs, path, whole, 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("record claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	r.valid, r.torn, r.durable = int64(len(data)), false, r.Released()
	return nil
}

// Advance writes changes to the file and applies them to the record, in order. It syncs only a change to Prepared and a change that makes
// the record released. Losing any other does no harm: a step that was done may be done again, and one that was undone may be undone again.
// The caller holds the claim.
func (s *Store) Advance(r *Record, changes ...Change) error { return s.advance(r, false, changes) }

// MarkReleasing notes durably that a claim is being released, so that the plugin may answer Unprepare before all steps are undone. The
// progress of that, and the removal of the record, need not survive a power loss. If the record comes back, its steps are undone once more,
// unless another claim has the devices by then. The creation of that claim's record made the removal of this one durable, since both are in
// the same directory.
func (s *Store) MarkReleasing(r *Record) error {
	err := s.advance(r, true, []Change{{Phase: Releasing}})
	r.durable = err == nil
	return err
}

func (s *Store) advance(r *Record, sync bool, changes []Change) error {
	next, data, err := r.withChanges(changes)
	if err != nil {
		return err
	}
	path, err := s.claimPath(r.UID)
	if err != nil {
		return err
	}
	sync = sync || next.Phase == Prepared || next.Released()
	if err := s.append(path, data, r, sync); err != nil {
		return fmt.Errorf("record claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	for _, c := range changes {
		r.apply(c)
	}
	r.valid += int64(len(data))
	r.durable = r.durable || r.Released()
	return nil
}

func (s *Store) append(path string, data []byte, r *Record, sync bool) error {
	f, err := s.fs.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if r.torn {
		err = f.Truncate(r.valid)
	}
	if err == nil {
		r.torn = true // until the call succeeds, since the end of the file is not known before
		_, err = f.WriteAt(data, r.valid)
	}
	if err == nil && sync {
		err = f.Datasync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		r.torn = false
	}
	return err
}

// Release makes the last change, after which nothing is left to undo, and makes sure that the claim holds nothing any more. If the change
// cannot be noted, Release removes the record. After MarkReleasing no note is needed. Remove may delete the rest later. An empty change is
// for a record that is released already. The caller holds the claim and its devices.
func (s *Store) Release(r *Record, last Change) error {
	if r.durable {
		return nil
	}
	if last != (Change{}) {
		_ = s.Advance(r, last) // The next lines check the result.
	}
	if r.durable {
		return nil
	}
	return s.Remove(r)
}

// Remove deletes the record of a claim and its links. An unknown claim is no error. The record goes first: a link without a record counts
// as stale, but a record without its links would promise devices that another claim may take. The caller holds the claim and its devices.
func (s *Store) Remove(r *Record) error {
	path, err := s.claimPath(r.UID)
	if err != nil {
		return err
	}
	err = disk.RemoveIfThere(s.fs, path)
	if err == nil && !r.durable {
		err = ignoreMissing(s.fs.SyncDir(filepath.Dir(path)))
		r.durable = err == nil
	}
	if err != nil {
		return fmt.Errorf("remove the record of claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	var errs []error
	for i := range r.Devices {
		d := &r.Devices[i]
		if !d.AdminAccess {
			errs = append(errs, disk.RemoveIfThere(s.fs, s.ownerPath(d.Pool, d.Name, r.UID)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("give back the devices of claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	return nil
}

// UIDs lists the claims with a record, sorted. It reads no record.
func (s *Store) UIDs() ([]string, error) { return s.list(claimsDir, suffix) }

// Damaged lists the claims whose file was set aside, sorted.
func (s *Store) Damaged() ([]string, error) { return s.list(damagedDir, "") }

func (s *Store) list(dir, suffix string) ([]string, error) {
	entries, err := s.fs.ReadDir(filepath.Join(s.dir, dir))
	if ignoreMissing(err) != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var uids []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), suffix); ok && !strings.HasPrefix(name, ".") {
			uids = append(uids, name)
		}
	}
	slices.Sort(uids)
	return uids, nil
}

// SetAside moves a damaged file away, so that its claim can be prepared again or released. Until then the claim holds the devices that its
// links name. The caller holds the claim.
func (s *Store) SetAside(uid string) error {
	path, err := s.claimPath(uid)
	if err == nil {
		err = s.fs.Rename(path, filepath.Join(s.dir, damagedDir, uid))
	}
	if err != nil {
		return fmt.Errorf("set the damaged record of claim %s aside: %w", uid, err)
	}
	return nil
}

// InDoubt reports whether the claim's file was set aside and the claim has not been prepared again or released since.
func (s *Store) InDoubt(uid string) bool {
	_, err := s.fs.Lstat(filepath.Join(s.dir, damagedDir, uid))
	return !errors.Is(err, fs.ErrNotExist) // true if it cannot be read
}

// Recorded reports whether there is a record of a claim, damaged or not. It returns true if that cannot be read.
func (s *Store) Recorded(uid string) bool {
	_, err := s.Stamp(uid)
	return !errors.Is(err, fs.ErrNotExist) || s.InDoubt(uid)
}

// CheckDoubt fails while files are set aside. The containers of their claims may run, and nobody knows what these claims use.
func (s *Store) CheckDoubt() error {
	damaged, err := s.Damaged()
	if err == nil && len(damaged) > 0 {
		err = fmt.Errorf("the records of claims %s were set aside as damaged, and may name any file: delete their pods, or wait until these end",
			strings.Join(damaged, ", "))
	}
	return err
}

// ForgetDamaged forgets that the file of a claim was set aside. The caller holds the claim.
func (s *Store) ForgetDamaged(uid string) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	if err := disk.RemoveIfThere(s.fs, filepath.Join(s.dir, damagedDir, uid)); err != nil {
		return fmt.Errorf("forget the damaged record of claim %s: %w", uid, err)
	}
	return nil
}

// SweepTemporary removes the files of interrupted writes. It skips claims that another caller works on.
func (s *Store) SweepTemporary() error {
	entries, err := s.fs.ReadDir(filepath.Join(s.dir, claimsDir))
	if ignoreMissing(err) != nil {
		return fmt.Errorf("list records: %w", err)
	}
	var errs []error
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), disk.TemporaryPrefix)
		uid, _, named := strings.Cut(rest, suffix)
		if !ok || !named {
			continue
		}
		hold, err := s.TryLockClaim(uid)
		if err == nil && hold != nil {
			err = disk.RemoveIfThere(s.fs, filepath.Join(s.dir, claimsDir, e.Name()))
			hold.Release()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Destroy removes everything in the store, but not the directory itself, which is often a mount point. The caller holds everything.
func (s *Store) Destroy() error {
	var errs []error
	for _, name := range append(directories(), lockFile) {
		errs = append(errs, os.RemoveAll(filepath.Join(s.dir, name)))
	}
	return errors.Join(errs...)
}

// checkUID refuses a UID that is not a plain file name, since UIDs come over a socket.
func checkUID(uid string) error {
	if uid == "" || strings.HasPrefix(uid, ".") || strings.ContainsAny(uid, "/\x00") || len(uid) > 128 {
		return fmt.Errorf("claim UID %q cannot name a record: expected the UID of a ResourceClaim", uid)
	}
	return nil
}

func (s *Store) claimPath(uid string) (string, error) {
	return filepath.Join(s.dir, claimsDir, uid+suffix), checkUID(uid)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Claims lists the UIDs of the claims that hold something on this node, including those whose record is damaged, sorted.
func (s *Store) Claims() ([]string, error) {
	uids, err := s.UIDs()
	damaged, err2 := s.Damaged()
	uids = append(uids, damaged...)
	slices.Sort(uids)
	return slices.Compact(uids), errors.Join(err, err2)
}
