// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package computemode_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/computemode"
	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

const setMode = "Device.SetComputeMode"

// TestShared: claims have a mode together, in either order of their ends, and the former one is restored after the last. Each call may be
// made twice.
func TestShared(t *testing.T) {
	for name, tc := range map[string]struct {
		former, mode nvml.ComputeMode
		ends         []string
	}{
		"the first ends first":         {former: usual, mode: exclusive, ends: []string{"a", "b"}},
		"the first ends last":          {former: usual, mode: exclusive, ends: []string{"b", "a"}},
		"from exclusive to default":    {former: exclusive, mode: usual, ends: []string{"b", "a"}},
		"from prohibited":              {former: nvml.ComputeProhibited, mode: usual, ends: []string{"a", "b"}},
		"it was so already":            {former: usual, mode: usual, ends: []string{"a", "b"}},
		"exclusive it was already too": {former: exclusive, mode: exclusive, ends: []string{"b", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			n.set(tc.former)
			check.Must(t, n.Script())
			for _, claim := range []string{"a", "a", "b", "b"} {
				check.Must(t, n.apply(claim, tc.mode))
				check.Must(t, n.verify(claim, tc.mode))
			}
			n.is(string(tc.mode) + ` ["a","b"]`)
			for range 2 {
				check.Must(t, n.undo(tc.ends[0], tc.mode))
				n.is(string(tc.mode) + ` ["` + tc.ends[1] + `"]`)
			}
			for range 2 {
				check.Must(t, n.undo(tc.ends[1], tc.mode))
				n.is(string(tc.former) + " []")
			}
			s, err := n.Look()
			check.Must(t, err)
			if want := map[bool]int{true: 0, false: 2}[tc.former == tc.mode]; len(s.Changes) != want {
				t.Errorf("changes %v, want %d", s.Changes, want)
			}
			if len(*n.changes) > 0 {
				t.Errorf("reported %v", *n.changes)
			}
		})
	}
}

// TestDisagrees: a claim with another mode is refused with both, before the library is asked, and its rollback changes nothing.
func TestDisagrees(t *testing.T) {
	n := start(t)
	check.Must(t, n.process().Check(params("b", usual)))
	check.Must(t, n.apply("a", exclusive))
	check.Must(t, n.Script())
	for _, err := range []error{n.process().Check(params("b", usual)), n.apply("b", usual)} {
		check.WantErr(t, err, restorepoint.ErrDisagrees, "have compute mode ExclusiveProcess, and this claim")
	}
	check.Must(t, n.undo("b", usual))
	n.is(`ExclusiveProcess ["a"]`)
	if s, err := n.Look(); err != nil || s.Total > 0 {
		t.Errorf("the library was asked %d times, %v", s.Total, err)
	}
	check.Must(t, n.undo("a", exclusive))
	check.Must(t, n.apply("b", usual))
	n.is(`Default ["b"]`)
}

// TestChangedByOthers: what another program set stays, and is told in words.
func TestChangedByOthers(t *testing.T) {
	n := start(t)
	check.Must(t, n.apply("a", exclusive))
	n.set(nvml.ComputeProhibited)
	for _, err := range []error{n.verify("a", exclusive), n.apply("a", exclusive), n.apply("b", exclusive)} {
		check.WantErr(t, err, computemode.ErrChanged, "Prohibited")
	}
	check.Must(t, n.undo("b", exclusive))
	check.Must(t, n.undo("a", exclusive))
	n.is("Prohibited []")
	if len(*n.changes) != 1 || !strings.Contains((*n.changes)[0], "it is Prohibited now; the former mode Default was not restored") {
		t.Errorf("reported %q", *n.changes)
	}
	// Back to the former mode: the next Apply sets it again, as after a crash between the restore point and the mode.
	n.set(usual)
	check.Must(t, n.apply("a", exclusive))
	n.set(usual)
	if err := n.verify("a", exclusive); !errors.Is(err, computemode.ErrChanged) {
		t.Errorf("%v", err)
	}
	check.Must(t, n.apply("a", exclusive))
	n.is(`ExclusiveProcess ["a"]`)
}

// TestRefused: what the GPU or the driver refuses is an error with the cause, and the rollback has nothing to restore.
func TestRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(s *nvmlsim.State)
		want error
	}{
		"unsupported": {want: nvml.ErrUnsupported, make: func(s *nvmlsim.State) {
			s.Faults = []nvmlsim.Fault{{Function: setMode, Do: nvmlsim.Fail, Return: nvmlsim.NotSupported}}
		}},
		"forbidden": {want: nvml.ErrForbidden, make: func(s *nvmlsim.State) {
			s.Faults = []nvmlsim.Fault{{Function: setMode, Do: nvmlsim.Fail, Return: nvmlsim.NoPermission}}
		}},
		"in MIG mode":          {want: nvml.ErrMIGOn, make: func(s *nvmlsim.State) { s.Cards[0].MIG = true }},
		"fell off the bus":     {want: nvml.ErrGone, make: func(s *nvmlsim.State) { s.Cards[0].Lost = true }},
		"another GPU is there": {want: nvml.ErrGone, make: func(s *nvmlsim.State) { s.Cards[0].UUID = "GPU-2" }},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			check.Must(t, n.Change(func(s *nvmlsim.State) error {
				tc.make(s)
				return nil
			}))
			if err := n.apply("a", exclusive); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), "0000:41:00.0") {
				t.Errorf("%v, want %v", err, tc.want)
			}
			for range 2 {
				check.Must(t, n.undo("a", exclusive))
			}
			n.is("Default []")
		})
	}
	for _, mode := range []nvml.ComputeMode{"", nvml.ComputeProhibited, "Shared"} {
		if _, err := params("a", mode).Step(); err == nil {
			t.Errorf("mode %q is planned", mode)
		}
	}
}

// TestGone: a GPU that is gone, or in MIG mode, when the last claim ends has nothing to restore.
func TestGone(t *testing.T) {
	for name, tc := range map[string]struct {
		make     func(*nvmlsim.State)
		reported int
	}{
		"gone":        {make: func(s *nvmlsim.State) { s.Cards[0].Absent = true }},
		"replaced":    {make: func(s *nvmlsim.State) { s.Cards[0].UUID = "GPU-2" }},
		"in MIG mode": {make: func(s *nvmlsim.State) { s.Cards[0].MIG = true }, reported: 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			check.Must(t, n.apply("a", exclusive))
			check.Must(t, n.Change(func(s *nvmlsim.State) error {
				tc.make(s)
				return nil
			}))
			check.Must(t, n.undo("a", exclusive))
			if points, err := n.points().List(); err != nil || len(points) > 0 || len(*n.changes) != tc.reported {
				t.Errorf("points %v, %v, reported %v", points, err, *n.changes)
			}
		})
	}
}

// TestDriverGone: where the kernel's driver has let go of the GPU, the mode is gone, whatever the library says. Where it has not, a library
// that fails proves nothing.
func TestDriverGone(t *testing.T) {
	for name, tc := range map[string]struct {
		driver  string
		says    nvmlsim.Return
		missing bool // the library itself is gone
		ends    bool
	}{
		"unloaded":                     {says: nvmlsim.DriverNotLoaded, ends: true},
		"unloaded, without a library":  {missing: true, ends: true},
		"the driver for machines":      {driver: "vfio-pci", says: nvmlsim.DriverNotLoaded, ends: true},
		"it has the GPU":               {driver: "nvidia", says: nvmlsim.DriverNotLoaded},
		"it has the GPU, no library":   {driver: "nvidia", missing: true},
		"it has the GPU, without word": {driver: "nvidia", says: nvmlsim.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			check.Must(t, n.apply("a", exclusive))
			n.driver(tc.driver)
			check.Must(t, n.Script(nvmlsim.Fault{Do: nvmlsim.Fail, Return: tc.says}))
			machine := n.Machine
			if tc.missing {
				n.File += ".gone"
			}
			err := n.undo("a", exclusive)
			n.Machine = machine
			check.Must(t, n.Script())
			if tc.ends {
				check.Must(t, err)
				n.is("ExclusiveProcess []") // the simulated card keeps it
				return
			}
			if err == nil {
				t.Error("the claim ended, and the mode stays")
			}
			n.is(`ExclusiveProcess ["a"]`)
			check.Must(t, n.undo("a", exclusive))
			n.is("Default []")
		})
	}
}

// TestVersions: while library and kernel module are of different versions the mode cannot be restored. The claim ends, and that is told.
func TestVersions(t *testing.T) {
	n := start(t)
	check.Must(t, n.apply("a", exclusive))
	check.Must(t, n.Script(nvmlsim.Fault{Do: nvmlsim.Fail, Return: nvmlsim.LibRMVersionMismatch}))
	check.Must(t, n.undo("a", exclusive))
	n.is("ExclusiveProcess []")
	const want = "stays ExclusiveProcess until the node is rebooted; the former mode Default"
	if len(*n.changes) != 1 || !strings.Contains((*n.changes)[0], want) {
		t.Errorf("reported %q", *n.changes)
	}
}

// TestReset: a reset of the GPU ends the mode. It is not taken for the former one where that was another.
func TestReset(t *testing.T) {
	n := start(t)
	n.set(exclusive)
	check.Must(t, n.apply("a", usual))
	check.Must(t, n.Reset(0, 0))
	check.Must(t, n.verify("a", usual))
	check.Must(t, n.undo("a", usual))
	n.is("ExclusiveProcess []")
}

// TestReboot: the mode ends with the boot, and a claim that is prepared again has it again.
func TestReboot(t *testing.T) {
	n := start(t)
	check.Must(t, n.apply("a", exclusive))
	check.Must(t, n.apply("b", exclusive))
	check.Must(t, n.Reboot())
	n.boot = "boot-2"
	if err := n.verify("a", exclusive); err == nil || !strings.Contains(err.Error(), "since the node started") {
		t.Errorf("verified after a reboot: %v", err)
	}
	check.Must(t, n.undo("a", exclusive))
	n.is("Default []")
	check.Must(t, n.apply("b", exclusive))
	check.Must(t, n.process().Check(params("c", exclusive)))
	n.is(`ExclusiveProcess ["b"]`)
	check.Must(t, n.undo("b", exclusive))
	n.is("Default []")
}

// TestHangs: a library that does not answer ends the step in time; the mode is then restored by the claim's Undo.
func TestHangs(t *testing.T) {
	for name, after := range map[string]bool{"before it is set": false, "after it was set": true} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			gate := filepath.Join(t.TempDir(), "gate") // which never opens
			check.Must(t, n.Script(nvmlsim.Fault{Function: setMode, Nth: 1, After: after, Do: nvmlsim.Wait, File: gate}))
			ctx, pass := check.Deadline(t)
			applied := make(chan error, 1)
			go func() { applied <- n.process().Kinds().Apply(ctx, stepOf(t, "a", exclusive)) }()
			waits(t, gate)
			pass()
			if err := <-applied; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			n.is(map[bool]string{false: "Default", true: "ExclusiveProcess"}[after] + ` ["a"]`)
			check.Must(t, n.undo("a", exclusive))
			n.is("Default []")
		})
	}
}

// TestAdministrator: only the child that sets the mode has the capability that the driver asks for.
func TestAdministrator(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: what has nothing cannot keep it")
	}
	n := start(t)
	check.Must(t, n.Change(func(s *nvmlsim.State) error {
		s.AsksAdmin = true
		return nil
	}))
	check.Must(t, n.apply("a", exclusive))
	n.is(`ExclusiveProcess ["a"]`)
	check.Must(t, n.undo("a", exclusive))
	n.is("Default []")
}

// waits returns once a child waits at the gate.
func waits(t *testing.T, gate string) {
	t.Helper()
	check.Eventually(t, "the child comes to the mode", func() bool {
		_, err := os.Stat(gate + ".waiting")
		return err == nil
	})
}

// TestOrphan: while the child of a plugin that was killed may still set the mode, nobody else acts.
func TestOrphan(t *testing.T) {
	n := start(t)
	gate := filepath.Join(t.TempDir(), "gate")
	check.Must(t, n.Script(nvmlsim.Fault{Function: setMode, Nth: 1, Do: nvmlsim.Wait, File: gate}))
	applied := make(chan error, 1)
	go func() { applied <- n.apply("a", exclusive) }()
	waits(t, gate)
	if err := n.process().Kinds().Undo(check.Passed(t), stepOf(t, "a", exclusive)); !errors.Is(err, filelock.ErrHeld) {
		t.Errorf("undone beside the child: %v", err)
	}
	check.Must(t, os.WriteFile(gate, nil, 0o600))
	check.Must(t, <-applied)
	check.Must(t, n.undo("a", exclusive))
	n.is("Default []")
}
