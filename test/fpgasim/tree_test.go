// SPDX-License-Identifier: Apache-2.0

package fpgasim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

// four is test/machines/4xfpga with character devices that can be opened, expanded below a directory.
func four(t *testing.T) (*sim.Machine, string) {
	t.Helper()
	Need(t)
	text, err := os.ReadFile("../machines/4xfpga.txtar")
	check.Must(t, err)
	host, err := sim.Parse(text)
	check.Must(t, err)
	host, err = host.Openable()
	check.Must(t, err)
	root := t.TempDir()
	_, err = host.Expand(root, sim.Options{})
	check.Must(t, err)
	return host, root
}

// serveFour mounts the reacting sys over that of the tree.
func serveFour(t *testing.T) (s *Sim, root string) {
	t.Helper()
	host, root := four(t)
	m, err := FromTree(host)
	check.Must(t, err)
	m.Dev = filepath.Join(root, "dev")
	return StartAt(t, m, filepath.Join(root, "sys")), root
}

func inventory(t *testing.T, root string) discover.Inventory {
	t.Helper()
	tree, err := sysfs.Open(root)
	check.Must(t, err)
	defer tree.Close()
	return discover.Discover(t.Context(), tree, discover.Options{})
}

func names(inv discover.Inventory) []string {
	out := []string{}
	for _, d := range inv.Devices {
		out = append(out, d.Name)
	}
	return out
}

// TestDiscovered: discovery finds in the machine that reacts what it finds in the text that it is made of.
func TestDiscovered(t *testing.T) {
	_, plain := four(t)
	_, root := serveFour(t)
	want, got := inventory(t, plain), inventory(t, root)
	if diff := cmp.Diff(want, got); diff != "" || len(got.Devices) != 5 || len(got.Problems) > 0 {
		t.Errorf("%d devices, %v (-want +got):\n%s", len(got.Devices), got.Problems, diff)
	}
}

// TestProgramDiscovered: every port of the tree can be programmed through the plain nodes that are beside the character devices, but for
// the one that a virtual function has.
func TestProgramDiscovered(t *testing.T) {
	const nlb3 = "f7df405cbd7acf7222f144b0b93acd18"
	s, root := serveFour(t)
	host, err := dfl.Open(root, dfl.Options{PlainNodes: true, Nodes: SysNodes})
	check.Must(t, err)
	defer func() { check.Must(t, host.Close()) }()
	for card, c := range s.Cards {
		for number, p := range c.Ports {
			at := s.Place(card, number)
			port := dfl.Port{
				Name: at.Name, Node: "dev/" + at.Name, FMENode: "dev/" + filepath.Base(c.Directory), ID: at.ID, Attributes: at.Attributes,
				Region: at.Region, Manager: at.Manager, LockFile: filepath.Join(t.TempDir(), "lock"),
			}
			lease, err := host.Acquire(t.Context(), port, p.Interface)
			check.Must(t, err)
			err = lease.SetParams(t.Context(), []dfl.Param{{Name: dfl.ParamClock, Value: 200_000}})
			if arria := card == 1; arria != (err == nil) || !arria && !errors.Is(err, backend.ErrNoParam) {
				t.Errorf("the clock of %s: %v", at.Name, err)
			}
			raw := Image(p.Interface, nlb3, 100)
			image, err := backend.Seal(reader(raw), int64(len(raw)), digest(raw))
			check.Must(t, err)
			_, err = lease.Program(t.Context(), dfl.Load{Image: image, AFU: nlb3})
			if p.Virtual != errors.Is(err, unix.ENODEV) || !p.Virtual && err != nil {
				t.Errorf("%s, virtual %t: %v", at.Name, p.Virtual, err)
			}
			check.Must(t, errors.Join(image.Close(), lease.Release()))
		}
	}
	for _, d := range inventory(t, root).Devices {
		if id := *d.Attributes["afuID"].StringValue; id != nlb3 {
			t.Errorf("%s is discovered with %s", d.Name, id)
		}
	}
}

// characterDevice is the number of a port's real node, which must be that of its attribute.
func characterDevice(t *testing.T, root string, at Place) string {
	t.Helper()
	tree, err := sysfs.Open(root)
	check.Must(t, err)
	defer tree.Close()
	major, minor, err := tree.Rdev("dev/" + at.Name)
	check.Must(t, err)
	text, err := tree.ReadString(at.Attributes + "/dev")
	check.Must(t, err)
	if number := fmt.Sprintf("%d:%d", major, minor); number != text {
		t.Errorf("%s has the number %s, its attribute says %s", at.Name, number, text)
	}
	return text
}

// TestVirtualFunctions: ports that are released are nowhere until there are virtual functions for all of them, and come back.
func TestVirtualFunctions(t *testing.T) {
	s, root := serveFour(t)
	host, err := dfl.Open(root, dfl.Options{PlainNodes: true, Nodes: SysNodes})
	check.Must(t, err)
	defer func() { check.Must(t, host.Close()) }()
	const function = "sys/devices/pci0000:3a/0000:3a:02.0/0000:3d:00.0"
	numVFs := func(value string, want error) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(root, function, "sriov_numvfs"), os.O_WRONLY, 0)
		check.Must(t, err)
		_, err = f.WriteString(value)
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("sriov_numvfs %q: %v, want %v", value, err, want)
		}
		check.Must(t, f.Close())
	}
	found := func(want ...string) {
		t.Helper()
		inv := inventory(t, root)
		rest := []string{"intel-0000-3b-00-0-port0", "intel-0000-5e-00-1-port0", "intel-0000-60-00-1-port0"}
		if diff := cmp.Diff(append(append([]string{rest[0]}, want...), rest[1:]...), names(inv)); diff != "" {
			t.Errorf("problems %v, -want +got:\n%s", inv.Problems, diff)
		}
	}
	var ports []dfl.Port
	for number := range 2 {
		at := s.Place(1, number)
		ports = append(ports, dfl.Port{Name: at.Name, Node: at.Node, FMENode: at.FMENode, ID: at.ID, LockFile: filepath.Join(t.TempDir(), "l")})
	}
	own := []string{"intel-0000-3d-00-0-port0", "intel-0000-3d-00-0-port1"}
	found(own...)
	numVFs("2\n", unix.EINVAL)
	numVFs("3", unix.ERANGE)
	numVFs("two", unix.EINVAL)
	check.Must(t, host.ReleasePort(t.Context(), ports[0]))
	found(own[1])
	check.Must(t, host.ReleasePort(t.Context(), ports[1]))
	found()
	numVFs("1", unix.EINVAL)
	numVFs("2", nil)
	found("intel-0000-3d-00-1-port0", "intel-0000-3d-00-2-port1")
	numVFs("1", unix.EBUSY)
	if err := host.AssignPort(t.Context(), ports[0]); !errors.Is(err, unix.EBUSY) {
		t.Errorf("assigned while virtual functions have it: %v", err)
	}
	f, err := os.OpenFile(filepath.Join(root, s.Virtual(1, 1).Node), os.O_RDWR|unix.O_EXCL, 0)
	check.Must(t, err)
	check.Must(t, f.Close())
	same := characterDevice(t, root, s.Virtual(1, 1))
	if before := s.Cards[1].Ports[1].Dev; same != before {
		t.Errorf("the virtual function's port has the number %s, want %s", same, before)
	}
	numVFs("0", nil)
	found()
	if _, err := os.Lstat(filepath.Join(root, "dev", s.Virtual(1, 1).Name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the node of a virtual function that is gone: %v", err)
	}
	check.Must(t, host.AssignPort(t.Context(), ports[1]))
	check.Must(t, host.AssignPort(t.Context(), ports[0]))
	found(own...)
}

// TestVirtualFunctionAlone: a virtual function whose physical one is not in this machine, as in a virtual machine, has a port that nobody
// here can check or program. It is not offered and says why, the other cards are as they were, and nothing is opened, asked or written:
// neither to find out nor for a claim that has it from before.
func TestVirtualFunctionAlone(t *testing.T) {
	const alone = 2
	s, root := serveFour(t)
	host, err := dfl.Open(root, dfl.Options{PlainNodes: true, Nodes: SysNodes})
	check.Must(t, err)
	defer func() { check.Must(t, host.Close()) }()
	before := names(inventory(t, root))
	s.Set(Set{Card: alone, Detached: true})
	inv := inventory(t, root)
	want := slices.DeleteFunc(before, func(name string) bool { return name == "intel-0000-5e-00-1-port0" })
	if diff := cmp.Diff(want, names(inv)); diff != "" || len(want) != 4 {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(inv.Problems) != 1 || inv.Problems[0].Subject != "0000:5e:00.1" || inv.Problems[0].Reason != discover.ReasonManagerMissing {
		t.Errorf("problems %v, want one: 0000:5e:00.1 has no engine", inv.Problems)
	}
	at := s.Virtual(alone, 0)
	lease, err := host.Acquire(t.Context(), dfl.Port{
		Name: at.Name, Node: at.Node, FMENode: at.FMENode, ID: at.ID, Attributes: at.Attributes, Region: at.Region, Manager: at.Manager,
		LockFile: filepath.Join(t.TempDir(), "lock"),
	}, s.Cards[alone].Ports[0].Interface)
	if !errors.Is(err, os.ErrNotExist) || lease != nil {
		t.Errorf("got a lease %v and %v, want that there is no engine", lease, err)
	}
	for _, e := range s.Trace() {
		if e.Op != "read" {
			t.Errorf("more than read: %s", e)
		}
	}
}

// TestTreeRefused: a tree that cannot react as a whole is not served in part.
func TestTreeRefused(t *testing.T) {
	for _, text := range []string{
		"-- sys/devices/f.0/fpga_region/region0/dfl-fme.0/dev --\n244:0\n",
		"unreadable sys/x\n",
	} {
		host, err := sim.Parse([]byte(text))
		check.Must(t, err)
		if m, err := FromTree(host); err == nil {
			t.Errorf("%q was accepted: %+v", text, m)
		}
	}
}
