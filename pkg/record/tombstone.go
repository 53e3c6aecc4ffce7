// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// Moment is a point in time that two processes of one boot can compare: the boot id and CLOCK_BOOTTIME, which goes on while the
// machine sleeps and which nobody sets.
type Moment struct {
	BootID string
	Since  time.Duration
}

// before says whether m is earlier than other. Moments of different boots are: no call outlives a boot, so a tombstone of another
// boot is about nobody's call.
func (m Moment) before(other Moment) bool { return m.BootID == other.BootID && m.Since < other.Since }

// StaleError is returned for a call that arrived before the claim was given back and was overtaken: kubelet reads a claim's object
// before it is our turn, which may take long.
type StaleError struct{ UID string }

// Error says what happens next.
func (e *StaleError) Error() string {
	return fmt.Sprintf("claim %s was unprepared after this Prepare was sent: nothing is done; kubelet asks again if a pod needs it", e.UID)
}

// Bury notes that every Prepare of the claim which arrived before a moment is too late. The caller holds the claim.
func (s *Store) Bury(uid string, arrived Moment) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	path := s.tombstonePath(uid)
	if old, err := s.buried(uid); err == nil && old.BootID == arrived.BootID && old.Since >= arrived.Since {
		return nil
	}
	target := arrived.BootID + "@" + strconv.FormatInt(int64(arrived.Since), 10)
	err := s.fs.Symlink(target, path)
	if errors.Is(err, fs.ErrExist) { // the older one counts until the newer is there
		next := s.tombstonePath("." + uid)
		err = errors.Join(disk.RemoveIfThere(s.fs, next), s.fs.Symlink(target, next))
		if err == nil {
			err = s.fs.Rename(next, path)
		}
	}
	if err != nil {
		return fmt.Errorf("note that claim %s is given back: %w", uid, err)
	}
	return nil
}

// CheckArrival returns a *StaleError for a call that arrived before the claim was last given back. The caller holds the claim.
func (s *Store) CheckArrival(uid string, arrived Moment) error {
	buried, err := s.buried(uid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if arrived.before(buried) {
		return &StaleError{UID: uid}
	}
	return nil
}

func (s *Store) buried(uid string) (Moment, error) {
	target, err := s.fs.Readlink(s.tombstonePath(uid))
	if err != nil {
		return Moment{}, fmt.Errorf("look up when claim %s was given back: %w", uid, err)
	}
	boot, since, _ := strings.Cut(target, "@")
	n, err := strconv.ParseInt(since, 10, 64)
	if err != nil {
		return Moment{}, nil //nolint:nilerr // nothing that Bury wrote: about nobody's call
	}
	return Moment{BootID: boot, Since: time.Duration(n)}, nil
}

// Exhume removes the tombstones that are older than any call can be, and those of earlier boots.
func (s *Store) Exhume(oldest Moment) error {
	uids, err := s.list(tombstonesDir, "")
	if err != nil {
		return err
	}
	var errs []error
	for _, uid := range uids {
		errs = append(errs, s.exhume(uid, oldest))
	}
	return errors.Join(errs...)
}

func (s *Store) exhume(uid string, oldest Moment) error {
	hold, err := s.TryLockClaim(uid)
	if err != nil || hold == nil {
		return err
	}
	defer hold.Release()
	buried, err := s.buried(uid)
	if err == nil && buried.BootID == oldest.BootID && !buried.before(oldest) {
		return nil
	}
	return disk.RemoveIfThere(s.fs, s.tombstonePath(uid))
}

func (s *Store) tombstonePath(uid string) string { return filepath.Join(s.dir, tombstonesDir, uid) }
