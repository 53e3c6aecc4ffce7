// SPDX-License-Identifier: Apache-2.0

package cachemount

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
)

// Fill is what the plugin makes in memory for a claim's view of a cache: links, directories, and files that the claim has of its own.
type Fill struct {
	Entries int64 `json:"entries,omitempty"`
	Bytes   int64 `json:"bytes,omitempty"`
}

// Measure returns what the plugin has to make in memory for a claim, before it makes any of it. It refuses what is too much for one claim.
func (m *Mounter) Measure(ctx context.Context, s *Stored, u *Use, plan *kernelcache.Plan) (Fill, error) {
	key := fmt.Sprint(s.Tree.Digest, u.Type, u.Access, u.Want)
	if known, ok := m.inspector.fill(key); ok {
		return known, m.checkFill(u, known)
	}
	done, err := m.turn(ctx, u.Namespace)
	if err != nil {
		return Fill{}, err
	}
	defer done()
	if err := s.checkParts(plan); err != nil {
		return Fill{}, err
	}
	var sum Fill
	for i := range plan.Mounts {
		one, err := m.measure(s, u, i, &plan.Mounts[i])
		sum.Entries, sum.Bytes = sum.Entries+one.Entries, sum.Bytes+one.Bytes
		if err != nil && !errors.Is(err, errTooMany) {
			return Fill{}, err
		}
		if err := m.checkFill(u, sum); err != nil {
			m.inspector.remember(key, sum) // to refuse it again costs nothing
			return sum, err
		}
	}
	m.inspector.remember(key, sum)
	return sum, nil
}

// checkParts refuses a cache of which a label has a directory mounted by itself that the image does not have.
func (s *Stored) checkParts(plan *kernelcache.Plan) error {
	if len(plan.Mounts) == 1 { // the whole cache
		return nil
	}
	return atLowPriority(func() error {
		return s.read(func(fsys fs.FS) error {
			for _, m := range plan.Mounts {
				info, err := fs.Stat(fsys, m.Source)
				switch {
				case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), err == nil && !info.IsDir():
					return fmt.Errorf("%w: a label of the image has a part of the cache mounted at %s, but there is no directory %s",
						kernelcache.ErrInvalid, m.Target, m.Source)
				case err != nil:
					return fmt.Errorf("look for %s: %w", m.Source, err)
				}
			}
			return nil
		})
	})
}

// measure returns what is to be made for one mount.
func (m *Mounter) measure(s *Stored, u *Use, i int, dir *kernelcache.Mount) (out Fill, err error) {
	if r := dir.Relocation; r != nil {
		out = Fill{Entries: ownEntries(r), Bytes: ownBytes(r)}
	}
	if u.Access != Seed || m.MaxEntries > 0 && out.Entries > m.MaxEntries { // which the caller refuses
		return out, nil
	}
	err = atLowPriority(func() error {
		return s.read(func(fsys fs.FS) (err error) {
			out, err = newSeed(s.Cache, dir, u.filesPlace(i)).measure(fsys, m.MaxEntries)
			return err
		})
	})
	return out, err
}

// checkFill refuses more than one claim may have of a cache.
func (m *Mounter) checkFill(u *Use, f Fill) error {
	if m.MaxEntries > 0 && f.Entries > m.MaxEntries {
		return fmt.Errorf("%w: access %s: the kubelet plugin would have to make more than %d files, links and directories in memory, which is "+
			"the most for one cache of a claim: %s", ErrRefused, u.Access, m.MaxEntries, u.remedy())
	}
	if needed := f.Bytes + f.Entries*hostmount.NodeBytes; needed > maxFilled {
		return fmt.Errorf("%w: access %s: %d files, links and directories of its own would take %d MiB of the kubelet plugin's memory, want "+
			"at most %d MiB: %s", ErrRefused, u.Access, f.Entries, needed>>20, maxFilled>>20, u.remedy())
	}
	return nil
}

// remedy says how the claim may have the cache with less made for it.
func (u *Use) remedy() string {
	if u.Access == Seed {
		return "use ReadOnly, or Overlay in a pod without hostUsers: false"
	}
	return "mount the cache where its producer had it, so that no file has to be rewritten"
}

// mountsOfEach is how many mounts a directory of a cache takes at most: its memory, and what is over it or beside it.
const mountsOfEach = 2

// needs returns what a claim's use of a cache makes the node hold.
func needs(raw json.RawMessage) ([]budget.Need, error) {
	u, err := decodeUse(raw)
	if err != nil {
		return nil, err
	}
	out := []budget.Need{
		{Resource: budget.Pins, Amount: 1},
		{Resource: budget.PinnedBytes, Amount: u.Size, Once: u.Tree.String()},
		{Resource: budget.SeedEntries, Amount: u.Fill.Entries},
		{Resource: budget.SeedBytes, Amount: u.Fill.Bytes},
		{Resource: budget.Mounts, Amount: mountsOfEach * int64(len(u.Mounts))},
	}
	if u.Access == ReadOnly {
		return out, nil
	}
	for range u.Mounts {
		out = append(out, budget.Need{Resource: budget.Memory, Amount: hostmount.MemoryOf(u.Bytes)})
	}
	return out, nil
}

// lowPriority is the nice value of threads that look through caches and make seeds.
const lowPriority = 10

// atLowPriority runs do on a thread that yields the processors to the rest of the plugin: what one claim has made in memory must not delay
// the claims that need none of it. The thread is not unlocked, so it ends with its goroutine, and its priority with it. What do reads is a
// tenant's, so its panic is an error: another goroutine's would end the plugin, again after each start.
func atLowPriority(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, lowPriority) // of this thread; without it the work is only in the way of others
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Errorf("%w: reading it fails in an unforeseen way: %v", kernelcache.ErrInvalid, r)
			}
		}()
		done <- do()
	}()
	return <-done
}

// turn waits for a turn of a namespace to look through a cache or to make a seed, which take time and memory of the plugin.
func (m *Mounter) turn(ctx context.Context, namespace string) (done func(), err error) {
	if m.Turns == nil {
		return func() {}, nil
	}
	return m.Turns.Take(ctx, namespace)
}
