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

	"github.com/fettle-dev/fettle/pkg/filelock"
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

// Tombstones are a table in the lock file, whose bytes nobody needs for locking. A slot is for the claims whose UIDs hash to it: it has
// room for those that were given back last in a boot, each with its moment, and one moment for all others, the latest of those that had
// to leave: a call of another claim that arrived before it is tried again. No call outlives a boot, so nothing is synced, and what
// another boot left counts for nothing. The plugin of the version before has the same table at the same place.
const (
	slotsOffset = 4096 + 1<<20
	slots       = 1 << 14
	slotClaims  = 7
	slotSize    = 16 * (1 + slotClaims)
)

// slot is little-endian in the file.
type slot struct {
	Boot   uint64 // hash of the boot id
	Others uint64 // CLOCK_BOOTTIME in nanoseconds, as all moments here
	Claims [slotClaims]place
}

// place is free where its moment is 0.
type place struct {
	Claim  uint64 // hash of the UID
	Buried uint64
}

// openTombstones takes the space of the table, so that a full disk keeps nobody from writing to it.
func (s *Store) openTombstones() error {
	f, err := os.OpenFile(filepath.Join(s.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock file: %w", err)
	}
	_ = unix.Fallocate(int(f.Fd()), 0, slotsOffset, slots*slotSize) // as far as the disk has it
	return f.Close()
}

// slotOf is where the table has a claim.
func slotOf(uid string) int64 { return slotsOffset + slotSize*int64(claimHash(uid)%slots) }

func claimHash(uid string) uint64 { return hashOf("claim/" + uid) }

func hashOf(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return h.Sum64()
}

// Bury notes that every Prepare of the locked claim which arrived before a moment is too late.
func (h *Hold) Bury(ctx context.Context, arrived Moment) error {
	err := h.withSlot(ctx, filelock.Exclusive, func() error {
		s, err := h.readSlot(arrived.BootID)
		claim := claimHash(h.uid)
		if err != nil || s.buried(claim) >= uint64(arrived.Since) {
			return err
		}
		s.bury(claim, uint64(arrived.Since))
		data, err := binary.Append(nil, binary.LittleEndian, s)
		if err != nil {
			return err
		}
		_, err = h.file.WriteAt(data, slotOf(h.uid))
		return err
	})
	if err != nil {
		return fmt.Errorf("note that claim %s is given back: %w", h.uid, err)
	}
	return nil
}

// CheckArrival returns a *StaleError for a call that arrived before the locked claim was last given back.
func (h *Hold) CheckArrival(ctx context.Context, arrived Moment) error {
	var s slot
	err := h.withSlot(ctx, filelock.Shared, func() (err error) {
		s, err = h.readSlot(arrived.BootID)
		return err
	})
	if err != nil {
		return fmt.Errorf("look up when claim %s was given back: %w", h.uid, err)
	}
	if uint64(arrived.Since) < s.buried(claimHash(h.uid)) {
		return &StaleError{UID: h.uid}
	}
	return nil
}

// withSlot calls f while the claim's slot is locked, which it shares with claims that others hold.
func (h *Hold) withSlot(ctx context.Context, m filelock.Mode, f func() error) error {
	r := filelock.Range{Start: slotOf(h.uid), Len: slotSize}
	if _, err := h.wait(ctx, r, m); err != nil {
		return fmt.Errorf("its tombstone %w", err)
	}
	return errors.Join(f(), r.Unlock(h.file))
}

// readSlot reads the claim's slot as it is in a boot: empty where none wrote to it since.
func (h *Hold) readSlot(bootID string) (slot, error) {
	var (
		s    slot
		data [slotSize]byte
	)
	_, err := h.file.ReadAt(data[:], slotOf(h.uid))
	if err != nil && !errors.Is(err, io.EOF) { // a new file that is not so long yet
		return slot{}, err
	}
	if _, err := binary.Decode(data[:], binary.LittleEndian, &s); err != nil {
		return slot{}, err
	}
	if boot := hashOf(bootID); s.Boot != boot {
		return slot{Boot: boot}, nil
	}
	return s, nil
}

// place is where a claim's moment is, nil where it has none.
func (s *slot) place(claim uint64) *place {
	for i := range s.Claims {
		if p := &s.Claims[i]; p.Claim == claim {
			return p
		}
	}
	return nil
}

// buried is when a claim was last given back, or when another was that may have been this one; 0 for never.
func (s *slot) buried(claim uint64) uint64 {
	if p := s.place(claim); p != nil {
		return p.Buried
	}
	return s.Others
}

// bury puts a claim in the place it has, in a free one, or in that of the claim which was given back before all others.
func (s *slot) bury(claim, moment uint64) {
	p := s.place(claim)
	if p == nil {
		p = &s.Claims[0]
		for i := range s.Claims {
			if s.Claims[i].Buried < p.Buried {
				p = &s.Claims[i]
			}
		}
		s.Others = max(s.Others, p.Buried)
	}
	*p = place{Claim: claim, Buried: moment}
}
