// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package mig_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/cmd/fettle-nvml/child"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/step"
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
	boot      = "boot-1"
	otherBoot = "boot-2"
)

// node is a machine with the plugin's directory.
type node struct {
	t *testing.T
	nvmlsim.Machine
	root, state string
	boot        string
	fs          disk.FS
}

// start makes a node with cards in MIG mode.
func start(t *testing.T, models ...string) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{t: t, root: filepath.Join(dir, "host"), state: filepath.Join(dir, "state", "mig"), boot: boot, fs: disk.OS{}}
	check.Must(t, os.MkdirAll(filepath.Join(n.root, "proc"), 0o755))
	check.Must(t, os.Mkdir(filepath.Dir(n.state), 0o755))
	const devices = "Character devices:\n195 nvidia\n237 nvidia-caps\n511 nvidia-uvm\n"
	check.Must(t, os.WriteFile(filepath.Join(n.root, "proc/devices"), []byte(devices), 0o644))
	machine, err := nvmlsim.New(filepath.Join(dir, "machine.json"), n.root, models...)
	check.Must(t, err)
	n.Machine = machine
	check.Must(t, n.SwitchOn())
	return n
}

// prober asks the simulated machine.
func (n *node) prober() *nvml.Prober {
	self, err := os.Executable()
	check.Must(n.t, err)
	return nvml.NewProber(nvml.Command{Path: self, LibraryPath: n.File, Timeout: time.Minute, State: []string{os.TempDir()}})
}

// process is a plugin on the node.
func (n *node) process() *mig.Instances {
	return mig.New(mig.Config{FS: n.fs, Dir: n.state, HostRoot: n.root, BootID: n.boot, Library: n.prober()})
}

// small is 1g from memory slice 4 of the first H100, large 3g there, whole all of it.
func small() *mig.Partition { return h100("nvidia-0000-41-00-0-mig-1g-10gb-s4", 19, "1g.10gb", 4, 1) }

func large() *mig.Partition { return h100("nvidia-0000-41-00-0-mig-3g-40gb-s4", 9, "3g.40gb", 4, 4) }

func whole() *mig.Partition { return h100("nvidia-0000-41-00-0-mig-7g-80gb-s0", 0, "7g.80gb", 0, 8) }

func h100(device string, profile uint32, name string, start, size uint32) *mig.Partition {
	return &mig.Partition{
		Device: device, Parent: "GPU-00000001-0000-4000-8000-000000000000", PCIAddress: pci.Address{Bus: 0x41},
		ProfileID: profile, Profile: name, Start: start, Size: size,
	}
}

func (n *node) apply(w *mig.Partition) error  { return n.do(w, step.Kinds.Apply) }
func (n *node) undo(w *mig.Partition) error   { return n.do(w, step.Kinds.Undo) }
func (n *node) verify(w *mig.Partition) error { return n.do(w, step.Kinds.Verify) }

// do does it in a process of its own.
func (n *node) do(w *mig.Partition, do func(step.Kinds, context.Context, step.Step) error) error {
	n.t.Helper()
	s, err := w.Step()
	check.Must(n.t, err)
	return do(n.process().Kinds(), n.t.Context(), s)
}

// instances are those of the first card, as "profile@start", with the number of compute instances if that is not one.
func (n *node) instances() []string {
	n.t.Helper()
	s, err := n.Look()
	check.Must(n.t, err)
	out := []string{}
	for _, one := range s.Cards[0].Instances {
		text := fmt.Sprint(one.Profile) + "@" + fmt.Sprint(one.Start)
		if len(one.Compute) != 1 {
			text += "/" + fmt.Sprint(len(one.Compute))
		}
		out = append(out, text)
	}
	return out
}

// has wants the first card to have these instances, and the directory these files.
func (n *node) has(instances []string, files ...string) {
	n.t.Helper()
	if diff := cmp.Diff(instances, n.instances()); diff != "" {
		n.t.Errorf("instances (-want +got):\n%s", diff)
	}
	entries, err := os.ReadDir(n.state)
	check.Must(n.t, err)
	var got []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			got = append(got, name)
		}
	}
	if diff := cmp.Diff(files, got); diff != "" {
		n.t.Errorf("files (-want +got):\n%s", diff)
	}
}

func (n *node) uuid(w *mig.Partition) string {
	n.t.Helper()
	held, err := n.process().Held()
	check.Must(n.t, err)
	for _, h := range held {
		if h.Device == w.Device && h.Made != nil {
			return h.Made.UUID
		}
	}
	n.t.Fatalf("%s was not made: %+v", w, held)
	return ""
}

// wants an error that says all of these.
func wants(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		check.WantErr(t, err, nil, part)
	}
}
