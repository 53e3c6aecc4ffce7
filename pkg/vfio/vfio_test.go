// SPDX-License-Identifier: Apache-2.0

package vfio_test

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
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/vfio"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/pcisim"
)

func TestMain(m *testing.M) { os.Exit(pcisim.Run(m)) }

const (
	ours, theirs = "7c6f2c1e-0000-4000-8000-000000000001", "7c6f2c1e-0000-4000-8000-000000000002"
	thisBoot     = "8d0f0b56-0000-4000-8000-000000000001"
	nextBoot     = "8d0f0b56-0000-4000-8000-000000000002"
)

// The functions of test/machines/2xrtx-vfio.
func gpu() pci.Address    { return address("0000:16:00.0") }
func audio() pci.Address  { return address("0000:16:00.1") }
func shared() pci.Address { return address("0000:38:00.0") } // its group has a network card
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

func machine(t testing.TB, name string) *sim.Machine {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../test/machines", name+".txtar"))
	check.Must(t, err)
	m, err := sim.Parse(text)
	check.Must(t, err)
	return m
}

// node is a node with a machine that reacts, and the plugin's process on it.
type node struct {
	*pcisim.Sim
	t      testing.TB
	dir    string
	tree   *sysfs.Tree
	points *restorepoint.Store
	kinds  step.Kinds
	binder *vfio.Binder
	clock  pcisim.Clock
}

func start(t testing.TB) *node {
	t.Helper()
	s := pcisim.Start(t, machine(t, "2xrtx-vfio"), nil)
	return process(t, s, filepath.Join(t.TempDir(), "points"), thisBoot)
}

// process is a new process of the plugin on the same node.
func process(t testing.TB, s *pcisim.Sim, dir, boot string) *node {
	t.Helper()
	n := &node{Sim: s, t: t, dir: dir, clock: pcisim.NewClock()}
	tree, err := sysfs.Open(s.Root)
	check.Must(t, err)
	writer, err := sysfs.OpenWriter(s.Root)
	check.Must(t, err)
	t.Cleanup(func() { check.Must(t, errors.Join(tree.Close(), writer.Close())) })
	n.tree, n.points = tree, restorepoint.Open(disk.OS{}, dir, boot)
	check.Must(t, n.points.Make())
	n.binder = vfio.New(vfio.Config{Tree: tree, Write: writer, Points: n.points, Clock: n.clock})
	n.kinds = n.binder.Kinds()
	return n
}

func (n *node) plan(function pci.Address, claim string) step.Step {
	n.t.Helper()
	s, err := n.binder.Plan(n.t.Context(), function, claim, nil)
	check.Must(n.t, err)
	return s
}

func (n *node) apply(s step.Step) { n.t.Helper(); check.Must(n.t, n.kinds.Apply(n.t.Context(), s)) }
func (n *node) undo(s step.Step)  { n.t.Helper(); check.Must(n.t, n.kinds.Undo(n.t.Context(), s)) }

// state is driver and override of each function, as text.
func state(t testing.TB, root string) string {
	t.Helper()
	tree, err := sysfs.Open(root)
	check.Must(t, err)
	defer tree.Close()
	names, err := tree.ReadDir(sysfs.PCIDevices)
	check.Must(t, err)
	var lines []string
	for _, name := range names {
		driver, _ := tree.LinkBase(filepath.Join(sysfs.PCIDevice(name), "driver")) // Absent where there is none.
		override, err := tree.ReadString(filepath.Join(sysfs.PCIDevice(name), "driver_override"))
		check.Must(t, err)
		lines = append(lines, fmt.Sprintf("%s %s %s", name, driver, override))
	}
	return strings.Join(lines, "\n")
}

func (n *node) state() string { n.t.Helper(); return state(n.t, n.Root) }

func (n *node) has(function pci.Address, driver, override string) {
	n.t.Helper()
	want := fmt.Sprintf("%s %s %s", function, driver, override)
	if !slices.Contains(strings.Split(n.state(), "\n"), want) {
		n.t.Errorf("the machine is\n%s\nwant %q", n.state(), want)
	}
}

// noPoints wants nothing to be left to restore.
func (n *node) noPoints() {
	n.t.Helper()
	names, err := os.ReadDir(n.dir)
	check.Must(n.t, err)
	if len(names) > 0 {
		n.t.Errorf("left in the directory of restore points: %v", names)
	}
}

// writes are the writes since some number of them, shortened.
func (n *node) writes(since int) []string {
	var out []string
	for _, e := range n.Trace()[since:] {
		name := strings.TrimPrefix(e.Path, "sys/bus/pci/drivers/")
		if strings.HasSuffix(name, "/driver_override") {
			name = filepath.Base(filepath.Dir(name)) + "/driver_override"
		}
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s=%s %s", name, e.Data, e.Errno)))
	}
	return out
}

// TestBind: the GPU and its audio function go to VFIO and come back, each with the driver and override that it had. No write would let
// another driver in between. Elsewhere the audio function stayed without a driver, and the overrides stayed (go-nvlib); and with the audio
// function on VFIO below a GPU on NVIDIA's driver the kernel crashed (NVIDIA/open-gpu-kernel-modules#1365).
func TestBind(t *testing.T) {
	n := start(t)
	n.Set(pcisim.Set{Function: audio().String(), Override: new("snd_hda_intel")})
	before := n.state()
	s := n.plan(gpu(), ours)
	n.apply(s)
	n.has(gpu(), "vfio-pci", "vfio-pci")
	n.has(audio(), "vfio-pci", "vfio-pci")
	want := []string{
		"0000:16:00.0/driver_override=vfio-pci", "nvidia/unbind=0000:16:00.0", "vfio-pci/bind=0000:16:00.0",
		"0000:16:00.1/driver_override=vfio-pci", "snd_hda_intel/unbind=0000:16:00.1", "vfio-pci/bind=0000:16:00.1",
	}
	if diff := cmp.Diff(want, n.writes(0)); diff != "" {
		t.Errorf("writes of Apply (-want +got):\n%s", diff)
	}
	check.Must(t, n.kinds.Verify(t.Context(), s))
	n.apply(s) // twice
	if got := n.writes(len(want)); len(got) > 0 {
		t.Errorf("the second Apply wrote %v", got)
	}
	n.undo(s)
	if diff := cmp.Diff(before, n.state()); diff != "" {
		t.Errorf("after Undo (-before +after):\n%s", diff)
	}
	back := []string{
		"0000:16:00.1/driver_override=snd_hda_intel", "vfio-pci/unbind=0000:16:00.1", "snd_hda_intel/bind=0000:16:00.1",
		"0000:16:00.0/driver_override=nvidia", "vfio-pci/unbind=0000:16:00.0", "nvidia/bind=0000:16:00.0", "0000:16:00.0/driver_override=",
	}
	if diff := cmp.Diff(back, n.writes(len(want))); diff != "" {
		t.Errorf("writes of Undo (-want +got):\n%s", diff)
	}
	n.noPoints()
	n.undo(s) // twice
	if got := n.writes(len(want) + len(back)); len(got) > 0 {
		t.Errorf("the second Undo wrote %v", got)
	}
}

// TestNodes: what a monitor needs, by either interface, has the kernel's numbers of now.
func TestNodes(t *testing.T) {
	n := start(t)
	n.apply(n.plan(gpu(), ours))
	for by, want := range map[vfio.Interface][]string{
		vfio.InterfaceGroup:   {"/dev/vfio/20 511:0", "/dev/vfio/vfio 10:196"},
		vfio.InterfaceIOMMUFD: {"/dev/iommu 10:125", "/dev/vfio/devices/vfio0 511:1"},
	} {
		nodes, err := vfio.Nodes(n.tree, gpu(), by)
		check.Must(t, err)
		var got []string
		for _, node := range nodes {
			got = append(got, fmt.Sprintf("%s %d:%d", node.Path, node.Major, node.Minor))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", by, diff)
		}
	}
	if _, err := vfio.Nodes(n.tree, gpu(), "Both"); err == nil {
		t.Error("an interface that does not exist has nodes")
	}
	if _, err := vfio.Nodes(n.tree, shared(), vfio.InterfaceGroup); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nodes of a function that is not bound: %v", err)
	}
}

// TestRefusals: what is refused, with why, and that nothing is written then.
func TestRefusals(t *testing.T) {
	n := start(t)
	plan := func(function pci.Address, want error, parts ...string) {
		t.Helper()
		_, err := n.binder.Plan(t.Context(), function, ours, nil)
		wants(t, err, want, parts...)
	}
	plan(shared(), vfio.ErrNotViable, "0000:39:00.0 in IOMMU group 21 is bound to igb")
	plan(address("0000:99:00.0"), vfio.ErrGone)
	n.apply(n.plan(gpu(), theirs))
	plan(gpu(), restorepoint.ErrHeld, "another claim")
	plan(audio(), restorepoint.ErrHeld, "another claim") // the sibling of what another claim has
	// The network card is taken from its driver by somebody: its group is viable. Then VFIO has it: it would be given along.
	n.Set(pcisim.Set{Function: "0000:39:00.0", Driver: new("")})
	n.plan(shared(), ours)
	n.Set(pcisim.Set{Function: "0000:39:00.0", Driver: new("vfio-pci")})
	plan(shared(), vfio.ErrNotViable, "would be given along")
	if _, err := os.Stat(filepath.Join(n.dir, "pci.bind_0000:38:00.0.json")); err == nil {
		t.Error("a plan wrote a restore point")
	}
}

// TestCandidates: what an IOMMU isolates, and why some of it cannot be given away. Without an IOMMU there is nothing, and no error: the
// driver elsewhere did not start (nv#1089, and NVIDIA's driver).
func TestCandidates(t *testing.T) {
	for name, want := range map[string][]string{
		"2xrtx-vfio": {
			"0000:16:00.0 20 DMA-FQ [0000:16:00.0 0000:16:00.1] []",
			"0000:38:00.0 21 DMA-FQ [0000:38:00.0 0000:38:00.1] [0000:39:00.0 in IOMMU group 21 is bound to igb]",
		},
		"2xb60-sriov": {
			"0000:4b:00.0 30 DMA-FQ [0000:4b:00.0] []",
			"0000:99:00.0 31 DMA-FQ [0000:99:00.0] [0000:99:00.0 has 2 virtual functions]",
			"0000:99:00.1 32 DMA-FQ [0000:99:00.1] []",
			"0000:99:00.2 33 DMA-FQ [0000:99:00.2] []",
		},
		"8xmi300x": nil,
		"empty":    nil,
	} {
		dir := t.TempDir()
		_, err := machine(t, name).Expand(dir, sim.Options{})
		check.Must(t, err)
		tree, err := sysfs.Open(dir)
		check.Must(t, err)
		functions, err := pci.List(tree)
		check.Must(t, err)
		functions = slices.DeleteFunc(functions, func(f pci.Function) bool { return f.Class>>16 != 0x03 && f.Class>>16 != 0x12 })
		found, err := vfio.Candidates(tree, functions)
		check.Must(t, errors.Join(err, tree.Close()))
		var got []string
		for _, c := range found {
			got = append(got, fmt.Sprintf("%s %d %s %s %s", c.Address, c.Group, c.Type, c.Functions, c.Obstacles))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestNotIsolated: a group that VFIO made of a function without an IOMMU is none.
func TestNotIsolated(t *testing.T) {
	dir := t.TempDir()
	_, err := machine(t, "2xrtx-vfio").Expand(dir, sim.Options{})
	check.Must(t, err)
	check.Must(t, os.WriteFile(filepath.Join(dir, "sys/kernel/iommu_groups/20/name"), []byte("vfio-noiommu\n"), 0o644))
	tree, err := sysfs.Open(dir)
	check.Must(t, err)
	defer tree.Close()
	if g, err := vfio.ReadGroup(tree, gpu()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%+v, %v", g, err)
	}
	_, err = vfio.New(vfio.Config{Tree: tree, Points: restorepoint.Open(disk.OS{}, t.TempDir(), thisBoot)}).Plan(t.Context(), gpu(), ours, nil)
	wants(t, err, vfio.ErrNoIOMMU, "enable the IOMMU")
}

// TestDriverFor: the driver with the closest alias, by the kernel's own name for it. Elsewhere the name was guessed (nv#1268).
func TestDriverFor(t *testing.T) {
	dir := t.TempDir()
	_, err := machine(t, "2xb60-sriov").Expand(dir, sim.Options{})
	check.Must(t, err)
	tree, err := sysfs.Open(dir)
	check.Must(t, err)
	defer tree.Close()
	aliases, err := vfio.ReadAliases(tree)
	check.Must(t, err)
	driver, err := aliases.DriverFor(tree, address("0000:4b:00.0"))
	if driver != "xe-vfio-pci" || err != nil {
		t.Errorf("driver %q, %v", driver, err)
	}
	check.Must(t, os.RemoveAll(filepath.Join(dir, "sys/module/xe_vfio_pci")))
	_, err = aliases.DriverFor(tree, address("0000:4b:00.0"))
	wants(t, err, vfio.ErrNotLoaded, "modprobe xe_vfio_pci")
	for modalias, want := range map[string]string{
		"pci:v000010DEd00002342sv000010DEsd000016EBbc03sc02i00": "nvgrace_gpu_vfio_pci",
		"pci:v000010DEd000026B1sv000010DEsd000016A1bc03sc00i00": "vfio_pci",
		"pci:v00001234d000011E8sv00001AF4sd00001100bc00scFFi00": "vfio_pci",
	} {
		a := vfio.Aliases{
			{Pattern: "v*d*sv*sd*bc*sc*i*", Module: "vfio_pci"}, {Pattern: "v000010DEd00002342sv*sd*bc*sc*i*", Module: "nvgrace_gpu_vfio_pci"},
		}
		if got := a.Module(modalias); got != want {
			t.Errorf("%s: %s, want %s", modalias, got, want)
		}
	}
	if got := vfio.Aliases(nil).Module("pci:v1"); got != "vfio_pci" {
		t.Errorf("without aliases: %s", got)
	}
}

// opens lets a process of the node have a device node open.
func (n *node) opens(pid, name string, major, minor uint32) {
	n.t.Helper()
	dir := filepath.Join(n.Root, "proc", pid)
	check.Must(n.t, os.MkdirAll(filepath.Join(dir, "fd"), 0o755))
	check.Must(n.t, os.MkdirAll(filepath.Join(dir, "ns"), 0o755))
	check.Must(n.t, os.WriteFile(filepath.Join(dir, "comm"), []byte(name+"\n"), 0o644))
	at := filepath.Join(n.t.TempDir(), "node")
	check.Must(n.t, unix.Mknod(at, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor))))
	check.Must(n.t, os.Symlink(at, filepath.Join(dir, "fd", "7")))
}

func (n *node) closes(pid string) {
	n.t.Helper()
	check.Must(n.t, os.RemoveAll(filepath.Join(n.Root, "proc", pid)))
}

// TestInUse: a function that a process has open is not taken from its driver, and not given back while the pod has it. The step names the
// process: nvidia-persistenced was found by hand elsewhere (nv#1037). The record, and what it restores, stay.
func TestInUse(t *testing.T) {
	n := start(t)
	nodes := []sysfs.Number{{Major: 195, Minor: 0}}
	s, err := n.binder.Plan(t.Context(), gpu(), ours, nodes)
	check.Must(t, err)
	n.opens("4711", "nvidia-persiste", 195, 0)
	wants(t, n.kinds.Apply(t.Context(), s), vfio.ErrInUse, "process 4711 (nvidia-persiste)", "c 195:0")
	n.closes("4711")
	n.opens("4712", "pipewire", 116, 0)
	wants(t, n.kinds.Apply(t.Context(), s), vfio.ErrInUse, "0000:16:00.1 is in use by process 4712")
	if got := n.writes(0); len(got) > 0 {
		t.Errorf("written while in use: %v", got)
	}
	n.noPoints()
	n.closes("4712")
	n.opens("4713", "other", 195, 1) // the other GPU
	n.apply(s)
	n.opens("5000", "qemu", 511, 0)
	n.apply(s) // its own pod
	n.has(audio(), "vfio-pci", "vfio-pci")
	wants(t, n.kinds.Undo(t.Context(), s), vfio.ErrInUse, "process 5000 (qemu)")
	n.has(gpu(), "vfio-pci", "vfio-pci")
	n.closes("5000")
	n.undo(s)
	n.has(gpu(), "nvidia", "(null)")
	n.noPoints()
}

// TestPlanOfBoundFunction: a claim whose record was lost, and whose pod was deleted by force, gets the same step again although the
// function is on VFIO already, and its Undo restores what was before. Elsewhere the driver asked NVML for the bound card (nv#1330),
// or took the bound state for the former one.
func TestPlanOfBoundFunction(t *testing.T) {
	n := start(t)
	before := n.state()
	first := n.plan(gpu(), ours)
	n.apply(first)
	again := process(t, n.Sim, n.dir, thisBoot)
	second := again.plan(gpu(), ours)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the second plan differs:\n%s", diff)
	}
	again.apply(second)
	again.undo(second)
	if diff := cmp.Diff(before, n.state()); diff != "" {
		t.Errorf("after Undo (-before +after):\n%s", diff)
	}
}

// TestLeftover: what a lost record left is found and put right by the restore point alone.
func TestLeftover(t *testing.T) {
	n := start(t)
	before := n.state()
	n.apply(n.plan(gpu(), ours))
	again := process(t, n.Sim, n.dir, thisBoot)
	points, err := again.points.List()
	check.Must(t, err)
	if len(points) != 1 || points[0].Claim != ours {
		t.Fatalf("restore points %+v", points)
	}
	again.undo(points[0].Step)
	if diff := cmp.Diff(before, n.state()); diff != "" {
		t.Errorf("after Undo (-before +after):\n%s", diff)
	}
	again.noPoints()
}

// TestPreboundStays: a function that the admin gave to VFIO, or left without a driver, is so afterwards. Elsewhere it was bound to NVIDIA's
// driver, which hung (nv#1089).
func TestPreboundStays(t *testing.T) {
	n := start(t)
	n.Set(pcisim.Set{Function: gpu().String(), Driver: new("vfio-pci"), Override: new("vfio-pci")})
	n.Set(pcisim.Set{Function: audio().String(), Driver: new("")})
	before := n.state()
	s := n.plan(gpu(), ours)
	n.apply(s)
	n.has(audio(), "vfio-pci", "vfio-pci")
	n.undo(s)
	if diff := cmp.Diff(before, n.state()); diff != "" {
		t.Errorf("after Undo (-before +after):\n%s", diff)
	}
}

// TestForeignChanges: what another program did to a function since stays as it is.
func TestForeignChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		set  pcisim.Set
		want string
	}{
		"another override": {pcisim.Set{Override: new("nouveau")}, "0000:16:00.0  nouveau"},
		"no override":      {pcisim.Set{Override: new("")}, "0000:16:00.0 nvidia (null)"},
		"another driver":   {pcisim.Set{Driver: new("nouveau"), Override: new("nouveau")}, "0000:16:00.0 nouveau nouveau"},
		"given back":       {pcisim.Set{Driver: new("nvidia"), Override: new("")}, "0000:16:00.0 nvidia (null)"},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			s := n.plan(gpu(), ours)
			n.apply(s)
			tc.set.Function = gpu().String()
			n.Set(tc.set)
			if name != "another override" && name != "no override" {
				wants(t, n.kinds.Verify(t.Context(), s), vfio.ErrChanged)
			}
			n.undo(s)
			if !slices.Contains(strings.Split(n.state(), "\n"), tc.want) {
				t.Errorf("the machine is\n%s\nwant %q", n.state(), tc.want)
			}
			n.has(audio(), "snd_hda_intel", "(null)")
			n.noPoints()
		})
	}
	n := start(t)
	s := n.plan(gpu(), ours)
	n.Set(pcisim.Set{Function: audio().String(), Override: new("none")})
	wants(t, n.kinds.Apply(t.Context(), s), vfio.ErrChanged, "0000:16:00.1")
	n.undo(s)
	n.has(audio(), "snd_hda_intel", "none")
}

// TestVanished: a function that left the node, before or after the step, is nothing to restore, and its sibling is.
func TestVanished(t *testing.T) {
	n := start(t)
	s := n.plan(gpu(), ours)
	n.apply(s)
	n.Set(pcisim.Set{Function: gpu().String(), Gone: true})
	n.undo(s)
	n.has(audio(), "snd_hda_intel", "(null)")
	n.noPoints()
	wants(t, n.kinds.Apply(t.Context(), s), vfio.ErrGone)
}

// TestReboot: after a reboot there is nothing to restore, and the claim's step is planned anew.
func TestReboot(t *testing.T) {
	host := machine(t, "2xrtx-vfio")
	var m pcisim.Machine
	sim := pcisim.Start(t, host, func(made *pcisim.Machine) { m = *made })
	n := process(t, sim, filepath.Join(t.TempDir(), "points"), thisBoot)
	before := n.state()
	s := n.plan(gpu(), ours)
	n.apply(s)
	check.Must(t, n.tree.Close())
	after := process(t, sim.Reboot(m), n.dir, nextBoot)
	if diff := cmp.Diff(before, after.state()); diff != "" {
		t.Errorf("the machine begins anew (-before +after):\n%s", diff)
	}
	after.undo(s)
	if got := after.writes(0); len(got) > 0 {
		t.Errorf("the Undo of an earlier boot wrote %v", got)
	}
	after.noPoints()
	s = after.plan(gpu(), theirs)
	after.apply(s)
	after.undo(s)
	after.noPoints()
}

// TestBindFails: a driver that refuses a function leaves it without one, and Undo puts that right. Elsewhere such a card stayed without a
// driver until somebody helped (nv#1255).
func TestBindFails(t *testing.T) {
	n := start(t)
	before := n.state()
	s := n.plan(gpu(), ours)
	n.Fault(pcisim.Fault{Path: "vfio-pci/bind", Data: audio().String(), Errno: "EINVAL"})
	wants(t, n.kinds.Apply(t.Context(), s), unix.EINVAL, "bind 0000:16:00.1 to vfio-pci")
	n.has(audio(), "", "vfio-pci")
	n.Fault(pcisim.Fault{Path: "nvidia/bind", Errno: "EIO"})
	wants(t, n.kinds.Undo(t.Context(), s), unix.EIO, "bind 0000:16:00.0 to nvidia")
	n.undo(s) // the next try
	if diff := cmp.Diff(before, n.state()); diff != "" {
		t.Errorf("after Undo (-before +after):\n%s", diff)
	}
	n.noPoints()
}

// TestStuckDriver: a driver that does not let go costs the step its time, not for ever, and is not asked twice at once.
func TestStuckDriver(t *testing.T) {
	for _, lock := range []string{"", "0000:16:00.0/driver_override"} {
		t.Run("lock "+lock, func(t *testing.T) { stuckDriver(t, lock) })
	}
}

// stuckDriver has the driver hold the device's lock, without which the kernel shows no override, or not.
func stuckDriver(t *testing.T, lock string) {
	n := start(t)
	before := n.state()
	s := n.plan(gpu(), ours)
	n.Fault(pcisim.Fault{Path: "nvidia/unbind", Hold: true, Lock: lock})
	t.Cleanup(n.Go)
	tooLate := func(at string, act func(context.Context, step.Step) error) {
		t.Helper()
		err := n.clock.GivesUp(t, vfio.DefaultWait, at, func() error { return act(t.Context(), s) })
		wants(t, err, sysfs.ErrNoAnswer)
	}
	asked := func() bool { return n.Held() == 1 }
	err := n.clock.GivesUpOnce(t, vfio.DefaultWait, asked, func() error { return n.kinds.Apply(t.Context(), s) })
	wants(t, err, sysfs.ErrNoAnswer, "write /sys/bus/pci/drivers/nvidia/unbind")
	if lock == "" {
		tooLate("write /sys/bus/pci/drivers/nvidia/unbind", n.kinds.Apply)
	} else {
		tooLate("read /sys/bus/pci/devices/0000:16:00.0/driver_override", n.kinds.Apply)
		tooLate("read /sys/bus/pci/devices/0000:16:00.0/driver_override", n.kinds.Undo)
		tooLate("read /sys/bus/pci/devices/0000:16:00.0/driver_override", n.kinds.Undo)
	}
	// The node's other GPUs are looked at meanwhile.
	looked := make(chan error, 1)
	go func() {
		_, err := vfio.Candidates(n.tree, []pci.Function{{Address: gpu()}})
		looked <- err
	}()
	check.Eventually(t, "Candidates ends", func() bool { return len(looked) == 1 })
	check.Must(t, <-looked)
	n.Go()
	check.Eventually(t, "the driver lets go", func() bool { return n.Held() == 0 })
	n.apply(s)
	unbinds := 0
	for _, w := range n.writes(0) {
		if strings.HasPrefix(w, "nvidia/unbind") {
			unbinds++
		}
	}
	if unbinds != 1 {
		t.Errorf("the driver was asked %d times: %v", unbinds, n.writes(0))
	}
	n.undo(s)
	if diff := cmp.Diff(before, n.state()); diff != "" {
		t.Errorf("after Undo (-before +after):\n%s", diff)
	}
}

// TestLoad: the driver's module is loaded if the node's plugin may do that.
func TestLoad(t *testing.T) {
	host := machine(t, "2xrtx-vfio")
	host.Entries = slices.DeleteFunc(host.Entries, func(e sim.Entry) bool { return strings.HasPrefix(e.Path, "sys/module/vfio_pci") })
	n := process(t, pcisim.Start(t, host, nil), filepath.Join(t.TempDir(), "points"), thisBoot)
	_, err := n.binder.Plan(t.Context(), gpu(), ours, nil)
	wants(t, err, vfio.ErrNotLoaded)
	var asked []string
	refuses := errors.New("refused")
	b := vfio.New(vfio.Config{Tree: n.tree, Points: n.points, Load: func(_ context.Context, module string) error {
		asked = append(asked, module)
		return refuses
	}})
	_, err = b.Plan(t.Context(), gpu(), ours, nil)
	wants(t, err, refuses)
	if diff := cmp.Diff([]string{"vfio_pci"}, asked); diff != "" {
		t.Error(diff)
	}
}
