// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

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
//	damaged/UID              a file that could not be read, set aside until the claim is prepared or given back
//	lock                     byte ranges of it are locked, one a claim and one a device; it holds the tombstones
//
// The links are what makes "who holds this device" one directory, however many claims the node has. They are never synced: after a
// power loss they are made anew from the records.
type Store struct {
	fs  disk.FS
	dir string
}

// Open makes the store's directories where they are missing.
func Open(fsys disk.FS, dir string) (*Store, error) {
	s := &Store{fs: fsys, dir: dir}
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
	// The directories' own names must outlive a power loss, or what is synced inside them does not.
	if err := s.fs.SyncDir(s.dir); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	return nil
}

// Load reads the record of one claim. A claim without a record is fs.ErrNotExist; see also ErrDamaged and ErrForeign.
func (s *Store) Load(uid string) (*Record, error) {
	path, err := s.claimPath(uid)
	if err != nil {
		return nil, err
	}
	data, err := s.fs.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the record of claim %s: %w", uid, err)
	}
	r, err := decode(data, uid)
	if err != nil {
		return nil, fmt.Errorf("the record of claim %s (%s) %w", uid, path, err)
	}
	return r, nil
}

// Create makes a new record, or one that replaces a prepared one for its renewal, durable before it returns. The caller holds the
// claim.
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
		// The directories are missing after Destroy, when a retired node is taken back.
		if err = s.makeDirs(); err == nil {
			err = disk.ReplaceDurably(s.fs, path, whole, 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("record claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	r.valid, r.torn, r.lasting = int64(len(data)), false, r.Released()
	return nil
}

// Advance writes changes down, in their order, and makes them. Only the changes to Prepared and to what is released are synced: any other
// is safe to lose, since a step that was done may be done again, and one that was undone be undone again. The caller holds the claim.
func (s *Store) Advance(r *Record, changes ...Change) error { return s.advance(r, false, changes) }

// Promise notes durably that a claim is being given back, so that it may be answered as given back before all its steps are undone. How
// far that is, and that the record is removed in the end, need not outlive a power loss then: steps are undone once more, unless another
// claim has the devices by then, and to make its record durable was to make the removal of this one so, in the same directory.
func (s *Store) Promise(r *Record) error {
	err := s.advance(r, true, []Change{{Phase: Releasing}})
	r.lasting = err == nil
	return err
}

func (s *Store) advance(r *Record, sync bool, changes []Change) error {
	next, data, err := r.after(changes)
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
	r.lasting = r.lasting || r.Released()
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
		r.torn = true // until the call succeeds: what is there of it is not known before
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

// Release makes the last change, after which nothing is left to undo, and makes certain that the claim holds nothing any more: where
// that cannot be noted, by removing the record. What was promised needs no note. What it leaves is for Remove, and need not be removed
// soon. No change is for a record that is released already. The caller holds the claim and its devices.
func (s *Store) Release(r *Record, last Change) error {
	if r.lasting {
		return nil
	}
	if last != (Change{}) {
		_ = s.Advance(r, last) // what comes of it is looked at next
	}
	if r.lasting {
		return nil
	}
	return s.Remove(r)
}

// Remove forgets a claim and what it holds. An unknown claim is not an error. The record goes first: a link without a record is
// known to be stale, but a record without its links would promise devices that another claim may take. The caller holds the claim
// and its devices.
func (s *Store) Remove(r *Record) error {
	path, err := s.claimPath(r.UID)
	if err != nil {
		return err
	}
	err = disk.RemoveIfThere(s.fs, path)
	if err == nil && !r.lasting {
		err = ignoreMissing(s.fs.SyncDir(filepath.Dir(path)))
		r.lasting = err == nil
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

// UIDs lists the claims that have a record, sorted. It reads no record.
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
	sort.Strings(uids)
	return uids, nil
}

// SetAside moves a damaged file out of the way, so that its claim can be prepared anew or given back. Until one of them is done the
// claim goes on holding what its links say. The caller holds the claim.
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

// InDoubt says whether the claim's file was set aside and the claim not yet been prepared anew or given back.
func (s *Store) InDoubt(uid string) bool {
	_, err := s.fs.Lstat(filepath.Join(s.dir, damagedDir, uid))
	return !errors.Is(err, fs.ErrNotExist) // where nobody can tell, it may be
}

// Settle forgets that a claim's file was set aside. The caller holds the claim.
func (s *Store) Settle(uid string) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	if err := disk.RemoveIfThere(s.fs, filepath.Join(s.dir, damagedDir, uid)); err != nil {
		return fmt.Errorf("forget the damaged record of claim %s: %w", uid, err)
	}
	return nil
}

// SweepTemporary removes what writes of records that were cut off left behind. Those of claims that somebody works on are left.
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

// Destroy removes the store and everything in it but the directory itself, which is often a mount point. The caller holds
// everything.
func (s *Store) Destroy() error {
	var errs []error
	for _, name := range append(directories(), lockFile) {
		errs = append(errs, os.RemoveAll(filepath.Join(s.dir, name)))
	}
	return errors.Join(errs...)
}

// checkUID refuses a UID that is not a plain file name: it comes over a socket.
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

// Claims are the UIDs of the claims that hold something on this node, those whose record is damaged too, sorted.
func (s *Store) Claims() ([]string, error) {
	uids, err := s.UIDs()
	damaged, err2 := s.Damaged()
	uids = append(uids, damaged...)
	slices.Sort(uids)
	return slices.Compact(uids), errors.Join(err, err2)
}
