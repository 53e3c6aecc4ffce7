// SPDX-License-Identifier: Apache-2.0

package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// InUseError says that another claim holds a device. The scheduler should have prevented it; the plugin is the last barrier
// (kubeletplugin.DRAPlugin's contract).
type InUseError struct {
	Pool, Device string
	// Owner is the record of the claim that holds the device.
	Owner *Record
}

// Error names the device, the holder, and what ends the conflict.
func (e *InUseError) Error() string {
	return fmt.Sprintf("device %s/%s is held by claim %s/%s (UID %s) until kubelet unprepares it: retried until then",
		e.Pool, e.Device, e.Owner.Namespace, e.Owner.Name, e.Owner.UID)
}

// Owner returns the UID of the claim that holds a device, or fs.ErrNotExist. The link may be stale, see Held.
func (s *Store) Owner(pool, name string) (string, error) {
	return os.Readlink(s.ownerPath(pool, name))
}

// Held says whether a claim with a record holds a device. A record that cannot be read holds what its link says.
func (s *Store) Held(pool, name string) bool {
	owner, err := s.Owner(pool, name)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	_, err = s.Load(owner)
	return !errors.Is(err, fs.ErrNotExist)
}

// Acquire makes the record's claim the holder of all its devices, or of none. Admin access holds nothing. The record must be
// saved already, since a link to a claim without a record counts as stale. The caller holds the lock.
func (s *Store) Acquire(r *Record) error {
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.AdminAccess {
			continue
		}
		if err := s.checkFree(d.Pool, d.Name, r.UID); err != nil {
			return err
		}
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.AdminAccess {
			continue
		}
		if err := s.setOwner(d.Pool, d.Name, r.UID); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) checkFree(pool, name, uid string) error {
	owner, err := s.Owner(pool, name)
	if errors.Is(err, fs.ErrNotExist) || owner == uid {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up who holds device %s/%s: %w", pool, name, err)
	}
	other, err := s.Load(owner)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the holder's record went first: the link is a leftover
	}
	if err != nil {
		return fmt.Errorf("device %s/%s may be held: %w", pool, name, err)
	}
	for i := range other.Devices {
		if d := &other.Devices[i]; d.Pool == pool && d.Name == name && !d.AdminAccess {
			return &InUseError{Pool: pool, Device: name, Owner: other}
		}
	}
	return nil
}

func (s *Store) setOwner(pool, name, uid string) error {
	path := s.ownerPath(pool, name)
	if owner, err := os.Readlink(path); err == nil && owner == uid {
		return nil
	}
	if err := removeIfThere(path); err != nil {
		return fmt.Errorf("take device %s/%s: %w", pool, name, err)
	}
	if err := os.Symlink(uid, path); err != nil {
		return fmt.Errorf("take device %s/%s: %w", pool, name, err)
	}
	return nil
}

// ownerPath is one flat file name a device. Pool names hold one slash, device names none; neither may hold an underscore. A name
// that is too long for a file, as on a node with a long name, is hashed.
func (s *Store) ownerPath(pool, name string) string {
	const maxName = 255
	file := strings.ReplaceAll(pool+"/"+name, "/", "_")
	if len(file) > maxName {
		sum := sha256.Sum256([]byte(file))
		file = "sha256_" + hex.EncodeToString(sum[:])
	}
	return filepath.Join(s.dir, ownersDir, file)
}
