// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// TestAcquire tries every way to take a device against every way in which another claim may have it.
func TestAcquire(t *testing.T) {
	held := map[string]func(t *testing.T, s *Store){
		"nobody":  func(*testing.T, *Store) {},
		"whole":   func(t *testing.T, s *Store) { put(t, s, holding("u1", "gpu-0")) },
		"share a": func(t *testing.T, s *Store) { put(t, s, sharing("a", "u1", "gpu-0")) },
		"two shares a": func(t *testing.T, s *Store) {
			put(t, s, sharing("a", "u1", "gpu-0"), sharing("a", "u3", "gpu-0"))
		},
		"share of nothing": func(t *testing.T, s *Store) { put(t, s, sharing("", "u1", "gpu-0")) },
		"share a beside a link of b": func(t *testing.T, s *Store) { // which comes first, and speaks for nobody
			put(t, s, sharing("b", "u0", "gpu-0"))
			check.Must(t, os.Remove(path(s, "u0")))
			put(t, s, sharing("a", "u1", "gpu-0"))
		},
		"look": func(t *testing.T, s *Store) { put(t, s, looking("u1", "gpu-0")) },
		"half prepared": func(t *testing.T, s *Store) {
			r := stepping("u1", 1)
			r.Devices = holding("u1", "gpu-0").Devices
			put(t, s, r)
		},
		"lost record": func(t *testing.T, s *Store) {
			put(t, s, holding("u1", "gpu-0"))
			check.Must(t, s.SetAside("u1"))
		},
		"lost record of a share a": func(t *testing.T, s *Store) {
			put(t, s, sharing("a", "u1", "gpu-0"))
			check.Must(t, s.SetAside("u1"))
		},
		"damaged record": func(t *testing.T, s *Store) {
			put(t, s, holding("u1", "gpu-0"))
			check.Must(t, os.WriteFile(path(s, "u1"), nil, 0o600))
		},
		"record removed, link left": func(t *testing.T, s *Store) {
			put(t, s, holding("u1", "gpu-0"))
			check.Must(t, os.Remove(path(s, "u1")))
		},
		"being released": func(t *testing.T, s *Store) {
			r := stepping("u1", 2)
			r.Devices = holding("u1", "gpu-0").Devices
			put(t, s, r)
			advance(t, s, r, Change{Phase: Releasing}, Change{Step: 1, State: step.Undone})
		},
		"released": func(t *testing.T, s *Store) {
			r := stepping("u1", 1)
			r.Devices = holding("u1", "gpu-0").Devices
			put(t, s, r)
			advance(t, s, r, Change{Phase: Releasing}, Change{State: step.Undone})
		},
		"record of another device": func(t *testing.T, s *Store) {
			put(t, s, holding("u1", "gpu-0"))
			check.Must(t, s.Create(holding("u1", "gpu-7")))
		},
		"record that only looks now": func(t *testing.T, s *Store) {
			put(t, s, holding("u1", "gpu-0"))
			check.Must(t, s.Create(looking("u1", "gpu-0")))
		},
	}
	const free, inUse, differs = "", "is held by", "is shared with another configuration by"
	takers := []func() *Record{
		func() *Record { return holding("u2", "gpu-0") },
		func() *Record { return sharing("a", "u2", "gpu-0") },
		func() *Record { return sharing("b", "u2", "gpu-0") },
		func() *Record { return looking("u2", "gpu-0") },
	}
	want := map[string][4]string{ // by taker: whole, share a, share b, look
		"nobody":                     {free, free, free, free},
		"whole":                      {inUse, inUse, inUse, free},
		"share a":                    {inUse, free, differs, free},
		"two shares a":               {inUse, free, differs, free},
		"share of nothing":           {inUse, differs, differs, free},
		"share a beside a link of b": {inUse, free, differs, free},
		"look":                       {free, free, free, free},
		"half prepared":              {inUse, inUse, inUse, free},
		"lost record":                {inUse, inUse, inUse, free},
		"lost record of a share a":   {inUse, free, differs, free},
		"damaged record":             {inUse, inUse, inUse, free},
		"record removed, link left":  {free, free, free, free},
		"being released":             {inUse, inUse, inUse, free},
		"released":                   {free, free, free, free},
		"record of another device":   {free, free, free, free},
		"record that only looks now": {free, free, free, free},
	}
	for name, arrange := range held {
		t.Run(name, func(t *testing.T) {
			for i, taker := range takers {
				s := open(t)
				arrange(t, s)
				r := taker()
				check.Must(t, s.Create(r))
				before := content(t, s)
				refused(t, i, want[name][i], s.Acquire(r))
				if want[name][i] != free {
					if diff := cmp.Diff(before, content(t, s)); diff != "" {
						t.Errorf("taker %d: a refusal changed something (-before +after):\n%s", i, diff)
					}
					continue
				}
				check.Must(t, s.Acquire(r)) // again
				if got, want := s.Held(pool, "gpu-0"), len(holders(t, s, "gpu-0")) > 0; got != want {
					t.Errorf("taker %d: held %v, want %v", i, got, want)
				}
				check.Must(t, s.Remove(r))
			}
		})
	}
}

// released is the record of a claim that was given back by a process which ended before it removed it.
func released(t *testing.T, s *Store) {
	t.Helper()
	r := holding("u1", "gpu-0")
	put(t, s, r)
	advance(t, s, r, Change{Phase: Releasing})
}

// TestTakeOver: a device of a released record is nobody's, and who takes it removes the record first, unless somebody works on that.
func TestTakeOver(t *testing.T) {
	s := open(t)
	released(t, s)
	if s.Held(pool, "gpu-0") {
		t.Error("held by a claim that is released")
	}
	hold, err := s.LockClaim(t.Context(), "u1")
	check.Must(t, err)
	refused(t, 0, "is held by", s.Acquire(holding("u2", "gpu-0")))
	hold.Release()
	before := content(t, s)
	broken := s.through(fault.New(fault.Fail(2, syscall.EIO)))
	if err := broken.Acquire(holding("u2", "gpu-0")); !errors.Is(err, syscall.EIO) {
		t.Errorf("error %v, want that it is not certain", err)
	}
	check.Must(t, os.WriteFile(path(s, "u1"), []byte(before["claims/u1.json"]), 0o600))
	put(t, s, holding("u2", "gpu-0"))
	if diff := cmp.Diff([]string{"claims/u2.json", "owners/node-1_gpu_gpu-0/u2"}, files(t, s)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestTakeOverIsCertain: where a process ended before its note was synced, no power loss gives the device to two claims.
// So no share is beside one with another setting, which checkFree relies on.
func TestTakeOverIsCertain(t *testing.T) {
	for name, claims := range map[string][2]*Record{
		"whole":  {holding("u1", "gpu-0"), holding("u2", "gpu-0")},
		"shares": {sharing("a", "u1", "gpu-0"), sharing("b", "u2", "gpu-0")},
	} {
		t.Run(name, func(t *testing.T) { takesOverForCertain(t, claims[0], claims[1]) })
	}
}

// takesOverForCertain has the first claim released without a sync, and the second take its device.
func takesOverForCertain(t *testing.T, r, second *Record) {
	t.Helper()
	base := t.TempDir()
	start, err := fault.Snapshot(base)
	check.Must(t, err)
	in := fault.New()
	s, err := Open(in.FS(unsynced{}), filepath.Join(base, "state"))
	check.Must(t, err)
	put(t, s, r)
	before := in.Log().Changes()
	in.Set(fault.DropSync(syncs(in.Log()) + 1))
	advance(t, s, r, Change{Phase: Releasing})
	in.Set()
	check.Must(t, s.Acquire(second))
	check.Must(t, s.Create(second))
	log, seen := in.Log(), map[string]int{}
	for n := before; n <= log.Changes(); n++ {
		states, err := fault.Replay(start, log.Before(n+1), fault.Options{})
		check.Must(t, err)
		for state := range states {
			dir := filepath.Join(t.TempDir(), "after")
			check.Must(t, state.Materialise(dir))
			after := &Store{fs: disk.OS{}, dir: filepath.Join(dir, "state")}
			first, err := after.Load("u1")
			_, err2 := after.Load("u2")
			has := fmt.Sprint(err == nil && !first.Released(), err2 == nil)
			if has == "true true" {
				t.Errorf("both have it after operation %d: lost %s", n, state.Lost)
			}
			seen[has]++
		}
	}
	t.Log(seen)
	if len(seen) != 3 {
		t.Errorf("seen %v, want the device to be held by the first, nobody and the second", seen)
	}
}

func syncs(log fault.Log) (last int) {
	for _, op := range log {
		last = max(last, op.Sync)
	}
	return last
}

// refused fails where an error is not that u1 has the device as said.
func refused(t *testing.T, taker int, how string, err error) {
	t.Helper()
	if how == "" {
		if err != nil {
			t.Errorf("taker %d: %v", taker, err)
		}
		return
	}
	inUse, ok := errors.AsType[*InUseError](err)
	if !ok {
		t.Errorf("taker %d: %v, want an InUseError", taker, err)
		return
	}
	if inUse.Pool != pool || inUse.Device != "gpu-0" || inUse.Owner.UID != "u1" || inUse.Differs != strings.Contains(how, "another") {
		t.Errorf("taker %d: %+v names the wrong device, claim or reason", taker, inUse)
	}
	if own := inUse.Owner.Namespace == inUse.Namespace; own != strings.Contains(err.Error(), "UID u1") ||
		!strings.Contains(inUse.Holder(), "UID u1") {
		t.Errorf("taker %d: error %q, holder %q: want the holder in the error only for its own namespace", taker, err, inUse.Holder())
	}
	for _, part := range []string{"node-1/gpu/gpu-0", how, "until"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("taker %d: error %q, want it to say %q", taker, err, part)
		}
	}
}

// TestAllOrNothing: where one device is held, none is taken.
func TestAllOrNothing(t *testing.T) {
	s := open(t)
	put(t, s, holding("u1", "gpu-1"))
	second := holding("u2", "gpu-0", "gpu-1", "gpu-2")
	check.Must(t, s.Create(second))
	if _, ok := errors.AsType[*InUseError](s.Acquire(second)); !ok {
		t.Error("taken although gpu-1 is held")
	}
	for _, gpu := range []string{"gpu-0", "gpu-2"} {
		if s.Held(pool, gpu) {
			t.Errorf("%s was taken although gpu-1 is held", gpu)
		}
	}
	check.Must(t, s.Remove(holding("u1", "gpu-1")))
	check.Must(t, s.Acquire(second))
	for _, gpu := range []string{"gpu-0", "gpu-1", "gpu-2"} {
		if diff := cmp.Diff([]string{"u2"}, holders(t, s, gpu)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", gpu, diff)
		}
	}
}

// TestSeveralShares: each of a device's shares is somebody's, and each goes by itself.
func TestSeveralShares(t *testing.T) {
	s := open(t)
	for _, uid := range []string{"u3", "u1", "u2"} {
		put(t, s, sharing("a", uid, "gpu-0"))
	}
	if diff := cmp.Diff([]string{"u1", "u2", "u3"}, holders(t, s, "gpu-0")); diff != "" {
		t.Errorf("holders (-want +got):\n%s", diff)
	}
	for _, uid := range []string{"u1", "u3"} {
		check.Must(t, s.Remove(sharing("a", uid, "gpu-0")))
	}
	if diff := cmp.Diff([]string{"u2"}, holders(t, s, "gpu-0")); diff != "" {
		t.Errorf("holders (-want +got):\n%s", diff)
	}
	// The last one may have another configuration, once it is alone.
	put(t, s, sharing("b", "u2", "gpu-0"))
	check.Must(t, s.Acquire(sharing("b", "u4", "gpu-0")))
}

// TestManyShares: a share costs as many reads of files beside one other share as beside a hundred.
func TestManyShares(t *testing.T) {
	reads := map[int]int{}
	for _, n := range []int{1, 100} {
		s := open(t)
		for i := range n {
			put(t, s, sharing("a", fmt.Sprintf("held-%d", i), "gpu-0"))
		}
		counted := &countedReads{FS: s.fs}
		check.Must(t, (&Store{locks: s.locks, fs: counted, dir: s.dir}).Acquire(sharing("a", "next", "gpu-0")))
		reads[n] = counted.n
	}
	if reads[1] != reads[100] || reads[1] == 0 {
		t.Errorf("reads of links and records by the number of shares: %v, want the same", reads)
	}
}

// countedReads counts the links and files that are read.
type countedReads struct {
	disk.FS
	n int
}

func (c *countedReads) Readlink(name string) (string, error) {
	c.n++
	return c.FS.Readlink(name)
}

func (c *countedReads) ReadFile(name string) ([]byte, error) {
	c.n++
	return c.FS.ReadFile(name)
}

// TestAdminAccess holds nothing (KEP-5018): it neither blocks a holder nor is blocked by one.
func TestAdminAccess(t *testing.T) {
	s := open(t)
	put(t, s, looking("u1", "gpu-0"))
	if s.Held(pool, "gpu-0") {
		t.Error("a look holds the device")
	}
	put(t, s, holding("u2", "gpu-0"), looking("u3", "gpu-0"))
	for _, uid := range []string{"u1", "u3"} {
		check.Must(t, s.Remove(looking(uid, "gpu-0")))
	}
	if diff := cmp.Diff([]string{"u2"}, holders(t, s, "gpu-0")); diff != "" {
		t.Errorf("the end of a look (-want +got):\n%s", diff)
	}
}

// TestLinksAreMadeAnew: links are never synced, so that after a power loss there may be none.
func TestLinksAreMadeAnew(t *testing.T) {
	s, r := open(t), holding("u1", "gpu-0", "gpu-1")
	put(t, s, r)
	check.Must(t, os.RemoveAll(filepath.Join(s.dir, ownersDir)))
	check.Must(t, s.Acquire(load(t, s, "u1")))
	for _, gpu := range []string{"gpu-0", "gpu-1"} {
		if diff := cmp.Diff([]string{"u1"}, holders(t, s, gpu)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", gpu, diff)
		}
	}
}

// TestSweepOwners removes the links that nothing stands behind, and no other.
func TestSweepOwners(t *testing.T) {
	s := open(t)
	put(t, s, holding("u1", "gpu-0"), sharing("a", "u2", "gpu-1"), sharing("a", "u3", "gpu-1"), holding("u4", "gpu-4"), holding("u5", "gpu-5"),
		holding("u6", "gpu-6"), holding("u7", "gpu-7"), holding("u8", "gpu-8"))
	check.Must(t, os.Remove(path(s, "u3")))                // a leftover
	check.Must(t, os.WriteFile(path(s, "u4"), nil, 0o600)) // damaged: it does not tell whose it is
	check.Must(t, s.SetAside("u5"))
	check.Must(t, s.Create(holding("u6", "gpu-0"))) // a later life with other devices
	check.Must(t, s.Create(looking("u7", "gpu-7"))) // and one that only looks
	check.Must(t, os.Remove(path(s, "u8")))         // between its link and its record
	hold, err := s.LockClaim(t.Context(), "u8")
	check.Must(t, err)
	for range 2 {
		check.Must(t, s.SweepOwners())
		var links []string
		for _, name := range files(t, s) {
			if strings.HasPrefix(name, ownersDir) {
				links = append(links, strings.TrimPrefix(name, ownersDir+"/node-1_gpu_"))
			}
		}
		if diff := cmp.Diff([]string{"gpu-0/u1", "gpu-1/u2", "gpu-4/u4", "gpu-5/u5", "gpu-8/u8"}, links); diff != "" {
			t.Errorf("links (-want +got):\n%s", diff)
		}
	}
	hold.Release()
	check.Must(t, s.SweepOwners())
	if linked, others, err := s.LinkedTo("u8", holding("u8", "gpu-8").Devices); err != nil || len(linked) > 0 || others {
		t.Error("the link of a claim that nobody works on is still there")
	}
}

// TestLongNames: a node's name may be long enough to make the name of a directory longer than a file's.
func TestLongNames(t *testing.T) {
	s, r := open(t), holding("u1", "gpu-0", "gpu-1")
	for i := range r.Devices {
		r.Devices[i].Pool = strings.Repeat("n", 240) + "/gpu"
		r.Devices[i].Name += strings.Repeat("x", 50)
	}
	put(t, s, r)
	first, second := r.Devices[0], r.Devices[1]
	if s.deviceDir(first.Pool, first.Name) == s.deviceDir(second.Pool, second.Name) {
		t.Error("two devices have one directory")
	}
	check.Must(t, s.SweepOwners())
	if !s.Held(second.Pool, second.Name) {
		t.Error("not held")
	}
	check.Must(t, s.Remove(r))
	if left := files(t, s); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestOddTargets: a link that says what no version of Fettle wrote is a claim's that cannot be shared with.
func TestOddTargets(t *testing.T) {
	for _, target := range []string{"later:x", "shared", "u1", "/"} {
		s := open(t)
		put(t, s, sharing("a", "u1", "gpu-0"))
		link := s.ownerPath(pool, "gpu-0", "u1")
		check.Must(t, os.Remove(link))
		check.Must(t, os.Symlink(target, link))
		taker := sharing("a", "u2", "gpu-0")
		check.Must(t, s.Create(taker))
		if _, ok := errors.AsType[*InUseError](s.Acquire(taker)); !ok {
			t.Errorf("target %q: the device was shared", target)
		}
		check.Must(t, s.Acquire(load(t, s, "u1"))) // puts it right
		check.Must(t, s.Acquire(taker))
	}
}

// TestSettings: a share that is refused because of another setting says both. The other claim is named in its own namespace only.
func TestSettings(t *testing.T) {
	s := open(t)
	first := sharing("a", "u1", "gpu-0")
	first.Devices[0].Setting = "strategy TimeSlicing, interval Long"
	put(t, s, first)
	second := sharing("b", "u2", "gpu-0")
	second.Devices[0].Setting = "strategy Exclusive"
	for namespace, named := range map[string]bool{first.Namespace: true, "elsewhere": false} {
		second.Namespace = namespace
		err := s.Acquire(second)
		check.WantErr(t, err, nil, "(strategy TimeSlicing, interval Long, not strategy Exclusive)")
		if strings.Contains(err.Error(), first.Namespace+"/"+first.Name) != named {
			t.Errorf("to namespace %s: %v", namespace, err)
		}
	}
	shared, err := s.SharedOf(first.Devices[0].Pool, []string{"gpu-0", "gpu-1"})
	check.Must(t, err)
	if diff := cmp.Diff(map[string]bool{"gpu-0": true}, shared); diff != "" {
		t.Errorf("shared devices (-want +got):\n%s", diff)
	}
	s = open(t)
	put(t, s, holding("u1", "gpu-0"))
	if shared, err := s.SharedOf(first.Devices[0].Pool, []string{"gpu-0"}); err != nil || len(shared) > 0 {
		t.Errorf("a device that one claim has: shared %v, %v", shared, err)
	}
}
