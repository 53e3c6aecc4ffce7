// SPDX-License-Identifier: Apache-2.0

package sriov_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sriov"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/pcisim"
	"github.com/fettle-dev/fettle/test/stepcrash"
)

func TestMain(m *testing.M) { os.Exit(pcisim.Run(m)) }

const (
	ours, theirs = "7c6f2c1e-0000-4000-8000-000000000001", "7c6f2c1e-0000-4000-8000-000000000002"
	thisBoot     = "8d0f0b56-0000-4000-8000-000000000001"
	nextBoot     = "8d0f0b56-0000-4000-8000-000000000002"
)

// The functions of test/machines/2xb60-sriov.
func free() pci.Address    { return address("0000:4b:00.0") }
func foreign() pci.Address { return address("0000:99:00.0") } // with two virtual functions of somebody
func address(text string) pci.Address {
	a, err := pci.Parse(text)
	if err != nil {
		panic(err)
	}
	return a
}

func wants(t testing.TB, err error, want error, parts ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q, want it to say %q", err, part)
		}
	}
	if strings.Contains(err.Error(), ours) || strings.Contains(err.Error(), theirs) {
		t.Errorf("error %q names a claim, which may be that of another namespace", err)
	}
}

// node is a node with a machine that reacts, and the plugin's process on it.
type node struct {
	*pcisim.Sim
	t       testing.TB
	machine pcisim.Machine
	dir     string
	tree    *sysfs.Tree
	writer  *sysfs.Writer
	points  *restorepoint.Store
	kinds   step.Kinds
	maker   *sriov.Maker
}

func start(t testing.TB) *node {
	t.Helper()
	text, err := os.ReadFile("../../test/machines/2xb60-sriov.txtar")
	check.Must(t, err)
	host, err := sim.Parse(text)
	check.Must(t, err)
	var m pcisim.Machine
	s := pcisim.Start(t, host, func(made *pcisim.Machine) { m = *made })
	return process(t, s, m, filepath.Join(t.TempDir(), "points"), thisBoot)
}

// process is a new process of the plugin on the same node.
func process(t testing.TB, s *pcisim.Sim, m pcisim.Machine, dir, boot string) *node {
	t.Helper()
	n := &node{Sim: s, t: t, machine: m, dir: dir}
	tree, err := sysfs.Open(s.Root)
	check.Must(t, err)
	writer, err := sysfs.OpenWriter(s.Root)
	check.Must(t, err)
	t.Cleanup(func() { check.Must(t, errors.Join(tree.Close(), writer.Close())) })
	n.tree, n.writer, n.points = tree, writer, restorepoint.Open(disk.OS{}, dir, boot)
	check.Must(t, n.points.Make())
	n.maker = sriov.New(sriov.Config{Tree: tree, Write: writer, Points: n.points, Clock: pcisim.NewClock()})
	n.kinds = n.maker.Kinds()
	return n
}

// provisioned are two functions with all that can be set.
func provisioned() sriov.Options {
	return sriov.Options{
		Autoprobe: new(false),
		Provisioning: []sriov.Provisioning{
			{VF: 0, ExecQuantum: new(uint32(32)), SchedPriority: "high"},
			{VF: 1, ExecQuantum: new(uint32(16)), PreemptTimeout: new(uint32(64000)), SchedPriority: "normal", VRAMQuota: new(uint64(8 << 30))},
			{VF: 2, VRAMQuota: new(uint64(4 << 30))},
		},
	}
}

func (n *node) plan(o sriov.Options) step.Step {
	n.t.Helper()
	s, err := n.maker.Plan(n.t.Context(), free(), ours, 2, o)
	check.Must(n.t, err)
	return s
}

// state is all that the step may touch, and the machine's functions, as text.
func (n *node) state() string {
	n.t.Helper()
	var lines []string
	functions, err := n.tree.ReadDir(sysfs.PCIDevices)
	check.Must(n.t, err)
	for _, name := range functions {
		driver, _ := n.tree.LinkBase(filepath.Join(sysfs.PCIDevice(name), "driver")) // Absent where there is none.
		lines = append(lines, name+" "+driver)
		for _, attribute := range []string{"sriov_numvfs", "sriov_drivers_autoprobe"} {
			value, err := n.tree.ReadString(filepath.Join(sysfs.PCIDevice(name), attribute))
			if err == nil {
				lines = append(lines, " "+attribute+" "+value)
			}
		}
	}
	settings, err := n.tree.Glob(filepath.Join(sysfs.PCIDevice(free().String()), "sriov_admin/*/profile/*"))
	check.Must(n.t, err)
	for _, name := range settings {
		value, err := n.tree.ReadString(name)
		check.Must(n.t, err)
		lines = append(lines, strings.TrimPrefix(name, sysfs.PCIDevice(free().String())+"/")+" "+value)
	}
	return strings.Join(lines, "\n")
}

func (n *node) has(lines ...string) {
	n.t.Helper()
	for _, line := range lines {
		if !slices.Contains(strings.Split(n.state(), "\n"), line) {
			n.t.Errorf("the machine is\n%s\nwant %q", n.state(), line)
		}
	}
}

func (n *node) noPoints() {
	n.t.Helper()
	names, err := os.ReadDir(n.dir)
	check.Must(n.t, err)
	if len(names) > 0 {
		n.t.Errorf("left in the directory of restore points: %v", names)
	}
}

// TestMake: virtual functions are provisioned, made and removed, and every attribute is then what it was.
func TestMake(t *testing.T) {
	n := start(t)
	before := n.state()
	s := n.plan(provisioned())
	check.Must(t, n.kinds.Apply(t.Context(), s))
	n.has(" sriov_numvfs 2", "0000:4b:00.1 ", "0000:4b:00.2 ", "sriov_admin/pf/profile/sched_priority low normal [high]",
		"sriov_admin/vf1/profile/exec_quantum_ms 16", "sriov_admin/vf1/profile/vram_quota 8589934592",
		"sriov_admin/vf2/profile/vram_quota 4294967296")
	found, err := sriov.VirtualFunctions(n.tree, free())
	check.Must(t, err)
	if diff := cmp.Diff([]pci.Address{address("0000:4b:00.1"), address("0000:4b:00.2")}, found); diff != "" {
		t.Errorf("virtual functions (-want +got):\n%s", diff)
	}
	check.Must(t, n.kinds.Verify(t.Context(), s))
	done := len(n.Trace())
	check.Must(t, n.kinds.Apply(t.Context(), s)) // twice
	if len(n.Trace()) > done {
		t.Errorf("the second Apply wrote %v", n.Trace()[done:])
	}
	check.Must(t, n.kinds.Undo(t.Context(), s))
	if diff := cmp.Diff(before, n.state()); diff != "" {
		t.Errorf("after Undo (-before +after):\n%s", diff)
	}
	n.noPoints()
	s = n.plan(sriov.Options{})
	check.Must(t, n.kinds.Apply(t.Context(), s))
	n.has("0000:4b:00.1 xe") // the kernel binds them by default
	check.Must(t, n.kinds.Undo(t.Context(), s))
}

// TestRefusals: counts that cannot be, functions that have none, and virtual functions of somebody else, which stay.
func TestRefusals(t *testing.T) {
	n := start(t)
	plan := func(function pci.Address, count int, o sriov.Options, want error, parts ...string) {
		t.Helper()
		_, err := n.maker.Plan(t.Context(), function, ours, count, o)
		wants(t, err, want, parts...)
	}
	plan(free(), 25, sriov.Options{}, sriov.ErrTooMany, "25, want 1 to 24") // the kernel's ERANGE
	plan(free(), 0, sriov.Options{}, sriov.ErrTooMany)
	plan(address("0000:49:01.0"), 1, sriov.Options{}, sriov.ErrNoSRIOV) // the kernel's ENODEV
	plan(foreign(), 2, sriov.Options{}, sriov.ErrForeign)
	quota := sriov.Options{Provisioning: []sriov.Provisioning{{VF: 9, VRAMQuota: new(uint64(1))}}}
	plan(free(), 2, quota, os.ErrNotExist, "sriov_admin/vf9/profile/vram_quota", "upgrade the kernel")

	// Somebody makes some after the step was planned: the kernel's EBUSY.
	s := n.plan(sriov.Options{})
	n.Set(pcisim.Set{Function: free().String(), VFs: new(1)})
	wants(t, n.kinds.Apply(t.Context(), s), sriov.ErrForeign)
	check.Must(t, n.kinds.Undo(t.Context(), s))
	n.has("0000:4b:00.1 xe")
	n.Set(pcisim.Set{Function: free().String(), VFs: new(0)})

	check.Must(t, n.kinds.Apply(t.Context(), s))
	_, err := n.maker.Plan(t.Context(), free(), theirs, 2, sriov.Options{})
	wants(t, err, restorepoint.ErrHeld, "another claim")
	// Somebody replaces them: they are not the step's any more.
	n.Set(pcisim.Set{Function: free().String(), VFs: new(4)})
	check.Must(t, n.kinds.Undo(t.Context(), s))
	n.has(" sriov_numvfs 4")
	n.noPoints()
	for _, e := range n.Trace() {
		if strings.Contains(e.Path, "0000:99") {
			t.Errorf("written to the function of somebody else: %s", e)
		}
	}
}

// TestDriverRefuses: what the driver answers is passed on with what helps, and nothing stays.
func TestDriverRefuses(t *testing.T) {
	n := start(t)
	before := n.state()
	s := n.plan(provisioned())
	for _, f := range []struct{ path, errno, say string }{
		{"sriov_numvfs", "ENOMEM", "no address space"}, {"sriov_numvfs", "EBUSY", "meanwhile"}, {"vf1/profile/vram_quota", "EIO", "vram_quota"},
	} {
		n.Fault(pcisim.Fault{Path: f.path, Errno: f.errno})
		err := n.kinds.Apply(t.Context(), s)
		if err == nil || !strings.Contains(err.Error(), f.say) {
			t.Errorf("%s of %s: %v, want it to say %q", f.errno, f.path, err, f.say)
		}
		check.Must(t, n.kinds.Undo(t.Context(), s))
		if diff := cmp.Diff(before, n.state()); diff != "" {
			t.Errorf("after Undo (-before +after):\n%s", diff)
		}
		n.noPoints()
	}
}

// TestInUse: virtual functions that a claim holds, or that a process has open, are not removed, and the restore point stays.
func TestInUse(t *testing.T) {
	n := start(t)
	s := n.plan(sriov.Options{})
	check.Must(t, n.kinds.Apply(t.Context(), s))
	vf := step.Step{Kind: "pci.bind", Target: "0000:4b:00.2"}
	_, err := n.points.Begin(theirs, vf)
	check.Must(t, err)
	wants(t, n.kinds.Undo(t.Context(), s), sriov.ErrInUse, "0000:4b:00.2", "another claim")
	bad := filepath.Join(n.dir, "pci.bind_0000:4b:00.2.json")
	check.Must(t, os.WriteFile(bad, []byte("{"), 0o600))
	check.WantErr(t, n.kinds.Undo(t.Context(), s), nil, bad, "by hand")
	other := filepath.Join(n.dir, "pci.bind_0000:99:00.0.json") // of another device
	check.Must(t, os.Rename(bad, other))

	n.Set(pcisim.Set{Function: "0000:4b:00.1", Driver: new("vfio-pci")})
	dir := filepath.Join(n.Root, "proc/815")
	check.Must(t, os.MkdirAll(filepath.Join(dir, "fd"), 0o755))
	at := filepath.Join(t.TempDir(), "node")
	check.Must(t, unix.Mknod(at, unix.S_IFCHR|0o600, int(unix.Mkdev(511, 1)))) // after that of the group
	check.Must(t, os.Symlink(at, filepath.Join(dir, "fd", "3")))
	wants(t, n.kinds.Undo(t.Context(), s), sriov.ErrInUse, "process 815")
	n.has(" sriov_numvfs 2")
	check.Must(t, os.RemoveAll(dir))
	check.Must(t, n.kinds.Undo(t.Context(), s))
	check.Must(t, os.Remove(other))
	n.noPoints()
}

// TestStuckDriver: virtual functions that the driver makes after the step gave up are the step's. Its Undo waits for them, no longer than
// for any other answer, and removes them.
func TestStuckDriver(t *testing.T) {
	for _, lock := range []string{"", "sriov_numvfs"} {
		t.Run("lock "+lock, func(t *testing.T) {
			n := start(t)
			clock := pcisim.NewClock()
			k := sriov.New(sriov.Config{Tree: n.tree, Write: n.writer, Points: n.points, Clock: clock}).Kinds()
			s := n.plan(sriov.Options{})
			n.Fault(pcisim.Fault{Path: "sriov_numvfs", Hold: true, Lock: lock})
			t.Cleanup(n.Go)
			tooLate := func(act func(context.Context, step.Step) error) {
				t.Helper()
				err := clock.GivesUp(t, sriov.DefaultWait, "write "+sysfs.HostPath(numVFs()), func() error { return act(t.Context(), s) })
				wants(t, err, sysfs.ErrNoAnswer)
			}
			tooLate(k.Apply)
			check.Eventually(t, "the driver is asked", func() bool { return n.Held() == 1 })
			tooLate(k.Apply)
			tooLate(k.Undo)
			n.Go()
			check.Eventually(t, "the driver answers", func() bool { return n.Held() == 0 })
			check.Must(t, k.Undo(t.Context(), s))
			n.has(" sriov_numvfs 0")
			n.noPoints()
		})
	}
}

// numVFs is the attribute that makes virtual functions.
func numVFs() string { return sysfs.PCIDevice(free().String()) + "/sriov_numvfs" }

// TestStuckByOthers: while the driver does not answer another program, such as a plugin before this one, nobody is told how many virtual
// functions there are. That is waited for no longer than for any other answer.
func TestStuckByOthers(t *testing.T) {
	for what, act := range map[string]func(context.Context, *sriov.Maker, step.Step) error{
		"Apply":  func(ctx context.Context, m *sriov.Maker, s step.Step) error { return m.Kinds().Apply(ctx, s) },
		"Verify": func(ctx context.Context, m *sriov.Maker, s step.Step) error { return m.Kinds().Verify(ctx, s) },
		"Undo":   func(ctx context.Context, m *sriov.Maker, s step.Step) error { return m.Kinds().Undo(ctx, s) },
		"Plan": func(ctx context.Context, m *sriov.Maker, _ step.Step) error {
			_, err := m.Plan(ctx, free(), theirs, 2, sriov.Options{})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			n := start(t)
			s := n.plan(sriov.Options{})
			if what != "Plan" {
				check.Must(t, n.kinds.Apply(t.Context(), s))
			}
			clock := pcisim.NewClock()
			m := sriov.New(sriov.Config{Tree: n.tree, Write: n.writer, Points: n.points, Clock: clock})
			n.Fault(pcisim.Fault{Path: "sriov_numvfs", Hold: true, Lock: "sriov_numvfs"})
			t.Cleanup(n.Go)
			written := make(chan error, 1)
			go func() {
				written <- n.writer.WriteAttr(numVFs(), "0")
			}()
			check.Eventually(t, "the driver has the function locked", func() bool { return n.Held() == 1 })
			err := clock.GivesUp(t, sriov.DefaultWait, "read "+sysfs.HostPath(numVFs()), func() error { return act(t.Context(), m, s) })
			wants(t, err, sysfs.ErrNoAnswer)
			n.Go()
			check.Must(t, <-written)
			check.Must(t, m.Kinds().Undo(t.Context(), s))
			n.noPoints()
		})
	}
}

// TestVanished: a card that left the node is nothing to restore.
func TestVanished(t *testing.T) {
	n := start(t)
	s := n.plan(provisioned())
	check.Must(t, n.kinds.Apply(t.Context(), s))
	n.Set(pcisim.Set{Function: free().String(), Gone: true})
	check.Must(t, n.kinds.Undo(t.Context(), s))
	n.noPoints()
}

// TestReboot: after a reboot there is nothing to restore, and the step is planned anew.
func TestReboot(t *testing.T) {
	n := start(t)
	s := n.plan(provisioned())
	check.Must(t, n.kinds.Apply(t.Context(), s))
	check.Must(t, n.tree.Close())
	after := process(t, n.Reboot(n.machine), n.machine, n.dir, nextBoot)
	check.Must(t, after.kinds.Undo(t.Context(), s))
	if trace := after.Trace(); len(trace) > 0 {
		t.Errorf("the Undo of an earlier boot wrote %v", trace)
	}
	after.noPoints()
	check.Must(t, after.kinds.Apply(t.Context(), after.plan(provisioned())))
	after.has(fmt.Sprintf("%s ", address("0000:4b:00.2")))
}

func kinds(tree *sysfs.Tree, w sysfs.AttrWriter, points *restorepoint.Store) step.Kinds {
	return sriov.New(sriov.Config{Tree: tree, Write: w, Points: points, Clock: pcisim.NewClock()}).Kinds()
}

func TestChildMake(t *testing.T) { stepcrash.Child(t, kinds) }

// TestCrashPoints kills the process before and after every write of the step and of its Undo, and at every operation on the restore
// point.
func TestCrashPoints(t *testing.T) {
	n := start(t)
	points, kills := stepcrash.Case{
		Child: "TestChildMake", Kinds: kinds, Root: n.Root, Dir: n.dir, Boot: thisBoot,
		Plan: func() step.Step { return n.plan(provisioned()) }, State: n.state,
	}.Every(t)
	t.Logf("%d points, %d kills", points, kills)
	// 8 attributes and the count are written and restored, of which the driver restores two itself; the restore point takes 6 and 2.
	if want := 9 + 7 + 6 + 2; points != want {
		t.Errorf("%d points, want %d: say here what a change adds", points, want)
	}
}
