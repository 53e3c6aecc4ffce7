// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// The store's own operations hide those of disk.OS, which only fill the interface.
type (
	deeper   struct{ disk.OS }
	injected struct {
		deeper
		rootedFiles
	}
)

// through makes the store's changes go through an injector.
func (s *Store) through(t testing.TB, in *fault.Injector) *Store {
	t.Helper()
	below, ok := s.fs.(rootedFiles)
	if !ok {
		t.Fatal("goes through an injector already")
	}
	s.wrap = func(b rootedFiles) files {
		seen, ok := in.FS(injected{rootedFiles: b}).(files)
		if !ok {
			t.Fatal("the injector's file system lacks a method")
		}
		return seen
	}
	s.fs = s.wrap(below)
	return s
}

// quickStore syncs nothing, which only a power loss would tell.
func quickStore(t testing.TB, config StoreConfig) (*Store, *fault.Injector) {
	t.Helper()
	in := fault.New()
	in.Quick = true
	s, err := storeAt(filepath.Join(t.TempDir(), "store"), config)
	check.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	check.Must(t, s.through(t, in).layOut())
	return s, in
}

// change is a call that changes the store.
type change struct {
	arrange func(t *testing.T, s *Store, w world)
	act     func(ctx context.Context, s *Store, w world) error
	// room: it needs room on the disk.
	room bool
}

// world is three blobs and where they come from.
type world struct {
	src   *hub
	blobs []Descriptor
}

func newWorld(size int) world {
	w := world{src: newHub()}
	for i := range 3 {
		w.blobs = append(w.blobs, w.src.pushBlob(blobBytes(uint64(300+i), size)))
	}
	return w
}

func changes() map[string]change {
	fetch := func(i int) func(context.Context, *Store, world) error {
		return func(ctx context.Context, s *Store, w world) error { return s.Fetch(ctx, w.src, w.blobs[i]) }
	}
	arrange := func(acts ...func(context.Context, *Store, world) error) func(t *testing.T, s *Store, w world) {
		return func(t *testing.T, s *Store, w world) {
			t.Helper()
			for _, act := range acts {
				check.Must(t, act(t.Context(), s, w))
			}
		}
	}
	pin := func(ctx context.Context, s *Store, w world) error { return s.Pin(ctx, w.blobs[0].Digest, "claim-1") }
	unpin := func(ctx context.Context, s *Store, w world) error {
		return s.Unpin(ctx, w.blobs[0].Digest, "claim-1")
	}
	return map[string]change{
		"fetch":         {arrange: arrange(), act: fetch(0), room: true},
		"fetch, evicts": {arrange: arrange(fetch(1), fetch(2)), act: fetch(0), room: true},
		"fetch, resumes": {arrange: func(t *testing.T, s *Store, w world) {
			t.Helper()
			half := blobBytes(300, int(w.blobs[0].Size))[:w.blobs[0].Size/2]
			check.Must(t, os.WriteFile(s.path(partialName(w.blobs[0].Digest, w.blobs[0].Size)), half, 0o600))
		}, act: fetch(0), room: true},
		"fetch, resumes wrongly": {arrange: func(t *testing.T, s *Store, w world) {
			t.Helper()
			check.Must(t, os.WriteFile(s.path(partialName(w.blobs[0].Digest, w.blobs[0].Size)), []byte("wrong"), 0o600))
		}, act: fetch(0), room: true},
		"pin":   {arrange: arrange(fetch(0)), act: pin, room: true},
		"unpin": {arrange: arrange(fetch(0), pin), act: unpin},
		"sweep": {arrange: arrange(fetch(0), fetch(1), func(_ context.Context, s *Store, w world) error {
			return s.moveToTrash(blobName(w.blobs[1].Digest), w.blobs[1].Digest)
		}), act: func(ctx context.Context, s *Store, _ world) error { return s.Sweep(ctx) }},
		"open anew": {arrange: func(t *testing.T, s *Store, _ world) {
			t.Helper()
			check.Must(t, os.RemoveAll(s.path("blobs")))
		}, act: func(_ context.Context, s *Store, _ world) error { return errors.Join(s.layOut(), s.clean()) }, room: true},
		"open": {arrange: func(t *testing.T, s *Store, _ world) {
			t.Helper()
			check.Must(t, os.WriteFile(s.path("tmp/junk"), nil, 0o600))
		}, act: func(_ context.Context, s *Store, _ world) error { return errors.Join(s.layOut(), s.clean()) }},
	}
}

func faultsAt(n int) []fault.Fault {
	return []fault.Fault{
		fault.Fail(n, syscall.ENOSPC), fault.Fail(n, syscall.EROFS), fault.Fail(n, syscall.EIO), fault.Short(n),
		fault.Full(n), fault.ReadOnly(n), fault.Lose(n, syscall.EIO),
	}
}

func quota() StoreConfig { return StoreConfig{MaxBytes: 500_000, Pace: time.Microsecond} }

// TestEveryChangeFails makes each operation of each call fail in every way that a disk has: nothing wrong is in the store, and the same
// call made again succeeds.
func TestEveryChangeFails(t *testing.T) {
	w := newWorld(200_000)
	for name, c := range changes() {
		t.Run(name, func(t *testing.T) {
			// after runs the call with the faults for the number of operations before it.
			after := func(faults func(before int) []fault.Fault) (s *Store, in *fault.Injector, before int, err error) {
				s, in = quickStore(t, quota())
				c.arrange(t, s, w)
				before = in.Log().Changes()
				in.Set(faults(before)...)
				return s, in, before, c.act(t.Context(), s, w)
			}
			_, in, before, err := after(func(int) []fault.Fault { return nil })
			check.Must(t, err)
			points, cases := in.Log().Changes()-before, 0
			for n := range points {
				for i := range faultsAt(0) {
					s, in, before, err := after(func(before int) []fault.Fault { return faultsAt(before + n + 1)[i : i+1] })
					f := faultsAt(before + n + 1)[i]
					what := fmt.Sprintf("%s of %v at %d", f.Do, f.Errno, n+1)
					switch full := f.Do == fault.ActFull || f.Do == fault.ActShort || f.Errno == syscall.ENOSPC; {
					case err == nil:
					case !IsRetryable(err):
						t.Errorf("%s is terminal: %v", what, err)
					case full && !errors.Is(err, ErrNoSpace):
						t.Errorf("%s: a full disk is not named: %v", what, err)
					case f.Do == fault.ActFull && !c.room:
						t.Errorf("%s: it needs room: %v", what, err)
					}
					bad, _ := wrong(s.dir)
					in.Set()
					again := c.act(t.Context(), s, w)
					still, _ := wrong(s.dir)
					if again != nil || len(bad)+len(still) > 0 {
						t.Errorf("%s: %v after %v; again: %v after %v", what, bad, err, still, again)
					}
					check.Must(t, s.Close())
					cases++
				}
			}
			t.Logf("%d operations, %d cases", points, cases)
			if points == 0 {
				t.Error("nothing was changed")
			}
		})
	}
}

// TestUncertainContent: what a write or sync that failed leaves is not kept, and never named.
func TestUncertainContent(t *testing.T) {
	w := newWorld(200_000)
	for _, kind := range []fault.Kind{fault.Write, fault.Sync} {
		in := fault.New()
		s := newStore(t, quota()).through(t, in)
		in.Before = func(op fault.Op) error {
			if op.Kind == kind && (kind == fault.Sync || op.N > 2) { // the second write: the file is open by the first operation
				return syscall.EIO
			}
			return nil
		}
		err := s.Fetch(t.Context(), w.src, w.blobs[0])
		if !errors.Is(err, syscall.EIO) || !IsRetryable(err) {
			t.Errorf("%s: got %v", kind, err)
		}
		checkStore(t, s, 0)
		if p := partials(t, s); len(p) > 0 {
			t.Errorf("%s: kept %v", kind, p)
		}
	}
}

// TestPowerLoss: whatever survives of a fetch, what is believed complete is complete; and after Fetch returned, all of it survives.
func TestPowerLoss(t *testing.T) {
	w := newWorld(1000)
	harm := func(t *testing.T, faults ...fault.Fault) (harmful, states int, log fault.Log) {
		t.Helper()
		s, err := storeAt(filepath.Join(t.TempDir(), "store"), quota())
		check.Must(t, err)
		defer func() { _ = s.Close() }()
		start, err := fault.Snapshot(s.dir)
		check.Must(t, err)
		in := fault.New(faults...)
		in.Quick = true
		s.through(t, in)
		check.Must(t, errors.Join(s.layOut(), s.clean(), s.Fetch(t.Context(), w.src, w.blobs[0])))
		log = in.Log()
		for n := 1; n <= log.Changes()+1; n++ {
			all, err := fault.Replay(start, log.Before(n), fault.Options{Limit: 256})
			check.Must(t, err)
			for state := range all {
				states++
				dir := filepath.Join(t.TempDir(), "after")
				check.Must(t, state.Materialise(dir))
				bad, good := wrong(dir)
				if len(bad) > 0 || n > log.Changes() && good != 1 {
					harmful++
				}
				check.Must(t, os.RemoveAll(dir))
			}
		}
		return harmful, states, log
	}
	harmful, states, log := harm(t)
	t.Logf("%d operations, %d states", log.Changes(), states)
	if harmful > 0 || states < 20 {
		t.Errorf("%d of %d states are wrong\n%s", harmful, states, log)
	}
	syncs := 0
	for _, op := range log {
		if op.Kind.Sync() {
			syncs++
			if strings.HasSuffix(op.String(), "/trees") {
				continue // TestUnpackPowerLoss drops it
			}
			if n, _, _ := harm(t, fault.DropSync(syncs)); n == 0 {
				t.Errorf("without this sync nothing is worse: %s", op)
			}
		}
	}
	if syncs < 4 {
		t.Errorf("%d syncs", syncs)
	}
}

// childBlobs is how many bytes each of the blobs has that a child fetches.
const childBlobs = 150_000

// TestChild is the process that is killed: it fetches all blobs in an order of its own, in a store that holds half of them.
func TestChild(t *testing.T) {
	plan, ok := fault.Planned()
	if !ok {
		t.Skip("only as a child process")
	}
	var dir string
	check.Must(t, json.Unmarshal(plan.Data, &dir))
	w := newWorld(childBlobs)
	s, err := storeAt(dir, StoreConfig{MaxBytes: int64(len(w.blobs)) * childBlobs / 2, Pace: time.Microsecond})
	check.Must(t, err)
	in, err := plan.Injector()
	check.Must(t, err)
	s.through(t, in)
	check.Must(t, errors.Join(s.layOut(), s.clean()))
	order := rand.New(rand.NewPCG(0, 1))
	for _, i := range order.Perm(len(w.blobs)) {
		d := w.blobs[i].Digest
		check.Must(t, s.Pin(t.Context(), d, "child"))
		check.Must(t, s.Fetch(t.Context(), w.src, w.blobs[i]))
		check.Must(t, s.Unpin(t.Context(), d, "child"))
		if i%5 == 0 {
			check.Must(t, s.Sweep(t.Context()))
		}
	}
}

// TestKilledAtEachOperation ends a process before each of its operations and within each write. Another then finds nothing wrong and
// finishes.
func TestKilledAtEachOperation(t *testing.T) {
	w := newWorld(childBlobs)
	run := func(dir string, f ...fault.Fault) fault.Result {
		t.Helper()
		data, err := json.Marshal(dir)
		check.Must(t, err)
		result, err := fault.Child{}.Run(t.Context(), fault.Plan{Faults: f, Quick: true, Data: data})
		if err != nil {
			t.Fatalf("%v\n%s", err, result.Log)
		}
		return result
	}
	step := 1
	if testing.Short() {
		step = 7
	}
	// The last child is the one that no kill reached.
	points, killed := 0, 0
	for n, alive := 1, false; !alive; n += step {
		dir := t.TempDir()
		f := fault.Kill(n)
		if n%2 == 0 {
			f = fault.Tear(n)
		}
		result := run(dir, f)
		if alive = result.Killed == nil; alive {
			points = result.Log.Changes()
		} else {
			killed++
		}
		if bad, _ := wrong(dir); len(bad) > 0 {
			t.Errorf("killed at %d: %v", n, bad)
		}
		s, err := OpenStore(dir, quota())
		check.Must(t, err)
		for _, d := range w.blobs[:2] {
			check.Must(t, s.Fetch(t.Context(), w.src, d))
		}
		checkAll(t, s)
		check.Must(t, s.Close())
	}
	t.Logf("%d operations, killed at %d", points, killed)
	if points < 40 || killed < points/step {
		t.Errorf("killed at %d of %d", killed, points/step)
	}
}

// checkAll hashes all that the store believes complete.
func checkAll(t *testing.T, s *Store) int {
	t.Helper()
	u, err := s.Usage()
	check.Must(t, err)
	bad, good := wrong(s.dir)
	if len(bad) > 0 || good != len(u.Blobs) {
		t.Errorf("%d blobs, %d good; wrong: %v", len(u.Blobs), good, bad)
	}
	return good
}
