// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package computemode_test

import (
	"context"
	"os"
	"testing"

	"github.com/fettle-dev/fettle/pkg/computemode"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/stepcrash"
)

// machineFile names the machine's file for a process that is killed.
const machineFile = "TEST_COMPUTEMODE_MACHINE"

// counted makes each question to the library a point at which the plugin can be killed before it. That after it is the one before the next.
type counted struct {
	*nvml.Prober
	point func(name string) error
}

func (c counted) ComputeMode(ctx context.Context, lock *os.File, gpu nvml.GPU) (nvml.ComputeMode, error) {
	if err := c.point("read the mode"); err != nil {
		return "", err
	}
	return c.Prober.ComputeMode(ctx, lock, gpu)
}

func (c counted) SetComputeMode(ctx context.Context, lock *os.File, gpu nvml.GPU, to nvml.ComputeMode) (nvml.ComputeMode, error) {
	if err := c.point("set the mode"); err != nil {
		return "", err
	}
	return c.Prober.SetComputeMode(ctx, lock, gpu, to)
}

func kinds(tree *sysfs.Tree, w sysfs.AttrWriter, points *restorepoint.Store) step.Kinds {
	config := computemode.Config{Library: prober(os.Getenv(machineFile)), Tree: tree, Points: points}
	if in, ok := w.(stepcrash.Writer); ok {
		config.Library = counted{prober(os.Getenv(machineFile)), func(name string) error {
			return in.Injector.Do(name, func() error { return nil })
		}}
	}
	return computemode.New(config).Kinds()
}

func TestChildMode(t *testing.T) { stepcrash.Child(t, kinds) }

// TestCrashPoints kills the plugin before and after each question to the library and each operation on the restore point, while two claims
// have a mode: the former one is restored, whichever way on follows.
func TestCrashPoints(t *testing.T) {
	n := start(t)
	n.set(nvml.ComputeProhibited)
	check.Must(t, n.points().Make())
	t.Setenv(machineFile, n.File)
	points, kills := stepcrash.Case{
		Child: "TestChildMode", Kinds: kinds, Root: n.root, Dir: n.dir, Boot: n.boot,
		Plan:    func() step.Step { return stepOf(t, "a", exclusive) },
		Sharers: func() []step.Step { return []step.Step{stepOf(t, "b", exclusive)} },
		State: func() string {
			s, err := n.Look()
			check.Must(t, err)
			return string(nvml.ComputeModes()[s.Cards[0].ComputeMode])
		},
	}.Every(t)
	t.Logf("%d points, %d kills", points, kills)
	// Two claims take 3 questions, 2 changes and 2 looks at the directory; their two marks are each written with 6
	// operations and removed with 2, and the restore point is written for each that comes and for the first that ends, and removed.
	if want := 3 + 2 + 2 + 2*(6+2) + 3*6 + 2; points != want {
		t.Errorf("%d points, want %d: say here what a change adds", points, want)
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
	check.Must(t, n.apply("a", exclusive))
	check.Must(t, n.apply("b", exclusive))
	check.Must(t, n.undo("a", exclusive))
	check.Must(t, n.undo("b", exclusive))
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
			check.Must(t, next.undo("a", exclusive))
			check.Must(t, next.apply("b", exclusive))
			next.is(`ExclusiveProcess ["b"]`)
			check.Must(t, next.undo("b", exclusive))
			next.is("Default []")
		}
	}
	t.Logf("%d cuts, %d states", log.Changes()+1, len(seen))
}
