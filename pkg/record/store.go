// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	claimsDir = "claims"
	ownersDir = "owners"
	lockFile  = "lock"
	suffix    = ".json"
	tmpPrefix = ".tmp-"
	// lockRetry is how often a held lock is tried again; a Prepare holds it for about a millisecond.
	lockRetry = 2 * time.Millisecond
)

// Store is a directory of records:
//
//	claims/UID.json        one Record
//	owners/POOL_DEVICE     a symbolic link whose target is the UID that holds the device
//	lock                   taken around every change
//
// The link is what makes "who holds this device" one readlink, however many claims the node has.
type Store struct {
	dir string
}

// Open makes the store's directories where they are missing.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir}
	return s, s.makeDirs()
}

func (s *Store) makeDirs() error {
	for _, d := range []string{claimsDir, ownersDir} {
		if err := os.MkdirAll(filepath.Join(s.dir, d), 0o700); err != nil {
			return fmt.Errorf("make the state directory: %w", err)
		}
	}
	return nil
}

// Lock waits until no other process changes the store, or until ctx ends. The returned function gives the lock back.
func (s *Store) Lock(ctx context.Context) (unlock func(), err error) {
	path := filepath.Join(s.dir, lockFile)
	for {
		f, err := tryLock(path)
		if err != nil {
			return nil, fmt.Errorf("take the state lock: %w", err)
		}
		if f != nil {
			return func() { _ = f.Close() }, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the state lock %s: %w", path, ctx.Err())
		case <-time.After(lockRetry):
		}
	}
}

// tryLock returns nil without an error where another holds the lock. A lock on a file that Destroy removed meanwhile keeps nobody
// out, so the file is looked at again once it is locked.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return nil, f.Close()
	}
	if err != nil {
		return nil, errors.Join(&fs.PathError{Op: "flock", Path: path, Err: err}, f.Close())
	}
	locked, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	named, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(locked, named) {
		return nil, f.Close()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Load reads the record of one claim. A claim without a record is fs.ErrNotExist.
func (s *Store) Load(uid string) (*Record, error) {
	path, err := s.claimPath(uid)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the record of claim %s: %w", uid, err)
	}
	r, err := decode(data, uid)
	if err != nil {
		return nil, fmt.Errorf("read the record of claim %s (%s): %w", uid, path, err)
	}
	return r, nil
}

// Save makes the record durable before it returns: file and directory are synced.
func (s *Store) Save(r *Record) error {
	path, err := s.claimPath(r.UID)
	if err != nil {
		return err
	}
	data, err := encode(r)
	if err != nil {
		return err
	}
	// They are missing after Destroy, when a retired node is taken back.
	if err := s.makeDirs(); err != nil {
		return err
	}
	return writeDurably(path, data)
}

// Remove forgets a claim and what it holds. An unknown claim is not an error. The record goes first: a link without a record is
// known to be stale, but a record without its links would promise devices that another claim may take.
func (s *Store) Remove(r *Record) error {
	path, err := s.claimPath(r.UID)
	if err != nil {
		return err
	}
	err = removeIfThere(path)
	if err == nil {
		err = ignoreMissing(syncDir(filepath.Dir(path)))
	}
	if err != nil {
		return fmt.Errorf("remove the record of claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	var errs []error
	for i := range r.Devices {
		d := &r.Devices[i]
		if owner, err := s.Owner(d.Pool, d.Name); err == nil && owner == r.UID {
			errs = append(errs, removeIfThere(s.ownerPath(d.Pool, d.Name)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("give back the devices of claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	return nil
}

// UIDs lists the claims that have a record, sorted. It reads no record.
func (s *Store) UIDs() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, claimsDir))
	if ignoreMissing(err) != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var uids []string
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, suffix) && !strings.HasPrefix(name, tmpPrefix) {
			uids = append(uids, strings.TrimSuffix(name, suffix))
		}
	}
	sort.Strings(uids)
	return uids, nil
}

// All reads every record it can. What cannot be read is returned as joined errors beside the others.
func (s *Store) All() ([]*Record, error) {
	uids, err := s.UIDs()
	if err != nil {
		return nil, err
	}
	var (
		records []*Record
		errs    []error
	)
	for _, uid := range uids {
		r, err := s.Load(uid)
		switch {
		case err == nil:
			records = append(records, r)
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	return records, errors.Join(errs...)
}

// SweepTemporary removes what writes that were cut off left behind. The caller holds the lock, so none is under way.
func (s *Store) SweepTemporary() error {
	leftovers, err := filepath.Glob(filepath.Join(s.dir, claimsDir, tmpPrefix+"*"))
	if err != nil {
		return fmt.Errorf("list temporary files: %w", err)
	}
	var errs []error
	for _, path := range leftovers {
		errs = append(errs, removeIfThere(path))
	}
	return errors.Join(errs...)
}

// Destroy removes the store and everything in it but the directory itself, which is often a mount point.
func (s *Store) Destroy() error {
	var errs []error
	for _, name := range []string{claimsDir, ownersDir, lockFile} {
		errs = append(errs, os.RemoveAll(filepath.Join(s.dir, name)))
	}
	return errors.Join(errs...)
}

// claimPath refuses a UID that is not a plain file name: it comes over a socket.
func (s *Store) claimPath(uid string) (string, error) {
	if uid == "" || strings.HasPrefix(uid, ".") || strings.ContainsAny(uid, "/\x00") || len(uid) > 128 {
		return "", fmt.Errorf("claim UID %q cannot name a record: expected the UID of a ResourceClaim", uid)
	}
	return filepath.Join(s.dir, claimsDir, uid+suffix), nil
}

func removeIfThere(path string) error { return ignoreMissing(os.Remove(path)) }

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
