// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/sriov"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/vfio"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/stepcrash"
)

const (
	claimUID = "1e7d5f5a-3c1f-4b62-8d6b-0d5a0f0e7c11"
	thisBoot = "this boot"
	// stepWait is short: tests wait for it to pass.
	stepWait = 5 * time.Second
)

func bindKinds(tree *sysfs.Tree, w sysfs.AttrWriter, points *restorepoint.Store) step.Kinds {
	return vfio.New(vfio.Config{Tree: tree, Write: w, Points: points, Wait: stepWait}).Kinds()
}

func vfsKinds(tree *sysfs.Tree, w sysfs.AttrWriter, points *restorepoint.Store) step.Kinds {
	return sriov.New(sriov.Config{Tree: tree, Write: w, Points: points, Wait: stepWait}).Kinds()
}

// The processes that are killed.
func TestChildBind(t *testing.T) { stepcrash.Child(t, bindKinds) }
func TestChildVFs(t *testing.T)  { stepcrash.Child(t, vfsKinds) }

// plugin is what a process of the plugin has of the two steps.
type plugin struct {
	machine
	dir    string
	points *restorepoint.Store
	binder *vfio.Binder
	maker  *sriov.Maker
}

func newPlugin(t *testing.T) plugin {
	t.Helper()
	m := onMachine(t)
	if out, err := exec.Command("modprobe", "vfio-pci").CombinedOutput(); err != nil {
		t.Fatalf("modprobe vfio-pci: %v: %s", err, out)
	}
	p := plugin{machine: m, dir: t.TempDir()}
	p.points = restorepoint.Open(disk.OS{}, p.dir, thisBoot)
	p.binder = vfio.New(vfio.Config{Tree: m.tree, Write: m.write, Points: p.points, Wait: stepWait})
	p.maker = sriov.New(sriov.Config{Tree: m.tree, Write: m.write, Points: p.points, Wait: stepWait})
	return p
}

func (p plugin) address(text string) pci.Address {
	p.Helper()
	address, err := pci.Parse(text)
	check.Must(p, err)
	return address
}

func (p plugin) planBind(address string) step.Step {
	p.Helper()
	s, err := p.binder.Plan(p.Context(), p.address(address), claimUID, nil)
	check.Must(p, err)
	return s
}

func (p plugin) planVFs(address string, n int) step.Step {
	p.Helper()
	s, err := p.maker.Plan(p.Context(), p.address(address), claimUID, n, sriov.Options{Autoprobe: new(bool)})
	check.Must(p, err)
	return s
}

// state is what the steps may change of a function.
func (p plugin) state(address string) string {
	p.Helper()
	lines := []string{"driver " + p.driver(address), "override " + p.override(address), fmt.Sprint("node ", exists(node(p.group(address))))}
	for _, name := range []string{"sriov_numvfs", "sriov_drivers_autoprobe"} {
		if text, err := p.tree.ReadString(path.Join(sysfs.PCIDevice(address), name)); err == nil {
			lines = append(lines, name+" "+text)
		}
	}
	return strings.Join(lines, "\n")
}

// TestBindCrashPoints kills the process at every write of the bind and of its Undo, and at every operation on its restore point. Each time
// the device has its driver and its override again.
func TestBindCrashPoints(t *testing.T) {
	for _, tt := range []struct {
		name     string
		device   [2]uint64
		override string
		want     int
	}{
		// The override and the bind; the unbind and the override; the restore point is made with 6 operations and removed with 2.
		{name: "without a driver", device: edu, want: 2 + 2 + 6 + 2},
		// The override need not be written, and is not restored.
		{name: "with an override", device: edu, override: "pci-stub", want: 2 + 2 + 6 + 2},
		// The driver is taken away before, and is bound again with its name in the override.
		{name: "with a driver", device: nvme, want: 3 + 4 + 6 + 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlugin(t)
			address := p.device(tt.device)
			if tt.device == nvme {
				p.await("the driver of "+address, func() bool { return p.driver(address) != "" })
			}
			if tt.override != "" {
				attribute := path.Join("devices", address, "driver_override")
				p.set(attribute, tt.override)
				t.Cleanup(func() { p.set(attribute, "\n") })
			}
			points, kills := stepcrash.Case{
				Child: "TestChildBind", Kinds: bindKinds, Root: "/", Dir: p.dir, Boot: thisBoot,
				Plan: func() step.Step { return p.planBind(address) }, State: func() string { return p.state(address) },
			}.Every(t)
			t.Logf("%d points, %d kills", points, kills)
			if points != tt.want {
				t.Errorf("%d points, want %d: say here what a change adds", points, tt.want)
			}
		})
	}
}

// TestVFsCrashPoints does the same with virtual functions.
func TestVFsCrashPoints(t *testing.T) {
	p := newPlugin(t)
	address := p.device(nvme)
	p.await("the driver of "+address, func() bool { return p.driver(address) != "" })
	points, kills := stepcrash.Case{
		Child: "TestChildVFs", Kinds: vfsKinds, Root: "/", Dir: p.dir, Boot: thisBoot,
		Plan: func() step.Step { return p.planVFs(address, 2) }, State: func() string { return p.state(address) },
	}.Every(t)
	t.Logf("%d points, %d kills", points, kills)
	// Whether drivers are bound, the number; the same back; the restore point.
	if want := 2 + 2 + 6 + 2; points != want {
		t.Errorf("%d points, want %d: say here what a change adds", points, want)
	}
}

// TestVirtualFunctionForClaim makes virtual functions, gives one to a container and takes all back. While somebody has its node open,
// neither is it unbound nor are the functions removed.
func TestVirtualFunctionForClaim(t *testing.T) {
	p := newPlugin(t)
	physical := p.device(nvme)
	p.await("the driver of "+physical, func() bool { return p.driver(physical) != "" })
	before := p.state(physical)
	vfs, binds := p.maker.Kinds(), p.binder.Kinds()
	make := p.planVFs(physical, 2)
	check.Must(t, vfs.Apply(t.Context(), make))
	functions, err := sriov.VirtualFunctions(p.tree, p.address(physical))
	check.Must(t, err)
	if len(functions) != 2 {
		t.Fatalf("the virtual functions are %v, want two", functions)
	}
	function := functions[1].String()
	bind := p.planBind(function)
	check.Must(t, binds.Apply(t.Context(), bind))
	nodes, err := vfio.Nodes(p.tree, functions[1], vfio.InterfaceGroup)
	check.Must(t, err)
	p.await("the nodes", func() bool { return exists(nodes[0].Path) })
	// Debian builds its kernels without iommufd; others need not.
	if _, err := vfio.Nodes(p.tree, functions[1], vfio.InterfaceIOMMUFD); errors.Is(err, fs.ErrNotExist) == exists("/dev/iommu") {
		t.Errorf("/dev/iommu is there: %t; the nodes of iommufd: %v", exists("/dev/iommu"), err)
	}
	held, err := os.OpenFile(nodes[0].Path, os.O_RDWR, 0)
	check.Must(t, err)
	if err := binds.Undo(t.Context(), bind); !errors.Is(err, vfio.ErrInUse) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("a function whose node is open was taken back: %v", err)
	}
	if err := vfs.Undo(t.Context(), make); !errors.Is(err, sriov.ErrInUse) {
		t.Errorf("virtual functions of which one is in use were removed: %v", err)
	}
	if got := p.driver(function); got != "vfio-pci" {
		t.Errorf("the function has the driver %q", got)
	}
	check.Must(t, held.Close())
	check.Must(t, binds.Undo(t.Context(), bind))
	check.Must(t, vfs.Undo(t.Context(), make))
	if after := p.state(physical); after != before {
		t.Errorf("the physical function was\n%s\nand is\n%s", before, after)
	}
}
