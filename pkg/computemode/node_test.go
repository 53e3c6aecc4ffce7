// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package computemode_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/cmd/fettle-nvml/child"
	"github.com/fettle-dev/fettle/pkg/computemode"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/nvmlsim/library"
)

// TestMain makes this test binary play fettle-nvml on a simulated machine, whose file is the library's.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-library" {
		// os.Exit would have the race detector wait a second for reports.
		syscall.Exit(child.Run(os.Args[1:], os.Stdout, os.Stderr, library.Open))
	}
	os.Exit(m.Run())
}

const (
	exclusive = nvml.ComputeExclusiveProcess
	usual     = nvml.ComputeDefault
	uuid      = "GPU-00000001-0000-4000-8000-000000000000"
)

func address() pci.Address { return pci.Address{Bus: 0x41} }

// node is a machine with one GPU and the plugin's directory.
type node struct {
	t *testing.T
	nvmlsim.Machine
	// root is the host tree.
	root, dir, boot string
	fs              disk.FS
	// changes are what the Setter reported.
	changes *[]string
}

func start(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	machine, err := nvmlsim.New(filepath.Join(dir, "machine.json"), "", nvmlsim.H100)
	check.Must(t, err)
	check.Must(t, os.Mkdir(filepath.Join(dir, "state"), 0o700))
	n := &node{
		t: t, Machine: machine, root: filepath.Join(dir, "host"), dir: filepath.Join(dir, "state", "points"), boot: "boot-1",
		fs: disk.OS{}, changes: new([]string),
	}
	n.driver("nvidia")
	return n
}

// driver makes a driver the one that has the GPU, "" for none.
func (n *node) driver(name string) {
	n.t.Helper()
	link := filepath.Join(n.root, sysfs.PCIDevice(address().String()), "driver")
	check.Must(n.t, os.RemoveAll(link), os.MkdirAll(filepath.Dir(link), 0o755))
	if name != "" {
		check.Must(n.t, os.Symlink("../../drivers/"+name, link))
	}
}

func prober(file string) *nvml.Prober {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return nvml.NewProber(nvml.Command{Path: self, LibraryPath: file, Timeout: time.Minute, State: []string{os.TempDir()}})
}

func (n *node) points() *restorepoint.Store { return restorepoint.Open(n.fs, n.dir, n.boot) }

// process is the setter of a plugin on the node.
func (n *node) process() *computemode.Setter {
	n.t.Helper()
	tree, err := sysfs.Open(n.root)
	check.Must(n.t, err)
	n.t.Cleanup(func() { _ = tree.Close() })
	return computemode.New(computemode.Config{
		Library: prober(n.File), Tree: tree, Points: n.points(), Changed: func(_, what string) { *n.changes = append(*n.changes, what) },
	})
}

func params(claim string, mode nvml.ComputeMode) *computemode.Params {
	return &computemode.Params{Claim: claim, UUID: uuid, PCIAddress: address(), Mode: mode}
}

func stepOf(t testing.TB, claim string, mode nvml.ComputeMode) step.Step {
	t.Helper()
	s, err := params(claim, mode).Step()
	check.Must(t, err)
	return s
}

func (n *node) apply(claim string, mode nvml.ComputeMode) error {
	n.t.Helper()
	return n.process().Kinds().Apply(n.t.Context(), stepOf(n.t, claim, mode))
}

func (n *node) verify(claim string, mode nvml.ComputeMode) error {
	n.t.Helper()
	return n.process().Kinds().Verify(n.t.Context(), stepOf(n.t, claim, mode))
}

func (n *node) undo(claim string, mode nvml.ComputeMode) error {
	n.t.Helper()
	return n.process().Kinds().Undo(n.t.Context(), stepOf(n.t, claim, mode))
}

// set sets the mode as another program does.
func (n *node) set(mode nvml.ComputeMode) {
	n.t.Helper()
	check.Must(n.t, n.Change(func(s *nvmlsim.State) error {
		if ret := s.Cards[0].SetComputeMode(mode.Number()); ret != nvmlsim.Success {
			return fmt.Errorf("set %s: %s", mode, ret)
		}
		return nil
	}))
}

// state is the mode of the card, and the claims that have a point.
func (n *node) state() string {
	n.t.Helper()
	s, err := n.Look()
	check.Must(n.t, err)
	points, err := n.points().List()
	check.Must(n.t, err)
	claims := []string{}
	for _, p := range points {
		claims = append(claims, p.Claims()...)
	}
	text, err := json.Marshal(claims)
	check.Must(n.t, err)
	return string(nvml.ComputeModes()[s.Cards[0].ComputeMode]) + " " + string(text)
}

func (n *node) is(want string) {
	n.t.Helper()
	if got := n.state(); got != want {
		n.t.Errorf("%s, want %s", got, want)
	}
}
