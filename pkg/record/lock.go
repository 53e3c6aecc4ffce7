// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/fettle-dev/fettle/pkg/filelock"
)

// Locks are ranges of one file. A claim is always locked before its devices, and devices in the order of their ranges, so that no two
// callers wait for each other.

// locks are those of a store, in one file.
type locks struct{ path string }

// Hold is the set of ranges that one caller has locked.
type Hold struct {
	file *os.File
	// uid is the locked claim, if a claim is locked.
	uid string
	// Waited says that another caller held a part of it before, so what the caller has read may be out of date.
	Waited bool
}

// ErrBusy is returned if another caller held the lock until ctx ended.
var ErrBusy = errors.New("is busy")

const (
	specsOffset = 0
	// budgetOffset is one byte that earlier versions do not lock: they do not limit what claims hold together.
	budgetOffset = 1
	// overlapsOffset is one, too: they compare devices by their names alone.
	overlapsOffset = 2
	firstOffset    = 1024
	// lockRetry is how soon a held lock is tried again, doubling to maxLockRetry. A Prepare without steps holds it for about a
	// millisecond.
	lockRetry    = time.Millisecond
	maxLockRetry = 32 * time.Millisecond
)

// LockClaim waits until no other caller works on the claim, or until ctx ends.
func (l locks) LockClaim(ctx context.Context, uid string) (*Hold, error) {
	h, err := l.hold(ctx, claimRange(uid), filelock.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("claim %s %w", uid, err)
	}
	h.uid = uid
	return h, nil
}

// TryLockClaim returns nil without an error if another caller works on the claim.
func (l locks) TryLockClaim(uid string) (*Hold, error) {
	f, err := claimRange(uid).TryAt(l.path, filelock.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("lock claim %s: %w", uid, err)
	}
	if f == nil {
		return nil, nil //nolint:nilnil // documented above
	}
	return &Hold{file: f, uid: uid}, nil
}

func claimRange(uid string) filelock.Range { return rangeOf("claim/" + uid) }

// LockSpecs keeps shared CDI specs from being removed (shared), or allows the caller to remove some (exclusive). Callers hold it only for a
// moment.
func (l locks) LockSpecs(ctx context.Context, exclusive bool) (*Hold, error) {
	mode := filelock.Shared
	if exclusive {
		mode = filelock.Exclusive
	}
	h, err := l.hold(ctx, filelock.Range{Start: specsOffset, Len: 1}, mode)
	if err != nil {
		return nil, fmt.Errorf("the CDI directory %w", err)
	}
	return h, nil
}

// LockBudget keeps other callers from creating records of claims that need something of the node's budget. So what such records say does
// not change between the decision on a claim and the creation of its record. Callers hold it for no longer than that, and lock nothing
// after it.
func (l locks) LockBudget(ctx context.Context) (*Hold, error) {
	h, err := l.hold(ctx, filelock.Range{Start: budgetOffset, Len: 1}, filelock.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("the budget of the node %w", err)
	}
	return h, nil
}

// LockOverlaps keeps other callers from creating records of claims whose devices may overlap those of other claims by another name. Callers
// hold it between that decision and the creation of the record, and lock no more than the budget after it.
func (l locks) LockOverlaps(ctx context.Context) (*Hold, error) {
	h, err := l.hold(ctx, filelock.Range{Start: overlapsOffset, Len: 1}, filelock.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("the devices that may overlap others %w", err)
	}
	return h, nil
}

// LockAll waits until no other caller works on anything.
func (l locks) LockAll(ctx context.Context) (*Hold, error) {
	h, err := l.hold(ctx, filelock.Range{}, filelock.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("the state directory %w", err)
	}
	return h, nil
}

// Devices also locks devices, each named POOL/DEVICE, in any order.
func (h *Hold) Devices(ctx context.Context, names []string) error {
	offsets := make(map[int64]string, len(names))
	for _, name := range names {
		offsets[rangeOf("device/"+name).Start] = name
	}
	order := make([]int64, 0, len(offsets))
	for offset := range offsets {
		order = append(order, offset)
	}
	slices.Sort(order)
	for _, offset := range order {
		waited, err := h.wait(ctx, filelock.Range{Start: offset, Len: 1}, filelock.Exclusive)
		if err != nil {
			return fmt.Errorf("device %s %w", offsets[offset], err)
		}
		h.Waited = h.Waited || waited
	}
	return nil
}

// Release unlocks everything.
func (h *Hold) Release() { _ = h.file.Close() }

// hold waits for a range of the lock file. Destroy removes that file, so each try opens it again.
func (l locks) hold(ctx context.Context, r filelock.Range, m filelock.Mode) (*Hold, error) {
	h := &Hold{}
	var err error
	h.Waited, err = retry(ctx, func() (locked bool, err error) {
		h.file, err = r.TryAt(l.path, m)
		return h.file != nil, err
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// wait waits for one more range.
func (h *Hold) wait(ctx context.Context, r filelock.Range, m filelock.Mode) (waited bool, err error) {
	return retry(ctx, func() (bool, error) { return r.Try(h.file, m) })
}

func retry(ctx context.Context, try func() (bool, error)) (waited bool, err error) {
	waited, err = filelock.Backoff{First: lockRetry, Longest: maxLockRetry}.Retry(ctx, try)
	if errors.Is(err, filelock.ErrHeld) {
		err = fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return waited, err
}

// rangeOf spreads names over the file, a byte each. Two names that share one wait for each other, which costs time and breaks nothing.
func rangeOf(name string) filelock.Range {
	return filelock.Range{Start: firstOffset + int64(hashOf(name)%(math.MaxInt64-2*firstOffset)), Len: 1}
}
