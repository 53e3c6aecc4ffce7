// SPDX-License-Identifier: Apache-2.0

package amdmode_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/amdmode"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/pcisim"
	"github.com/fettle-dev/fettle/test/stepcrash"
)

func TestMain(m *testing.M) {
	pcisim.Main()
	os.Exit(m.Run())
}

const (
	ours, theirs = "7c6f2c1e-0000-4000-8000-000000000001", "7c6f2c1e-0000-4000-8000-000000000002"
	thisBoot     = "8d0f0b56-0000-4000-8000-000000000001"
	nextBoot     = "8d0f0b56-0000-4000-8000-000000000002"
)

// gpu is the first of test/machines/8xmi300x, in SPX.
func gpu() pci.Address { return pci.Address{Bus: 5} }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
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
}

// node is a node with a machine that reacts, and the plugin's process on it.
type node struct {
	*pcisim.Sim
	t        testing.TB
	machine  pcisim.Machine
	dir      string
	tree     *sysfs.Tree
	points   *restorepoint.Store
	kinds    step.Kinds
	switcher *amdmode.Switcher
}

func start(t testing.TB, machine string, change func(*pcisim.Machine)) *node {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../test/machines", machine+".txtar"))
	must(t, err)
	host, err := sim.Parse(text)
	must(t, err)
	var m pcisim.Machine
	s := pcisim.Start(t, host, func(made *pcisim.Machine) {
		if change != nil {
			change(made)
		}
		m = *made
	})
	return process(t, s, m, filepath.Join(t.TempDir(), "points"), thisBoot)
}

// process is a new process of the plugin on the same node.
func process(t testing.TB, s *pcisim.Sim, m pcisim.Machine, dir, boot string) *node {
	t.Helper()
	n := &node{Sim: s, t: t, machine: m, dir: dir}
	tree, err := sysfs.Open(s.Root)
	must(t, err)
	writer, err := sysfs.OpenWriter(s.Root)
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(tree.Close(), writer.Close())) })
	n.tree, n.points = tree, restorepoint.Open(disk.OS{}, dir, boot)
	must(t, n.points.Make())
	n.switcher = amdmode.New(amdmode.Config{Tree: tree, Write: writer, Points: n.points, Wait: 100 * time.Millisecond})
	n.kinds = n.switcher.Kinds()
	return n
}

func (n *node) plan(mode string) step.Step {
	n.t.Helper()
	s, err := n.switcher.Plan(gpu(), ours, mode)
	must(n.t, err)
	return s
}

func (n *node) mode() string {
	n.t.Helper()
	m, err := amdmode.Read(n.tree, gpu())
	must(n.t, err)
	return m.Compute
}

// partitions are those of all GPUs as text.
func (n *node) partitions() []string {
	n.t.Helper()
	functions, err := pci.List(n.tree)
	must(n.t, err)
	var out []string
	for _, f := range functions {
		if f.Driver != "amdgpu" {
			continue
		}
		parts, err := discover.AMDPartitions(n.tree, f)
		must(n.t, err)
		for _, p := range parts {
			out = append(out, fmt.Sprintf("%s %d %s %d GiB %d units", f.Address, p.Index, p.Render, p.Memory>>30, p.ComputeUnits))
		}
	}
	return out
}

func (n *node) noPoints() {
	n.t.Helper()
	names, err := os.ReadDir(n.dir)
	must(n.t, err)
	if len(names) > 0 {
		n.t.Errorf("left in the directory of restore points: %v", names)
	}
}

// TestSwitch: a GPU is divided, each partition has a render node of its own, and it is whole again afterwards.
func TestSwitch(t *testing.T) {
	for name, bits := range map[string]bool{"top bits": false, "function bits": true} {
		t.Run(name, func(t *testing.T) {
			n := start(t, "8xmi300x", func(m *pcisim.Machine) { m.FunctionBits = bits })
			whole := n.partitions()
			if len(whole) != 8 {
				t.Fatalf("8 GPUs have the partitions\n%s", strings.Join(whole, "\n"))
			}
			s := n.plan("QPX")
			must(t, n.kinds.Apply(t.Context(), s))
			must(t, n.kinds.Verify(t.Context(), s))
			want := []string{
				"0000:05:00.0 0 renderD128 47 GiB 76 units", "0000:05:00.0 1 renderD129 47 GiB 76 units",
				"0000:05:00.0 2 renderD130 47 GiB 76 units", "0000:05:00.0 3 renderD131 47 GiB 76 units",
			}
			if diff := cmp.Diff(append(want, whole[1:]...), n.partitions()); diff != "" {
				t.Errorf("partitions (-want +got):\n%s", diff)
			}
			must(t, n.kinds.Apply(t.Context(), s)) // twice
			must(t, n.kinds.Undo(t.Context(), s))
			must(t, n.kinds.Undo(t.Context(), s))
			if diff := cmp.Diff(whole, n.partitions()); diff != "" {
				t.Errorf("after Undo (-want +got):\n%s", diff)
			}
			if trace := n.Trace(); len(trace) != 2 {
				t.Errorf("written: %v, want the mode and the former one", trace)
			}
			n.noPoints()
		})
	}
}

// TestEveryGPUInDPX: 8 GPUs in DPX have 16 partitions. Elsewhere 8 were found (rocm#20, rocm#21).
func TestEveryGPUInDPX(t *testing.T) {
	n := start(t, "8xmi300x", nil)
	functions, err := pci.List(n.tree)
	must(t, err)
	for _, f := range functions {
		if f.Driver == "amdgpu" {
			s, err := n.switcher.Plan(f.Address, ours, "DPX")
			must(t, err)
			must(t, n.kinds.Apply(t.Context(), s))
		}
	}
	got := n.partitions()
	names := map[string]bool{}
	for _, p := range got {
		names[strings.Fields(p)[2]] = true
	}
	if len(got) != 16 || len(names) != 16 {
		t.Errorf("%d partitions with %d render nodes, want 16:\n%s", len(got), len(names), strings.Join(got, "\n"))
	}
}

// TestInUse: the driver's EBUSY is waited out, then told with the process; the record and the restore point stay until it works.
func TestInUse(t *testing.T) {
	n := start(t, "8xmi300x", nil)
	s := n.plan("CPX")
	n.Set(pcisim.Set{Function: gpu().String(), Users: new(1)})
	dir := filepath.Join(n.Root, "proc/4242")
	must(t, os.MkdirAll(filepath.Join(dir, "fd"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "comm"), []byte("rocminfo\n"), 0o644))
	must(t, os.Symlink("../../../dev/kfd", filepath.Join(dir, "fd", "5")))
	err := n.kinds.Apply(t.Context(), s)
	wants(t, err, amdmode.ErrInUse, "process 4242 (rocminfo)", "not switched to CPX")
	wants(t, err, unix.EBUSY)
	must(t, os.RemoveAll(dir))
	wants(t, n.kinds.Apply(t.Context(), s), amdmode.ErrInUse, "one that ended is forgotten soon")
	n.Set(pcisim.Set{Function: gpu().String(), Users: new(0)})
	must(t, n.kinds.Apply(t.Context(), s))

	n.Set(pcisim.Set{Function: gpu().String(), Users: new(1)})
	wants(t, n.kinds.Undo(t.Context(), s), amdmode.ErrInUse)
	if points, err := n.points.List(); err != nil || len(points) != 1 || n.mode() != "CPX" {
		t.Errorf("restore points %v, %v, mode %s", points, err, n.mode())
	}
	n.Set(pcisim.Set{Function: gpu().String(), Users: new(0)})
	n.Fault(pcisim.Fault{Path: "current_compute_partition", Errno: "EBUSY"}) // once: exit is cleaned up late
	again := amdmode.New(amdmode.Config{Tree: n.tree, Write: openWriter(t, n.Root), Points: n.points})
	must(t, again.Kinds().Undo(t.Context(), s))
	if n.mode() != "SPX" {
		t.Errorf("mode %s", n.mode())
	}
	n.noPoints()
}

func openWriter(t testing.TB, root string) *sysfs.Writer {
	t.Helper()
	w, err := sysfs.OpenWriter(root)
	must(t, err)
	t.Cleanup(func() { must(t, w.Close()) })
	return w
}

// TestRefusals: modes that the GPU does not have, or not with its memory mode, and what the driver answers.
func TestRefusals(t *testing.T) {
	n := start(t, "8xmi300x", func(m *pcisim.Machine) {
		for name := range m.Files {
			if strings.Contains(name, "0000:26:00.0/current_memory_partition") {
				m.Files[name] = "NPS4\n"
			}
		}
	})
	_, err := n.switcher.Plan(gpu(), ours, "TPX")
	wants(t, err, amdmode.ErrInvalid, "want SPX, DPX, QPX, CPX")
	_, err = n.switcher.Plan(pci.Address{Bus: 0x26}, ours, "DPX")
	wants(t, err, amdmode.ErrInvalid, "memory mode NPS4 does not go with it", "DPX with NPS1 and NPS2")
	_, err = n.switcher.Plan(pci.Address{Bus: 2, Device: 1, Function: 1}, ours, "DPX")
	wants(t, err, amdmode.ErrNoModes)

	s := n.plan("DPX")
	n.Fault(pcisim.Fault{Path: "current_compute_partition", Errno: "EINVAL"})
	wants(t, n.kinds.Apply(t.Context(), s), amdmode.ErrInvalid, "CPX with NPS1 and NPS4", "memory mode NPS1")
	n.Fault(pcisim.Fault{Path: "current_compute_partition", Errno: "EPERM"})
	wants(t, n.kinds.Apply(t.Context(), s), amdmode.ErrReset)
	must(t, n.kinds.Apply(t.Context(), s))
	_, err = n.switcher.Plan(gpu(), theirs, "CPX")
	wants(t, err, restorepoint.ErrHeld, ours)
	must(t, n.kinds.Undo(t.Context(), s))
	n.noPoints()
}

// TestForeignSwitch: a mode that somebody else set since stays, before and after the step.
func TestForeignSwitch(t *testing.T) {
	n := start(t, "8xmi300x", nil)
	s := n.plan("DPX")
	w := openWriter(t, n.Root)
	file := filepath.Join(sysfs.PCIDevice(gpu().String()), "current_compute_partition")
	must(t, w.WriteAttr(file, "QPX"))
	wants(t, n.kinds.Apply(t.Context(), s), amdmode.ErrChanged, "mode QPX")
	must(t, n.kinds.Undo(t.Context(), s))
	must(t, w.WriteAttr(file, "SPX"))
	must(t, n.kinds.Apply(t.Context(), s))
	must(t, w.WriteAttr(file, "CPX"))
	wants(t, n.kinds.Verify(t.Context(), s), amdmode.ErrChanged)
	must(t, n.kinds.Undo(t.Context(), s))
	if n.mode() != "CPX" {
		t.Errorf("mode %s", n.mode())
	}
	n.noPoints()
	same := n.plan("CPX")
	must(t, n.kinds.Apply(t.Context(), same))
	n.noPoints() // nothing to restore
}

// TestVanished: a GPU that left is nothing to restore.
func TestVanished(t *testing.T) {
	n := start(t, "8xmi300x", nil)
	s := n.plan("DPX")
	must(t, n.kinds.Apply(t.Context(), s))
	n.Set(pcisim.Set{Function: gpu().String(), Gone: true})
	must(t, n.kinds.Undo(t.Context(), s))
	n.noPoints()
}

// TestReboot: after a reboot there is nothing to restore.
func TestReboot(t *testing.T) {
	n := start(t, "8xmi300x", nil)
	s := n.plan("DPX")
	must(t, n.kinds.Apply(t.Context(), s))
	must(t, n.tree.Close())
	after := process(t, n.Reboot(n.machine), n.machine, n.dir, nextBoot)
	must(t, after.kinds.Undo(t.Context(), s))
	if trace := after.Trace(); len(trace) > 0 {
		t.Errorf("the Undo of an earlier boot wrote %v", trace)
	}
	after.noPoints()
}

// TestDivided: the partitions of GPUs that are found divided.
func TestDivided(t *testing.T) {
	n := start(t, "2xmi300x-divided", nil)
	got := n.partitions()
	want := []string{
		"0000:05:00.0 0 renderD128 23 GiB 38 units", "0000:05:00.0 7 renderD135 23 GiB 38 units", "0000:26:00.0 1 renderD137 95 GiB 152 units",
	}
	if len(got) != 10 || got[0] != want[0] || got[7] != want[1] || got[9] != want[2] {
		t.Errorf("partitions\n%s\nwant 10, with %q", strings.Join(got, "\n"), want)
	}
	s := n.plan("SPX")
	must(t, n.kinds.Apply(t.Context(), s))
	if got := n.partitions(); got[0] != "0000:05:00.0 0 renderD128 191 GiB 304 units" {
		t.Errorf("in SPX:\n%s", strings.Join(got, "\n"))
	}
	must(t, n.kinds.Undo(t.Context(), s))
	if diff := cmp.Diff(got, n.partitions()); diff != "" {
		t.Errorf("after Undo (-before +after):\n%s", diff)
	}
}

// TestMemory: what a change of the memory mode takes.
func TestMemory(t *testing.T) {
	m := amdmode.Modes{Compute: "SPX", Memory: "NPS1", Computes: []string{"SPX", "DPX", "QPX", "CPX"}, Memories: []string{"NPS1", "NPS4"}}
	change, err := amdmode.PlanMemory(m, []pci.Address{{Bus: 0x26}, {Bus: 5}}, "NPS4")
	must(t, err)
	if change.From != "NPS1" || change.To != "NPS4" || change.Compute != "QPX" || len(change.Needs) != 4 ||
		!cmp.Equal(change.Functions, []pci.Address{{Bus: 5}, {Bus: 0x26}}) {
		t.Errorf("%+v", change)
	}
	if change, err := amdmode.PlanMemory(m, nil, "NPS1"); change != nil || err != nil {
		t.Errorf("no change: %+v, %v", change, err)
	}
	_, err = amdmode.PlanMemory(m, nil, "NPS8")
	wants(t, err, amdmode.ErrInvalid, "want NPS1, NPS4")
}

func kinds(tree *sysfs.Tree, w sysfs.AttrWriter, points *restorepoint.Store) step.Kinds {
	return amdmode.New(amdmode.Config{Tree: tree, Write: w, Points: points, Wait: 10 * time.Second}).Kinds()
}

func TestChildSwitch(t *testing.T) { stepcrash.Child(t, kinds) }

// TestCrashPoints kills the process before and after each write of the mode, and at every operation on the restore point.
func TestCrashPoints(t *testing.T) {
	n := start(t, "2xmi300x-divided", nil)
	points, kills := stepcrash.Case{
		Child: "TestChildSwitch", Kinds: kinds, Root: n.Root, Dir: n.dir, Boot: thisBoot,
		Plan: func() step.Step { return n.plan("QPX") }, State: func() string { return strings.Join(n.partitions(), "\n") },
	}.Every(t)
	t.Logf("%d points, %d kills", points, kills)
	// The mode is written and restored; the restore point takes 6 operations and 2.
	if want := 2 + 6 + 2; points != want {
		t.Errorf("%d points, want %d: say here what a change adds", points, want)
	}
}
