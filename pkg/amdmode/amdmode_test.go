// SPDX-License-Identifier: Apache-2.0

package amdmode_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/amdmode"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/pcisim"
	"github.com/fettle-dev/fettle/test/stepcrash"
)

func TestMain(m *testing.M) { os.Exit(pcisim.Run(m)) }

// gpu is the first of test/machines/8xmi300x, in SPX.
func gpu() pci.Address { return pci.Address{Bus: 5} }

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
	tree     *sysfs.Tree
	kinds    step.Kinds
	switcher *amdmode.Switcher
}

func start(t testing.TB, machine string, change func(*pcisim.Machine)) *node {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../test/machines", machine+".txtar"))
	check.Must(t, err)
	host, err := sim.Parse(text)
	check.Must(t, err)
	var m pcisim.Machine
	s := pcisim.Start(t, host, func(made *pcisim.Machine) {
		if change != nil {
			change(made)
		}
		m = *made
	})
	return process(t, s, m)
}

// process is a new process of the plugin on the same node.
func process(t testing.TB, s *pcisim.Sim, m pcisim.Machine) *node {
	t.Helper()
	n := &node{Sim: s, t: t, machine: m}
	tree, err := sysfs.Open(s.Root)
	check.Must(t, err)
	t.Cleanup(func() { check.Must(t, tree.Close()) })
	n.tree = tree
	n.switcher = amdmode.New(amdmode.Config{Tree: tree, Write: openWriter(t, s.Root), Clock: pcisim.NewClock()})
	n.kinds = n.switcher.Kinds()
	return n
}

// stepTo is the step of a claim for a mode of the GPU.
func (n *node) stepTo(mode string) step.Step {
	n.t.Helper()
	s, err := (&amdmode.Params{Function: gpu(), Mode: mode}).Step()
	check.Must(n.t, err)
	return s
}

func (n *node) mode() string {
	n.t.Helper()
	m, err := amdmode.Read(n.tree, gpu())
	check.Must(n.t, err)
	return m.Compute
}

// partitions are those of all GPUs as text.
func (n *node) partitions() []string {
	n.t.Helper()
	functions, err := pci.List(n.tree)
	check.Must(n.t, err)
	var out []string
	for _, f := range functions {
		if f.Driver != "amdgpu" {
			continue
		}
		parts, err := discover.AMDPartitions(n.tree, f)
		check.Must(n.t, err)
		for _, p := range parts {
			out = append(out, fmt.Sprintf("%s %d %s %d GiB %d units", f.Address, p.Index, p.Render, p.Memory>>30, p.ComputeUnits))
		}
	}
	return out
}

// TestSwitch: a GPU is divided, each partition has a render node of its own, and it stays divided when the claim goes, since another claim
// may have the next partition. The claim for the whole GPU makes it whole.
func TestSwitch(t *testing.T) {
	for name, bits := range map[string]bool{"top bits": false, "function bits": true} {
		t.Run(name, func(t *testing.T) {
			n := start(t, "8xmi300x", func(m *pcisim.Machine) { m.FunctionBits = bits })
			whole := n.partitions()
			if len(whole) != 8 {
				t.Fatalf("8 GPUs have the partitions\n%s", strings.Join(whole, "\n"))
			}
			s := n.stepTo("QPX")
			check.Must(t, n.kinds.Apply(t.Context(), s))
			check.Must(t, n.kinds.Verify(t.Context(), s))
			want := append([]string{
				"0000:05:00.0 0 renderD128 47 GiB 76 units", "0000:05:00.0 1 renderD129 47 GiB 76 units",
				"0000:05:00.0 2 renderD130 47 GiB 76 units", "0000:05:00.0 3 renderD131 47 GiB 76 units",
			}, whole[1:]...)
			check.Must(t, n.kinds.Apply(t.Context(), s)) // twice
			check.Must(t, n.kinds.Undo(t.Context(), s))
			check.Must(t, n.kinds.Undo(t.Context(), s))
			if diff := cmp.Diff(want, n.partitions()); diff != "" {
				t.Errorf("partitions (-want +got):\n%s", diff)
			}
			check.Must(t, n.kinds.Apply(t.Context(), n.stepTo("SPX")))
			if diff := cmp.Diff(whole, n.partitions()); diff != "" {
				t.Errorf("whole again (-want +got):\n%s", diff)
			}
			if trace := n.Trace(); len(trace) != 2 {
				t.Errorf("written: %v, want the two modes once each", trace)
			}
		})
	}
}

// TestTogether: of claims that get partitions of one GPU at the same time one switches, and the others find it done. A switch would take
// the partition away that the first has.
func TestTogether(t *testing.T) {
	n := start(t, "8xmi300x", nil)
	n.Fault(pcisim.Fault{Path: "current_compute_partition", Hold: true})
	var all, begun sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		begun.Add(1)
		all.Go(func() {
			begun.Done()
			errs[i] = n.switcher.Ensure(t.Context(), gpu(), "CPX")
		})
	}
	begun.Wait()
	check.Eventually(t, "a claim that switches", func() bool { return n.Held() == 1 })
	n.Go()
	all.Wait()
	check.Must(t, errors.Join(errs...))
	if trace := n.Trace(); len(trace) != 1 || n.mode() != "CPX" {
		t.Errorf("written: %v, want one write; mode %s", trace, n.mode())
	}
}

// TestTurn: a claim does not wait longer than its context for another that switches the GPU.
func TestTurn(t *testing.T) {
	n := start(t, "8xmi300x", nil)
	n.Set(pcisim.Set{Function: gpu().String(), Users: new(1)})
	patient := amdmode.New(amdmode.Config{Tree: n.tree, Write: openWriter(t, n.Root), Wait: time.Minute})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- patient.Ensure(ctx, gpu(), "CPX") }()
	check.Eventually(t, "a claim that tries to switch", func() bool { return len(n.Trace()) > 0 })
	err := patient.Ensure(check.Passed(t), gpu(), "CPX")
	wants(t, err, context.DeadlineExceeded, "another claim")
	cancel()
	if err := <-first; !errors.Is(err, amdmode.ErrInUse) && !errors.Is(err, sysfs.ErrNoAnswer) { // it waited, or was in the midst of a try
		t.Errorf("the one that switches: %v", err)
	}
}

// compute is the attribute of the GPU's mode.
func compute() string { return sysfs.PCIDevice(gpu().String()) + "/current_compute_partition" }

// TestStuckDriver: a switch that the driver does not answer may still happen. It ends in time for its caller, who cannot read the mode
// then, and the next claim does not take the mode of before for its own.
func TestStuckDriver(t *testing.T) {
	for _, lock := range []string{"", "current_compute_partition"} {
		t.Run("lock "+lock, func(t *testing.T) {
			n := start(t, "8xmi300x", nil)
			clock := pcisim.NewClock()
			s := amdmode.New(amdmode.Config{Tree: n.tree, Write: openWriter(t, n.Root), Clock: clock})
			n.Fault(pcisim.Fault{Path: "current_compute_partition", Hold: true, Lock: lock})
			t.Cleanup(n.Go)
			tooLate := func(mode string) {
				t.Helper()
				late := func() error { return s.Ensure(t.Context(), gpu(), mode) }
				wants(t, clock.GivesUp(t, amdmode.DefaultWait, "write "+sysfs.HostPath(compute()), late), sysfs.ErrNoAnswer)
			}
			tooLate("CPX")
			check.Eventually(t, "the driver is asked", func() bool { return n.Held() == 1 })
			tooLate("SPX")
			n.Go()
			check.Eventually(t, "the driver answers", func() bool { return n.Held() == 0 })
			check.Must(t, s.Ensure(t.Context(), gpu(), "SPX"))
			if got := n.mode(); got != "SPX" {
				t.Errorf("mode %s, want SPX", got)
			}
		})
	}
}

// TestStuckByOthers: while the driver does not answer another program, such as a plugin before this one, nobody is told the mode. That is
// waited for no longer than for any other answer, and the node's other GPUs are found meanwhile.
func TestStuckByOthers(t *testing.T) {
	n := start(t, "8xmi300x", nil)
	clock := pcisim.NewClock()
	w := openWriter(t, n.Root)
	k := amdmode.New(amdmode.Config{Tree: n.tree, Write: w, Clock: clock}).Kinds()
	own := gpu().String() + "/current_compute_partition"
	n.Fault(pcisim.Fault{Path: own, Hold: true, Lock: own})
	t.Cleanup(n.Go)
	written := make(chan error, 1)
	go func() {
		written <- w.WriteAttr(compute(), "CPX")
	}()
	check.Eventually(t, "the driver switches", func() bool { return n.Held() == 1 })
	for _, act := range []func(context.Context, step.Step) error{k.Apply, k.Verify} {
		late := func() error { return act(t.Context(), n.stepTo("CPX")) }
		wants(t, clock.GivesUp(t, amdmode.DefaultWait, "read "+sysfs.HostPath(compute()), late), sysfs.ErrNoAnswer)
	}
	locked := sysfs.NewReads(clock, amdmode.DefaultWait)
	late := clock.GivesUp(t, amdmode.DefaultWait, "read "+sysfs.HostPath(compute()), func() error {
		found := discover.Discover(t.Context(), n.tree, discover.Options{Locked: locked})
		if len(found.Devices) != 7 {
			return fmt.Errorf("%w: %d GPUs are found beside it, want 7", sysfs.ErrNoAnswer, len(found.Devices))
		}
		return fmt.Errorf("%w: %s", sysfs.ErrNoAnswer, found.Problems)
	})
	wants(t, late, sysfs.ErrNoAnswer, gpu().String())
	n.Go()
	check.Must(t, <-written)
	check.Must(t, k.Apply(t.Context(), n.stepTo("CPX")))
}

// TestEveryGPUInDPX: 8 GPUs in DPX have 16 partitions. Elsewhere 8 were found (rocm#20, rocm#21).
func TestEveryGPUInDPX(t *testing.T) {
	n := start(t, "8xmi300x", nil)
	functions, err := pci.List(n.tree)
	check.Must(t, err)
	for _, f := range functions {
		if f.Driver == "amdgpu" {
			check.Must(t, n.switcher.Ensure(t.Context(), f.Address, "DPX"))
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

// TestInUse: the driver's EBUSY is waited out, then told with the process. Undo never waits.
func TestInUse(t *testing.T) {
	n := start(t, "8xmi300x", nil)
	s := n.stepTo("CPX")
	n.Set(pcisim.Set{Function: gpu().String(), Users: new(1)})
	dir := filepath.Join(n.Root, "proc/4242")
	check.Must(t, os.MkdirAll(filepath.Join(dir, "fd"), 0o755))
	check.Must(t, os.WriteFile(filepath.Join(dir, "comm"), []byte("rocminfo\n"), 0o644))
	check.Must(t, os.Symlink("../../../dev/kfd", filepath.Join(dir, "fd", "5")))
	err := n.kinds.Apply(t.Context(), s)
	wants(t, err, amdmode.ErrInUse, "process 4242 (rocminfo)", "not switched to CPX")
	wants(t, err, unix.EBUSY)
	check.Must(t, os.RemoveAll(dir))
	wants(t, n.kinds.Apply(t.Context(), s), amdmode.ErrInUse, "one that ended is forgotten soon")
	n.Set(pcisim.Set{Function: gpu().String(), Users: new(0)})
	check.Must(t, n.kinds.Apply(t.Context(), s))

	n.Set(pcisim.Set{Function: gpu().String(), Users: new(1)})
	check.Must(t, n.kinds.Apply(t.Context(), s)) // the mode is there: who computes is no obstacle
	check.Must(t, n.kinds.Undo(t.Context(), s))
	if n.mode() != "CPX" {
		t.Errorf("mode %s", n.mode())
	}
	n.Set(pcisim.Set{Function: gpu().String(), Users: new(0)})
	n.Fault(pcisim.Fault{Path: "current_compute_partition", Errno: "EBUSY"}) // once: exit is cleaned up late
	check.Must(t, n.switcher.Ensure(t.Context(), gpu(), "SPX"))
	if n.mode() != "SPX" {
		t.Errorf("mode %s", n.mode())
	}
}

func openWriter(t testing.TB, root string) *sysfs.Writer {
	t.Helper()
	w, err := sysfs.OpenWriter(root)
	check.Must(t, err)
	t.Cleanup(func() { check.Must(t, w.Close()) })
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
	ensure := func(function pci.Address, mode string) error { return n.switcher.Ensure(t.Context(), function, mode) }
	wants(t, ensure(gpu(), "TPX"), amdmode.ErrInvalid, "want SPX, DPX, QPX, CPX")
	wants(t, ensure(pci.Address{Bus: 0x26}, "DPX"), amdmode.ErrInvalid, "memory mode NPS4 does not go with it", "DPX with NPS1 and NPS2")
	wants(t, ensure(pci.Address{Bus: 2, Device: 1, Function: 1}, "DPX"), amdmode.ErrNoModes)
	if trace := n.Trace(); len(trace) > 0 {
		t.Errorf("written: %v", trace)
	}

	s := n.stepTo("DPX")
	n.Fault(pcisim.Fault{Path: "current_compute_partition", Errno: "EINVAL"})
	wants(t, n.kinds.Apply(t.Context(), s), amdmode.ErrInvalid, "CPX with NPS1 and NPS4", "memory mode NPS1")
	n.Fault(pcisim.Fault{Path: "current_compute_partition", Errno: "EPERM"})
	wants(t, n.kinds.Apply(t.Context(), s), amdmode.ErrReset)
	check.Must(t, n.kinds.Apply(t.Context(), s))
	check.Must(t, n.kinds.Verify(t.Context(), s))
}

// TestForeignSwitch: Verify tells a mode that somebody else set since, and Undo leaves it.
func TestForeignSwitch(t *testing.T) {
	n := start(t, "8xmi300x", nil)
	s := n.stepTo("DPX")
	check.Must(t, n.kinds.Apply(t.Context(), s))
	file := compute()
	check.Must(t, openWriter(t, n.Root).WriteAttr(file, "CPX"))
	wants(t, n.kinds.Verify(t.Context(), s), amdmode.ErrChanged, "mode CPX, want DPX")
	check.Must(t, n.kinds.Undo(t.Context(), s))
	if n.mode() != "CPX" {
		t.Errorf("mode %s", n.mode())
	}
	check.Must(t, n.kinds.Apply(t.Context(), s))
	check.Must(t, n.kinds.Verify(t.Context(), s))
}

// TestVanished: a GPU that left cannot be switched, and there is nothing to undo.
func TestVanished(t *testing.T) {
	n := start(t, "8xmi300x", nil)
	s := n.stepTo("DPX")
	check.Must(t, n.kinds.Apply(t.Context(), s))
	n.Set(pcisim.Set{Function: gpu().String(), Gone: true})
	wants(t, n.kinds.Verify(t.Context(), s), amdmode.ErrNoModes)
	wants(t, n.kinds.Apply(t.Context(), s), amdmode.ErrNoModes)
	check.Must(t, n.kinds.Undo(t.Context(), s))
}

// TestReboot: the mode ends with the boot. The step of an earlier boot sets it again, and its Undo writes nothing.
func TestReboot(t *testing.T) {
	n := start(t, "8xmi300x", nil)
	s := n.stepTo("DPX")
	check.Must(t, n.kinds.Apply(t.Context(), s))
	check.Must(t, n.tree.Close())
	after := process(t, n.Reboot(n.machine), n.machine)
	check.Must(t, after.kinds.Undo(t.Context(), s))
	if trace := after.Trace(); len(trace) > 0 || after.mode() != "SPX" {
		t.Errorf("the Undo of an earlier boot wrote %v; mode %s", trace, after.mode())
	}
	check.Must(t, after.kinds.Apply(t.Context(), s))
	check.Must(t, after.kinds.Verify(t.Context(), s))
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
	s := n.stepTo("SPX")
	check.Must(t, n.kinds.Apply(t.Context(), s))
	if got := n.partitions(); got[0] != "0000:05:00.0 0 renderD128 191 GiB 304 units" {
		t.Errorf("in SPX:\n%s", strings.Join(got, "\n"))
	}
	check.Must(t, n.kinds.Apply(t.Context(), n.stepTo("CPX")))
	if diff := cmp.Diff(got, n.partitions()); diff != "" {
		t.Errorf("in CPX again (-before +after):\n%s", diff)
	}
}

// recorded is a step, and the machine, for a child process.
type recorded struct {
	Root string
	Step step.Step
}

// TestChild plays the process that is killed.
func TestChild(t *testing.T) {
	plan, ok := fault.Planned()
	if !ok {
		t.Skip("only as a child process")
	}
	var r recorded
	check.Must(t, json.Unmarshal(plan.Data, &r))
	in, err := plan.Injector()
	check.Must(t, err)
	tree, err := sysfs.Open(r.Root)
	check.Must(t, err)
	write := stepcrash.Writer{Injector: in, Under: openWriter(t, r.Root)}
	kinds := amdmode.New(amdmode.Config{Tree: tree, Write: write, Clock: pcisim.NewClock()}).Kinds()
	do := func(what string, act func(context.Context, step.Step) error) {
		check.Must(t, act(t.Context(), r.Step))
		check.Must(t, in.Do(what, func() error { return nil }))
	}
	do("applied", kinds.Apply)
	do("undone", kinds.Undo)
}

// TestCrashPoints kills the process before and after its write and after each act. The next process finishes what the step began, whether
// the claim is still wanted or another claim comes.
func TestCrashPoints(t *testing.T) {
	n := start(t, "2xmi300x-divided", nil)
	before := n.partitions()
	s := n.stepTo("QPX")
	data, err := json.Marshal(recorded{Root: n.Root, Step: s})
	check.Must(t, err)
	at := []string{"CPX", "QPX", "QPX"} // the mode after each kill: before the write, after it, after Undo
	kills := 0
	for ; ; kills++ {
		result, err := fault.Child{}.Run(t.Context(), fault.Plan{Faults: []fault.Fault{fault.Kill(kills + 1)}, Quick: true, Data: data})
		check.Must(t, err)
		if result.Killed == nil {
			break
		}
		if kills < len(at) && n.mode() != at[kills] {
			t.Errorf("killed at %s: mode %s, want %s", result.Killed, n.mode(), at[kills])
		}
		check.Must(t, n.kinds.Apply(t.Context(), s))
		check.Must(t, n.kinds.Verify(t.Context(), s))
		check.Must(t, n.kinds.Undo(t.Context(), s))
		check.Must(t, n.kinds.Apply(t.Context(), n.stepTo("CPX"))) // the next claim
		if diff := cmp.Diff(before, n.partitions()); diff != "" {
			t.Errorf("killed at %s, after the next claim (-before +after):\n%s", result.Killed, diff)
		}
	}
	t.Logf("%d kills", kills)
	if kills != len(at) {
		t.Errorf("%d points, want %d: say here what a change adds", kills, len(at))
	}
}
