// SPDX-License-Identifier: Apache-2.0

package region

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// failuresFile is the name of the file with the failed programmings, in the directory of the content files. No device has that name.
const failuresFile = "failed_programmings.json"

// failureWindow is how long a failed programming counts.
const failureWindow = time.Hour

// Failures limits how many programmings a namespace's images may fail on this node within an hour. A failed programming can leave a region
// that only an admin brings back, so without a limit one namespace could take all regions of a node out of use. The count is on disk and
// outlives the process. Failures is safe for concurrent use.
type Failures struct {
	fs    disk.FS
	path  string
	limit int
	clock clock.PassiveClock

	mu      sync.Mutex
	running map[string]int
	// changed is closed when a programming ends.
	changed chan struct{}
}

// OpenFailures counts in a file of the contents' directory. A limit of 0 is none.
func OpenFailures(contents *Contents, limit int, now clock.PassiveClock) *Failures {
	return &Failures{
		fs: contents.fs, path: filepath.Join(contents.dir, failuresFile), limit: limit, clock: cmp.Or[clock.PassiveClock](now, clock.RealClock{}),
		running: map[string]int{}, changed: make(chan struct{}),
	}
}

// TooManyFailuresError says until when a namespace must wait.
type TooManyFailuresError struct {
	Namespace string
	Count     int
	Until     time.Time
}

func (e *TooManyFailuresError) Error() string {
	return fmt.Sprintf("namespace %s: %d programmings failed on this node within an hour, and no more are allowed: "+
		"the next is possible at %s; check the bitstreams that the Events with reason ProgramFailed name",
		e.Namespace, e.Count, e.Until.UTC().Format(time.RFC3339))
}

// Check fails with a *TooManyFailuresError while a claim's namespace must not program. It reserves nothing. Namespaces are told apart by
// [Claim.Tenant]: one that was deleted and made again is another's.
func (f *Failures) Check(claim *Claim) error {
	if f == nil || f.limit <= 0 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.check(claim)
	return err
}

// check returns the failures that count.
func (f *Failures) check(claim *Claim) ([]time.Time, error) {
	all, err := f.read()
	if err != nil {
		return nil, err
	}
	failed := all[claim.Tenant()]
	if len(failed) < f.limit {
		return failed, nil
	}
	return nil, &TooManyFailuresError{Namespace: claim.Namespace, Count: len(failed), Until: failed[len(failed)-f.limit].Add(failureWindow)}
}

// Begin waits until a namespace may program: those that are under way could all fail, so no more run at a time than may still fail. The
// caller says with end whether the programming failed.
func (f *Failures) Begin(ctx context.Context, claim *Claim) (end func(failed bool) error, err error) {
	if f == nil || f.limit <= 0 {
		return func(bool) error { return nil }, nil
	}
	tenant := claim.Tenant()
	for {
		f.mu.Lock()
		failed, err := f.check(claim)
		changed := f.changed
		free := err == nil && len(failed)+f.running[tenant] < f.limit
		if free {
			f.running[tenant]++
		}
		f.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case free:
			return func(failed bool) error { return f.end(tenant, failed) }, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (f *Failures) end(tenant string, failed bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() {
		close(f.changed)
		f.changed = make(chan struct{})
	}()
	if f.running[tenant]--; f.running[tenant] == 0 {
		delete(f.running, tenant)
	}
	if !failed {
		return nil
	}
	all, err := f.read()
	if err != nil {
		return err
	}
	all[tenant] = append(all[tenant], f.clock.Now().UTC())
	return f.write(all)
}

// read returns the failures within the last hour, oldest first. A file that is damaged counts as empty: only a disk fault damages it, and
// nobody could use FPGAs until somebody removed it.
func (f *Failures) read() (map[string][]time.Time, error) {
	data, err := f.fs.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string][]time.Time{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the failed programmings: %w", err)
	}
	all := parseFailures(data)
	now := f.clock.Now()
	for tenant, failed := range all {
		// A time in the future is of a clock that was set back since.
		failed = slices.DeleteFunc(failed, func(at time.Time) bool { return now.Sub(at) >= failureWindow || at.After(now) })
		slices.SortFunc(failed, time.Time.Compare)
		all[tenant] = failed
		if len(failed) == 0 {
			delete(all, tenant)
		}
	}
	return all, nil
}

func parseFailures(data []byte) map[string][]time.Time {
	var all map[string][]time.Time
	if body, whole := checked(data); !whole || json.Unmarshal(body, &all) != nil || all == nil {
		return map[string][]time.Time{}
	}
	return all
}

func (f *Failures) write(all map[string][]time.Time) error {
	data, err := json.Marshal(all)
	if err == nil {
		err = disk.ReplaceDurably(f.fs, f.path, withChecksum(data), 0o600)
	}
	if err != nil {
		return fmt.Errorf("note a failed programming: %w", err)
	}
	return nil
}
