// SPDX-License-Identifier: Apache-2.0

package timeslice_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/timeslice"
	"github.com/fettle-dev/fettle/pkg/tool"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/nvmlsim/smi"
)

const uuid = "GPU-00000001-0000-4000-8000-000000000000"

// TestMain makes this test's binary play nvidia-smi where it has that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "nvidia-smi" {
		// os.Exit would have the race detector wait a second for reports.
		syscall.Exit(smi.Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// install copies this test's binary, by a link where that is possible.
func install(t *testing.T, to string) {
	t.Helper()
	self, err := os.Executable()
	check.Must(t, err)
	if os.Link(self, to) == nil {
		return
	}
	data, err := os.ReadFile(self)
	check.Must(t, err)
	check.Must(t, os.WriteFile(to, data, 0o755))
}

// node is a machine with one GPU, a driver root with nvidia-smi, a host tree, and the plugin's directory.
type node struct {
	t *testing.T
	nvmlsim.Machine
	// root is the driver root and the host tree.
	root, dir, boot string
	fs              disk.FS
	timeout         time.Duration
	// changes are what the Setter reported.
	changes *[]string
}

func start(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{
		t: t, root: filepath.Join(dir, "root"), dir: filepath.Join(dir, "state", "points"), boot: "boot-1", fs: disk.OS{},
		changes: new([]string),
	}
	check.Must(t, os.MkdirAll(filepath.Join(n.root, "usr/bin"), 0o755))
	check.Must(t, os.Mkdir(filepath.Dir(n.dir), 0o700))
	var err error
	n.Machine, err = nvmlsim.New(nvmlsim.DefaultFile(n.root), "", nvmlsim.H100)
	check.Must(t, err)
	install(t, n.smi())
	n.kernel(nvmlsim.DriverVersion)
	return n
}

// smi is where nvidia-smi is.
func (n *node) smi() string { return filepath.Join(n.root, "usr/bin/nvidia-smi") }

// kernel makes the kernel's driver one of a version, "" for none.
func (n *node) kernel(version string) {
	n.t.Helper()
	file := filepath.Join(n.root, "proc/driver/nvidia/version")
	check.Must(n.t, os.MkdirAll(filepath.Dir(file), 0o755))
	if version == "" {
		check.Must(n.t, os.RemoveAll(filepath.Dir(file)))
		return
	}
	text := "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " + version + "  Release Build\nGCC version:  gcc version 12.2.0\n"
	check.Must(n.t, os.WriteFile(file, []byte(text), 0o600))
}

func (n *node) points() *restorepoint.Store { return restorepoint.Open(n.fs, n.dir, n.boot) }

// process is the setter of a plugin on the node.
func (n *node) process() *timeslice.Setter {
	n.t.Helper()
	tree, err := sysfs.Open(n.root)
	check.Must(n.t, err)
	n.t.Cleanup(func() { _ = tree.Close() })
	return timeslice.New(timeslice.Config{
		Tree: tree, Tools: tools(n.root), Points: n.points(), Timeout: n.timeout,
		Changed: func(_, what string) { *n.changes = append(*n.changes, what) },
	})
}

// tools are those of the simulator, whose state is below its root.
func tools(root string) tool.Root {
	r := timeslice.Tools(root)
	r.Reach = func() *confine.Paths { return nvml.Reach(root, "/", os.TempDir()) }
	return r
}

func params(claim string, interval timeslice.Interval) *timeslice.Params {
	return &timeslice.Params{Claim: claim, UUID: uuid, PCIAddress: pci.Address{Bus: 0x41}, Interval: interval}
}

func stepOf(t testing.TB, claim string, interval timeslice.Interval) step.Step {
	t.Helper()
	s, err := params(claim, interval).Step()
	check.Must(t, err)
	return s
}

func (n *node) apply(claim string, interval timeslice.Interval) error {
	n.t.Helper()
	return n.process().Kinds().Apply(n.t.Context(), stepOf(n.t, claim, interval))
}

func (n *node) verify(claim string, interval timeslice.Interval) error {
	n.t.Helper()
	return n.process().Kinds().Verify(n.t.Context(), stepOf(n.t, claim, interval))
}

func (n *node) undo(claim string, interval timeslice.Interval) error {
	n.t.Helper()
	return n.process().Kinds().Undo(n.t.Context(), stepOf(n.t, claim, interval))
}

// change changes the simulated machine.
func (n *node) change(do func(*nvmlsim.State)) {
	n.t.Helper()
	check.Must(n.t, n.Change(func(s *nvmlsim.State) error {
		do(s)
		return nil
	}))
}

// interval is the card's.
func (n *node) interval() string {
	n.t.Helper()
	s, err := n.Look()
	check.Must(n.t, err)
	return timeslice.Interval(s.Cards[0].TimeSlice).String()
}

// is compares the card's interval and the claims that have a point.
func (n *node) is(want string) {
	n.t.Helper()
	points, err := n.points().List()
	check.Must(n.t, err)
	claims := []string{}
	for _, p := range points {
		claims = append(claims, p.Claims()...)
	}
	text, err := json.Marshal(claims)
	check.Must(n.t, err)
	if got := n.interval() + " " + string(text); got != want {
		n.t.Errorf("%s, want %s", got, want)
	}
}

// says wants an error with some words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want %q", words)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v, want %q in it", err, word)
		}
	}
}
