// SPDX-License-Identifier: Apache-2.0

package pcisim

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

func TestMain(m *testing.M) { os.Exit(Run(m)) }

func machine(t testing.TB, name string) *sim.Machine {
	t.Helper()
	text, err := os.ReadFile("../machines/" + name + ".txtar")
	check.Must(t, err)
	m, err := sim.Parse(text)
	check.Must(t, err)
	return m
}

// host is the tree of a machine, as the programs under test use it.
type host struct {
	*Sim
	t    testing.TB
	tree *sysfs.Tree
	w    *sysfs.Writer
}

func start(t testing.TB, name string) *host {
	t.Helper()
	h := &host{Sim: Start(t, machine(t, name), nil), t: t}
	var err error
	h.tree, err = sysfs.Open(h.Root)
	check.Must(t, err)
	h.w, err = sysfs.OpenWriter(h.Root)
	check.Must(t, err)
	t.Cleanup(func() { check.Must(t, errors.Join(h.tree.Close(), h.w.Close())) })
	return h
}

func (h *host) write(name, value string, want error) {
	h.t.Helper()
	if err := h.w.WriteAttr("sys/bus/pci/"+name, value); !errors.Is(err, want) || want == nil && err != nil {
		h.t.Errorf("%s of %q: %v, want %v", name, value, err, want)
	}
}

func (h *host) reads(name, want string) {
	h.t.Helper()
	if got, err := h.tree.ReadString("sys/bus/pci/" + name); got != want || err != nil {
		h.t.Errorf("%s is %q, %v, want %q", name, got, err, want)
	}
}

func (h *host) driver(function, want string) {
	h.t.Helper()
	got, err := h.tree.LinkBase("sys/bus/pci/devices/" + function + "/driver")
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if got != want || err != nil {
		h.t.Errorf("%s has the driver %q, %v, want %q", function, got, err, want)
	}
}

// TestDiscovered: discovery finds in a machine that reacts what it finds in its text.
func TestDiscovered(t *testing.T) {
	for _, name := range []string{"2xrtx-vfio", "2xb60-sriov", "2xmi300x-divided", "8xmi300x"} {
		plain := t.TempDir()
		_, err := machine(t, name).Expand(plain, sim.Options{})
		check.Must(t, err)
		tree, err := sysfs.Open(plain)
		check.Must(t, err)
		want := discover.Discover(t.Context(), tree, discover.Options{})
		check.Must(t, tree.Close())
		got := discover.Discover(t.Context(), start(t, name).tree, discover.Options{})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestBinding: what the kernel answers to bind and unbind, in which order whatever comes.
func TestBinding(t *testing.T) {
	h := start(t, "2xrtx-vfio")
	const gpu = "0000:16:00.0"
	h.reads("devices/"+gpu+"/driver_override", "(null)")
	h.write("drivers/vfio-pci/bind", gpu, unix.ENODEV) // it does not match
	h.write("drivers/vfio-pci/unbind", gpu, unix.ENODEV)
	h.write("drivers/nvidia/bind", gpu, unix.EBUSY)
	h.write("drivers/nvidia/bind", "0000:77:00.0", unix.ENODEV)
	h.write("devices/"+gpu+"/driver_override", "vfio-pci\n", nil)
	h.reads("devices/"+gpu+"/driver_override", "vfio-pci")
	h.driver(gpu, "nvidia") // until it is bound anew
	h.write("drivers/nvidia/unbind", gpu+"\n", nil)
	h.driver(gpu, "")
	if h.tree.Exists("sys/class/drm/renderD128") || h.tree.Exists("sys/bus/pci/devices/"+gpu+"/drm") {
		t.Error("the driver's nodes are there without the driver")
	}
	h.write("drivers/nvidia/bind", gpu, unix.ENODEV) // the override
	h.write("drivers_probe", gpu, nil)
	h.driver(gpu, "vfio-pci")
	for _, name := range []string{
		"class/vfio/20/dev", "bus/pci/devices/" + gpu + "/vfio-dev/vfio0/dev", "bus/pci/drivers/vfio-pci/" + gpu + "/vendor",
	} {
		if !h.tree.Exists("sys/" + name) {
			t.Errorf("%s is missing", name)
		}
	}
	if _, _, err := h.tree.Rdev("dev/vfio/20"); err != nil {
		t.Error(err)
	}
	h.write("drivers/vfio-pci/unbind", gpu, nil)
	h.write("devices/"+gpu+"/driver_override", "\n", nil)
	h.reads("devices/"+gpu+"/driver_override", "(null)")
	h.write("drivers_probe", gpu, nil)
	h.driver(gpu, "nvidia")
	if h.tree.Exists("sys/class/vfio/20") || h.tree.Exists("dev/vfio/20") || !h.tree.Exists("sys/class/drm/renderD128/dev") {
		t.Error("the nodes are not those of the driver")
	}
	h.Fault(Fault{Path: "nvidia/unbind", Errno: "EIO"})
	h.write("drivers/nvidia/unbind", gpu, unix.EIO)
	h.driver(gpu, "nvidia")
	if trace := h.Trace(); len(trace) != 12 || trace[11].String() != `sys/bus/pci/drivers/nvidia/unbind "0000:16:00.0" EIO` {
		t.Errorf("%d events: %v", len(trace), trace)
	}
}

// TestVirtualFunctions: what the kernel answers to a number of virtual functions, and what appears.
func TestVirtualFunctions(t *testing.T) {
	h := start(t, "2xb60-sriov")
	const pf = "devices/0000:4b:00.0/"
	h.write(pf+"sriov_numvfs", "many", unix.EINVAL)
	h.write(pf+"sriov_numvfs", "25", unix.ERANGE)
	h.write("devices/0000:99:00.0/sriov_numvfs", "3", unix.EBUSY)
	h.write(pf+"sriov_numvfs", "9\n", nil)
	h.driver("0000:4b:01.1", "xe") // the ninth: eight functions make a device
	if base, err := h.tree.LinkBase("sys/bus/pci/" + pf + "virtfn8"); base != "0000:4b:01.1" || err != nil {
		t.Errorf("virtfn8 is %q, %v", base, err)
	}
	if group, err := h.tree.ReadIOMMUGroup("sys/bus/pci/devices/0000:4b:00.1"); group.Number != 34 || err != nil {
		t.Errorf("IOMMU group %+v, %v, want the next free", group, err)
	}
	for _, name := range []string{"drm/card4/dev", "drm/renderD132/subsystem"} { // two cards and two functions have the numbers before
		if !h.tree.Exists("sys/bus/pci/devices/0000:4b:00.1/" + name) {
			t.Errorf("%s of the first virtual function is missing", name)
		}
	}
	major, minor, err := h.tree.Rdev("dev/dri/renderD132")
	if major != 226 || minor != 132 || err != nil || !h.tree.Exists("sys/class/drm/renderD132/dev") {
		t.Errorf("/dev/dri/renderD132 is %d:%d, %v", major, minor, err)
	}
	h.write("drivers/xe/unbind", "0000:4b:00.1", nil)
	if h.tree.Exists("sys/class/drm/renderD132") {
		t.Error("a virtual function without a driver has a render node")
	}
	h.write(pf+"sriov_numvfs", "0", nil)
	if h.tree.Exists("dev/dri/renderD132") {
		t.Error("the node of a virtual function is left")
	}
	if h.tree.Exists("sys/bus/pci/devices/0000:4b:00.1") || h.tree.Exists("sys/kernel/iommu_groups/34") {
		t.Error("a virtual function is left")
	}
	h.write(pf+"sriov_drivers_autoprobe", "2", unix.EINVAL)
	h.write(pf+"sriov_drivers_autoprobe", "0", nil)
	h.write(pf+"sriov_numvfs", "1", nil)
	h.driver("0000:4b:00.1", "")
	h.write(pf+"sriov_admin/vf1/profile/sched_priority", "urgent", unix.EINVAL)
	h.write(pf+"sriov_admin/vf1/profile/sched_priority", "high", nil)
	h.reads(pf+"sriov_admin/vf1/profile/sched_priority", "low normal [high]")
	h.write("drivers/xe/unbind", "0000:4b:00.0", nil) // takes the virtual functions along
	if h.tree.Exists("sys/bus/pci/devices/0000:4b:00.1") {
		t.Error("a virtual function is left without the physical one's driver")
	}
	h.write(pf+"sriov_numvfs", "1", unix.ENOENT)
}

// TestModes: what amdgpu answers to a mode, and what becomes of the topology.
func TestModes(t *testing.T) {
	h := start(t, "8xmi300x")
	const file = "devices/0000:05:00.0/current_compute_partition"
	nodes := func(want int) {
		t.Helper()
		names, err := h.tree.ReadDir(sysfs.KFDTopology)
		if len(names) != want || err != nil {
			t.Errorf("%d nodes, %v, want %d", len(names), err, want)
		}
	}
	nodes(10)
	h.write(file, "TPX", unix.EINVAL)
	h.Set(Set{Function: "0000:05:00.0", Users: new(1)})
	h.write(file, "CPX", unix.EBUSY)
	h.Set(Set{Function: "0000:05:00.0", Users: new(0)})
	h.write(file, "CPX\n", nil)
	h.reads(file, "CPX")
	nodes(17)
	// The GPU's nodes are at the end of the list now, and its last partition is the last of all.
	properties, err := h.tree.ReadString(sysfs.KFDTopology + "/16/properties")
	if err != nil || !strings.Contains(properties, "drm_render_minor 135") || !strings.Contains(properties, "location_id 1879049472") {
		t.Errorf("%v\n%s", err, properties)
	}
	h.write(file, "SPX", nil)
	nodes(10)
}

// TestSlips: a test that asks for what can never happen is told so.
func TestSlips(t *testing.T) {
	s := newModel(Machine{})
	for _, c := range []Command{
		{Fault: &Fault{Errno: "EIO"}}, {Fault: &Fault{Path: "x", Errno: "ENOSUCH"}}, {Set: &Set{Function: "0000:00:00.0"}},
	} {
		if a := s.obey(c); a.Error == "" {
			t.Errorf("%+v is accepted", c)
		}
	}
	if _, err := FromTree(&sim.Machine{Entries: []sim.Entry{{Kind: sim.Char, Path: filepath.Join("sys", "node")}}}); err == nil {
		t.Error("a device node in sys is accepted")
	}
}
