// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Moment is a point in time that two processes of one boot can compare: the boot id and CLOCK_BOOTTIME, which goes on while the
// machine sleeps and which nobody sets.
type Moment struct {
	BootID string
	Since  time.Duration
}

// StaleError is returned for a call that arrived before the claim was given back and was overtaken: kubelet reads a claim's object
// before it is our turn, which may take long.
type StaleError struct{ UID string }

// Error says what happens next.
func (e *StaleError) Error() string {
	return fmt.Sprintf("claim %s was unprepared after this Prepare was sent: nothing is done; kubelet asks again if a pod needs it", e.UID)
}

// Tombstones are a table in the lock file, whose bytes nobody needs for locking: a slot is a hash of the boot id and the moment. No
// call outlives a boot, so nothing is synced, and what another boot left counts for nothing. Claims that share a slot have the later
// of their moments, at which a call of theirs that arrived earlier is tried again.
const (
	slotsOffset = 4096
	slots       = 1 << 16
	slotSize    = 16
)

// openTombstones takes the space of the table, so that a full disk keeps nobody from writing to it, and removes the files that
// another version kept them in.
func (s *Store) openTombstones() error {
	f, err := os.OpenFile(filepath.Join(s.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock file: %w", err)
	}
	_ = unix.Fallocate(int(f.Fd()), 0, slotsOffset, slots*slotSize) // as far as the disk has it
	_ = os.RemoveAll(filepath.Join(s.dir, "tombstones"))
	return f.Close()
}

// slotOf is where the table has a claim.
func slotOf(uid string) int64 { return slotsOffset + slotSize*int64(hashOf("claim/"+uid)%slots) }

func hashOf(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return h.Sum64()
}

// Bury notes that every Prepare of the locked claim which arrived before a moment is too late.
func (h *Hold) Bury(ctx context.Context, arrived Moment) error {
	slot := unix.Flock_t{Type: unix.F_WRLCK, Start: slotOf(h.uid), Len: slotSize} // it may be another claim's, too
	if _, err := poll(ctx, func() (bool, error) { return set(h.file, slot) }); err != nil {
		return fmt.Errorf("note that claim %s is given back: its place %w", h.uid, err)
	}
	old, err := h.buried(arrived.BootID)
	if err == nil && old < arrived.Since {
		var data [slotSize]byte
		binary.LittleEndian.PutUint64(data[:8], hashOf(arrived.BootID))
		binary.LittleEndian.PutUint64(data[8:], uint64(arrived.Since))
		_, err = h.file.WriteAt(data[:], slot.Start)
	}
	slot.Type = unix.F_UNLCK
	_, unlockErr := set(h.file, slot)
	if err := errors.Join(err, unlockErr); err != nil {
		return fmt.Errorf("note that claim %s is given back: %w", h.uid, err)
	}
	return nil
}

// CheckArrival returns a *StaleError for a call that arrived before the locked claim was last given back.
func (h *Hold) CheckArrival(arrived Moment) error {
	buried, err := h.buried(arrived.BootID)
	if err != nil {
		return fmt.Errorf("look up when claim %s was given back: %w", h.uid, err)
	}
	if arrived.Since < buried {
		return &StaleError{UID: h.uid}
	}
	return nil
}

// buried is when the claim was last given back in a boot, 0 for never.
func (h *Hold) buried(bootID string) (time.Duration, error) {
	var data [slotSize]byte
	_, err := h.file.ReadAt(data[:], slotOf(h.uid))
	if errors.Is(err, io.EOF) { // a new file that is not so long yet
		return 0, nil
	}
	if err != nil || binary.LittleEndian.Uint64(data[:8]) != hashOf(bootID) {
		return 0, err
	}
	return time.Duration(binary.LittleEndian.Uint64(data[8:])), nil
}
