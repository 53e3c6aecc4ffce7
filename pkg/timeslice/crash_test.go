// SPDX-License-Identifier: Apache-2.0

package timeslice_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/timeslice"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/stepcrash"
)

// driverRoot names the driver root for a process that is killed.
const driverRoot = "TEST_TIMESLICE_DRIVER_ROOT"

func kinds(tree *sysfs.Tree, _ sysfs.AttrWriter, points *restorepoint.Store) step.Kinds {
	return timeslice.New(timeslice.Config{Tree: tree, Tools: tools(os.Getenv(driverRoot)), Points: points}).Kinds()
}

func TestChildSlice(t *testing.T) { stepcrash.Child(t, kinds) }

// TestCrashPoints kills the plugin before each operation on the restore point, while two claims have an interval: the default is set after
// the last, whichever way on follows. What follows a kill between the restore point and the tool is in TestHangs and TestOrphan.
func TestCrashPoints(t *testing.T) {
	n := start(t)
	check.Must(t, n.points().Make())
	t.Setenv(driverRoot, n.root)
	points, kills := stepcrash.Case{
		Child: "TestChildSlice", Kinds: kinds, Root: n.root, Dir: n.dir, Boot: n.boot,
		Plan:    func() step.Step { return stepOf(t, "a", timeslice.Long) },
		Sharers: func() []step.Step { return []step.Step{stepOf(t, "b", timeslice.Long)} },
		State:   n.interval,
	}.Every(t)
	t.Logf("%d points, %d kills", points, kills)
	// Two claims take 2 looks at the directory; their two marks are each written with 6 operations and removed with 2, and the restore point
	// is written for each that comes and for the first that ends, and removed.
	if want := 2 + 2*(6+2) + 3*6 + 2; points != want {
		t.Errorf("%d points, want %d: say here what a change adds", points, want)
	}
}

// TestDisk: an operation on the disk that fails is told, and the next try ends well.
func TestDisk(t *testing.T) {
	for at := 1; ; at++ {
		n := start(t)
		in := fault.New(fault.Fail(at, syscall.EIO))
		n.fs = in.FS(disk.OS{})
		err := n.apply("a", timeslice.Long)
		if err == nil {
			err = n.undo("a", timeslice.Long)
		}
		n.fs = disk.OS{}
		if err == nil {
			if at < 9 {
				t.Errorf("only %d operations", at-1)
			}
			return
		}
		check.Must(t, n.undo("a", timeslice.Long))
		check.Must(t, n.apply("a", timeslice.Long))
		n.is(`Long ["a"]`)
		check.Must(t, n.undo("a", timeslice.Long))
		n.is("Default []")
	}
}

// TestPowerLoss: whatever of the last writes a power loss keeps, the restore point is whole or absent, and the next boot begins anew.
func TestPowerLoss(t *testing.T) {
	n := start(t)
	check.Must(t, n.points().Make())
	before, err := fault.Snapshot(n.dir)
	check.Must(t, err)
	in := fault.New()
	n.fs = in.FS(disk.OS{})
	check.Must(t, n.apply("a", timeslice.Long))
	check.Must(t, n.apply("b", timeslice.Long))
	check.Must(t, n.undo("a", timeslice.Long))
	check.Must(t, n.undo("b", timeslice.Long))
	log, seen := in.Log(), map[[32]byte]bool{}
	for cut := range log.Changes() + 1 {
		states, err := fault.Replay(before, log.Before(cut+1), fault.Options{})
		check.Must(t, err)
		for state := range states {
			if seen[state.Sum] {
				continue
			}
			seen[state.Sum] = true
			next := start(t)
			check.Must(t, state.Materialise(next.dir))
			if _, err := next.points().List(); err != nil { // as if it were this boot
				t.Errorf("power lost after operation %d, lost %s: %v", cut, state.Lost, err)
			}
			next.boot = "boot-2"
			check.Must(t, next.undo("a", timeslice.Long))
			check.Must(t, next.apply("b", timeslice.Short))
			next.is(`Short ["b"]`)
			check.Must(t, next.undo("b", timeslice.Short))
			next.is("Default []")
		}
	}
	t.Logf("%d cuts, %d states", log.Changes()+1, len(seen))
}
