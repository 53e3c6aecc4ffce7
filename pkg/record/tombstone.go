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
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/filelock"
)

// Moment is a point in time that two processes of one boot can compare: the boot id and CLOCK_BOOTTIME. That clock also runs while the
// machine sleeps, and no program can set it.
type Moment struct {
	BootID string
	Since  time.Duration
}

// StaleError refuses a Prepare that arrived before the claim was released. kubelet reads the object of a claim before its call gets its
// turn, which may take long.
type StaleError struct{ UID string }

// Error also says what happens next.
func (e *StaleError) Error() string {
	return fmt.Sprintf("claim %s was unprepared after this Prepare was sent: nothing is done; kubelet asks again if a pod needs it", e.UID)
}

// Tombstones are a table in the lock file. Locking uses ranges of the file and none of its bytes. A slot serves the claims whose UIDs hash
// to it. It has room for the claims of this boot that were released last, each with its moment, and one moment for all others: the latest
// of those whose tombstones had to go. A call of such a claim that arrived before that moment is refused, and kubelet calls again. No call
// outlives a boot, so nothing is synced, and a slot of another boot counts as empty. The version before has the same table at the same
// offset.
const (
	slotsOffset = 4096 + 1<<20
	slots       = 1 << 14
	slotClaims  = 7
	slotSize    = 16 * (1 + slotClaims)
)

// slot is little-endian in the file.
type slot struct {
	Boot   uint64 // hash of the boot id
	Others uint64 // CLOCK_BOOTTIME in nanoseconds, like all moments here
	Claims [slotClaims]tombstone
}

// tombstone is free if its moment is 0.
type tombstone struct {
	Claim      uint64 // hash of the UID
	ReleasedAt uint64
}

// openTombstones allocates the table, so that it can be written on a full disk.
func (l locks) openTombstones() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock file: %w", err)
	}
	_ = unix.Fallocate(int(f.Fd()), 0, slotsOffset, slots*slotSize) // as far as the disk has space
	return f.Close()
}

// slotOf returns the offset of the slot of a claim.
func slotOf(uid string) int64 { return slotsOffset + slotSize*int64(claimHash(uid)%slots) }

func claimHash(uid string) uint64 { return hashOf("claim/" + uid) }

func hashOf(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return h.Sum64()
}

// LeaveTombstone notes that every Prepare of the locked claim which arrived before a moment is too late.
func (h *Hold) LeaveTombstone(ctx context.Context, arrived Moment) error {
	err := h.withSlot(ctx, filelock.Exclusive, func() error {
		s, err := h.readSlot(arrived.BootID)
		claim := claimHash(h.uid)
		if err != nil || s.releasedAt(claim) >= uint64(arrived.Since) {
			return err
		}
		s.set(claim, uint64(arrived.Since))
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

// CheckArrival returns a *StaleError for a call that arrived before the locked claim was last released.
func (h *Hold) CheckArrival(ctx context.Context, arrived Moment) error {
	var s slot
	err := h.withSlot(ctx, filelock.Shared, func() (err error) {
		s, err = h.readSlot(arrived.BootID)
		return err
	})
	if err != nil {
		return fmt.Errorf("look up when claim %s was given back: %w", h.uid, err)
	}
	if uint64(arrived.Since) < s.releasedAt(claimHash(h.uid)) {
		return &StaleError{UID: h.uid}
	}
	return nil
}

// withSlot calls f while the claim's slot is locked. Other claims, which other callers hold, share the slot.
func (h *Hold) withSlot(ctx context.Context, m filelock.Mode, f func() error) error {
	r := filelock.Range{Start: slotOf(h.uid), Len: slotSize}
	if _, err := h.wait(ctx, r, m); err != nil {
		return fmt.Errorf("its tombstone %w", err)
	}
	return errors.Join(f(), r.Unlock(h.file))
}

// readSlot reads the claim's slot. A slot that was last written in another boot counts as empty.
func (h *Hold) readSlot(bootID string) (slot, error) {
	var (
		s    slot
		data [slotSize]byte
	)
	_, err := h.file.ReadAt(data[:], slotOf(h.uid))
	if err != nil && !errors.Is(err, io.EOF) { // a new file may be shorter
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

// find returns the tombstone of a claim, or nil.
func (s *slot) find(claim uint64) *tombstone {
	for i := range s.Claims {
		if p := &s.Claims[i]; p.Claim == claim {
			return p
		}
	}
	return nil
}

// releasedAt returns when a claim was last released, or when a claim without a tombstone was that may be this one, or 0.
func (s *slot) releasedAt(claim uint64) uint64 {
	if p := s.find(claim); p != nil {
		return p.ReleasedAt
	}
	return s.Others
}

// set writes the tombstone of a claim: into the one that it has, a free one, or that of the claim that was released first.
func (s *slot) set(claim, moment uint64) {
	p := s.find(claim)
	if p == nil {
		p = &s.Claims[0]
		for i := range s.Claims {
			if s.Claims[i].ReleasedAt < p.ReleasedAt {
				p = &s.Claims[i]
			}
		}
		s.Others = max(s.Others, p.ReleasedAt)
	}
	*p = tombstone{Claim: claim, ReleasedAt: moment}
}
