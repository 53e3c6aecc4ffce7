// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/fault"
)

// TestChild plays the plugin's process until the plan kills it.
func TestChild(t *testing.T) {
	plan, ok := fault.Planned()
	if !ok {
		t.Skip("runs as the child of other tests only")
	}
	in, err := plan.Injector()
	noError(t, err)
	noError(t, play(string(plan.Data[1:len(plan.Data)-1]), in))
}

// play runs the whole script on a node.
func play(dir string, in *fault.Injector) error {
	w, err := newWorld(dir, in, "boot-1")
	if err != nil {
		return err
	}
	for i, act := range script(w) {
		if err := errors.Join(w.empty(), act()); err != nil { // the end of a claim deletes for half a second, which may be too short
			return fmt.Errorf("part %d of the script: %w", i, err)
		}
	}
	return nil
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// nodeDir is a directory for a node, in memory where that is possible: what is synced is the injector's knowledge here.
func nodeDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "node-") //nolint:usetesting // in memory, see above
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// bootAt is the boot in which a log ends.
func bootAt(s story) string {
	if s.begun["boot-2"] {
		return "boot-2"
	}
	return "boot-1"
}

// TestCrashPoints kills the process before every operation of the script, and in the middle of every write, and starts it again.
func TestCrashPoints(t *testing.T) {
	total := len(rehearse(t).changes())
	cut := 0
	for n := 1; n <= total; n++ {
		for _, how := range []fault.Fault{fault.Kill(n), fault.Tear(n)} {
			dir := nodeDir(t)
			noError(t, makeHost(dir))
			plan := fault.Plan{Faults: []fault.Fault{how}, Data: []byte(`"` + dir + `"`)}
			result, err := fault.Child{}.Run(t.Context(), plan)
			noError(t, err)
			if result.Killed == nil {
				t.Fatalf("the process finished, though it should have been killed at operation %d of %d", n, total)
			}
			if how.Do == fault.ActTear && result.Killed.Kind != fault.Write {
				continue // the same as before it
			}
			cut++
			s := storyOf(result.Log)
			if err := consistent(dir, bootAt(s), s); err != nil {
				t.Errorf("%s at operation %d (%s):\n%v", how.Do, n, result.Killed, err)
			}
			noError(t, os.RemoveAll(dir))
		}
	}
	t.Logf("crash points cut: %d in %d operations", cut, total)
}

type rehearsal struct {
	start *fault.Tree
	log   fault.Log
	dir   string
}

func (r rehearsal) changes() fault.Log {
	var out fault.Log
	for _, op := range r.log {
		if !op.Kind.Read() {
			out = append(out, op)
		}
	}
	return out
}

// rehearse plays the script without a crash.
func rehearse(t *testing.T, faults ...fault.Fault) rehearsal {
	t.Helper()
	dir := nodeDir(t)
	noError(t, makeHost(dir))
	start, err := fault.Snapshot(dir)
	noError(t, err)
	in := fault.New(faults...)
	noError(t, play(dir, in))
	return rehearsal{start: start, log: in.Log(), dir: dir}
}

// losePower finds what is wrong after a power loss at any operation, in any state that the file system may be in then.
func (r rehearsal) losePower(t *testing.T, limit, first int, found func(n int, state fault.State, err error) (goOn bool)) (states int) {
	t.Helper()
	seen := map[string]bool{}
	for n := first; n <= len(r.changes())+1; n++ {
		log := r.log.Before(n)
		s := storyOf(log)
		all, err := fault.Replay(r.start, log, fault.Options{Limit: limit, Seed: uint64(n), Volatile: []string{filepath.Join(r.dir, "cdi")}})
		noError(t, err)
		for state := range all {
			if key := fmt.Sprint(state.Sum, s); seen[key] {
				continue
			} else {
				seen[key] = true
			}
			states++
			dir := nodeDir(t)
			noError(t, state.Materialise(dir))
			noError(t, os.MkdirAll(filepath.Join(dir, "cdi"), 0o755))
			if err := consistent(dir, "boot-3", s); err != nil && !found(n, state, err) {
				return states
			}
			noError(t, os.RemoveAll(dir))
		}
	}
	return states
}

// TestPowerLoss cuts the power before every operation of the script.
func TestPowerLoss(t *testing.T) {
	r := rehearse(t)
	states := r.losePower(t, 8, 1, func(n int, state fault.State, err error) bool {
		t.Errorf("power lost before operation %d, %s:\n%v", n, state.Lost, err)
		return !t.Failed()
	})
	t.Logf("power losses: %d states of the disk after %d operations", states, len(r.changes()))
}

// TestEverySyncMatters takes away one sync of the code after the other, and a power loss must then do harm.
func TestEverySyncMatters(t *testing.T) {
	r := rehearse(t)
	for _, site := range fault.Syncs(r.log) {
		if strings.Contains(site.Name, "_test.go") {
			continue // the pod's own
		}
		t.Run(site.Name, func(t *testing.T) {
			harm := false
			rehearse(t, fault.DropSyncAt(site.Name)).losePower(t, 8, 1, func(int, fault.State, error) bool {
				harm = true
				return false
			})
			if !harm {
				t.Error("without this sync no power loss does harm: either it is not needed or no invariant covers it")
			}
		})
	}
}

// TestDiskFaults makes the disk full, read-only or failing at every operation. Each call is then answered with an error or is right;
// and when the disk is well again, kubelet's tries succeed.
func TestDiskFaults(t *testing.T) {
	total := len(rehearse(t).changes())
	kinds := map[string]func(n int) fault.Fault{
		"full": fault.Full, "read-only": fault.ReadOnly, "short": fault.Short,
		"EIO": func(n int) fault.Fault { return fault.Fail(n, syscall.EIO) },
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			for n := 1; n <= total; n++ {
				dir := nodeDir(t)
				noError(t, makeHost(dir))
				in := fault.New(kind(n))
				if err := playOn(dir, in); err != nil {
					t.Errorf("%s from operation %d:\n%v", name, n, err)
				}
				s := storyOf(in.Log())
				if err := consistent(dir, bootAt(s), s); err != nil {
					t.Errorf("%s from operation %d:\n%v", name, n, err)
				}
				noError(t, os.RemoveAll(dir))
			}
		})
	}
}

// playOn runs the script and repairs the disk at the first error, which must say what could not be done. The part that failed is
// tried again, as kubelet does.
func playOn(dir string, in *fault.Injector) error {
	w, err := newWorld(dir, in, "boot-1")
	if err != nil {
		in.Set()
		if w, err = newWorld(dir, in, "boot-1"); err != nil {
			return err
		}
	}
	for i, act := range script(w) {
		err := act()
		if err == nil {
			continue
		}
		if errno := syscall.Errno(0); !errors.As(err, &errno) && !errors.Is(err, errLoad) && !passes(err) {
			return fmt.Errorf("part %d of the script fails without saying why: %w", i, err)
		}
		in.Set()
		if err := w.empty(); err != nil { // what the plugin does in the background
			return err
		}
		if err = act(); passes(err) { // the next pass, too
			w.recover()
			err = errors.Join(w.empty(), act())
		}
		if err != nil {
			return fmt.Errorf("part %d of the script, tried again: %w", i, err)
		}
	}
	return nil
}

// passes says whether a Prepare was refused until what another claim was answered about came to its end.
func passes(err error) bool {
	inUse, ok := errors.AsType[*record.InUseError](err)
	return ok && inUse.Owner.Phase == record.Releasing || errors.Is(err, hostdir.ErrDirty)
}
