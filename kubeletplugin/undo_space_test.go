// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/amdmode"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/pkg/computemode"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/pci"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/timeslice"
	"github.com/fettle-dev/fettle/pkg/vfio"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// spaceNode is a node of which the plugin's state and CDI specs are on a disk of their own.
type spaceNode struct {
	*testing.T
	*Plugin
	state, root string
	kinds       step.Kinds
}

func newSpaceNode(t *testing.T) *spaceNode {
	t.Helper()
	dir := t.TempDir()
	n := &spaceNode{T: t, state: filepath.Join(dir, "state"), root: nodefixture.Expand(t, "4xlocalssd")}
	check.Must(t, os.Mkdir(n.state, 0o700), os.MkdirAll(filepath.Join(n.root, "sys/bus/pci/devices"), 0o755))
	check.Mount(t, n.state, check.Tmpfs("size=8m,nr_inodes=300"))
	check.Must(t, unix.Mount("", n.state, "", unix.MS_SHARED, ""))
	var err error
	n.Plugin, err = New(t.Context(), Config{
		Node: nodefixture.Node, Namespace: "fettle-system", HostRoot: n.root, PluginsDir: filepath.Join(dir, "p"),
		RegistryDir: filepath.Join(dir, "r"), CDIRoot: filepath.Join(n.state, "cdi"), StateDir: n.state, HTTPAddress: "127.0.0.1:0",
		NVMLCommand: filepath.Join(dir, "none"),
		File:        nodeconfig.File{HostDevices: nodefixture.LocalSSD()}.WithDefaults(),
	}, Clients{Kube: fake.NewClientset(), Dynamic: noObjects(t), Events: events.NewFakeRecorder(100)}, "boot-1")
	check.Must(t, err)
	t.Cleanup(n.engine.Stop)
	n.scanner.Scan(t.Context())
	n.kinds = step.Kinds{cdi.StepKind: n.specs.Kind(nil)}
	for _, f := range n.features.list() {
		maps.Copy(n.kinds, f.Kinds())
	}
	return n
}

// undoRow is a step kind in the table of what is undone whatever has run out.
type undoRow struct {
	// plan makes the step of a claim.
	plan func(n *spaceNode) (step.Step, error)
	// applied leaves what Apply leaves on the plugin's disk. Nil: Apply itself is called, whatever it returns.
	applied func(n *spaceNode, s step.Step) error
}

const spaceClaim = "u1"

func spaceGPU() pci.Address { return pci.Address{Bus: 0xe1} }

// begun writes a restore point as a step does.
func begun(dir string, shared bool) func(n *spaceNode, s step.Step) error {
	return func(n *spaceNode, s step.Step) (err error) {
		points := restorepoint.Open(disk.OS{}, filepath.Join(n.state, dir), "boot-1")
		if err := points.Make(); err != nil {
			return err
		}
		if !shared {
			_, err = points.Begin(spaceClaim, s)
			return err
		}
		lock, err := points.Lock(n.Context(), s.Kind, s.Target)
		if err == nil {
			err = lock.Close()
		}
		for _, claim := range []string{spaceClaim, "u2"} {
			if err == nil {
				_, err = points.Join(claim, "a setting", s)
			}
		}
		return err
	}
}

// undoRows has every step kind of the engine. The machine has no GPU and no FPGA, and no driver.
func undoRows() map[string]undoRow {
	sum := "sha256:" + strings.Repeat("ab", 32)
	gpu := func(kind string, params any) func(*spaceNode) (step.Step, error) {
		return func(*spaceNode) (step.Step, error) { return step.New(kind, spaceGPU().String(), params) }
	}
	fpga := func(kind string) undoRow {
		return undoRow{plan: func(*spaceNode) (step.Step, error) {
			return step.New(kind, "dfl-region0", map[string]any{"device": "dfl-region0", "claim": map[string]string{"uid": spaceClaim}})
		}}
	}
	instance := &mig.Partition{Device: "nvidia-part", Parent: "GPU-1", PCIAddress: spaceGPU(), ProfileID: 19, Profile: "1g.10gb", Size: 1}
	return map[string]undoRow{
		cdi.StepKind: {plan: func(*spaceNode) (step.Step, error) {
			return cdi.Step(cdi.Spec{File: "fettle.dev-claim-" + spaceClaim + ".json", Content: []byte("{}")})
		}},
		hostdir.StepKind: {plan: func(n *spaceNode) (step.Step, error) {
			return hostdir.Plan(n.root, "/mnt/disks/ssd0", spaceClaim)
		}},
		hostmount.StepKind: {plan: func(n *spaceNode) (step.Step, error) {
			_, s, err := n.mounts.Plan(spaceClaim, "key", hostmount.Mount{Scratch: &hostmount.Scratch{Bytes: 1 << 20}})
			return s, err
		}},
		cachemount.StepKind: {plan: func(*spaceNode) (step.Step, error) {
			tree, err := artifact.ParseDigest(sum)
			return step.Step{
				Kind: cachemount.StepKind, Target: "key",
				Params: fmt.Appendf(nil, `{"tree":%q,"owner":%q,"key":"key","access":"ReadOnly",`+
					`"mounts":[{"source":"a","target":"/b"}]}`, tree, spaceClaim),
			}, err
		}},
		pin.StepKind: {plan: func(*spaceNode) (step.Step, error) {
			return (&pin.Params{Reference: "registry.example/a@" + sum, Digest: sum, Size: 1}).Step(spaceClaim)
		}},
		computemode.StepKind: {
			plan: gpu(computemode.StepKind, computemode.Params{
				Claim: spaceClaim, UUID: "GPU-1", PCIAddress: spaceGPU(), Mode: nvml.ComputeExclusiveProcess,
			}),
			applied: begun("sharing", true),
		},
		timeslice.StepKind: {
			plan:    gpu(timeslice.StepKind, timeslice.Params{Claim: spaceClaim, UUID: "GPU-1", PCIAddress: spaceGPU()}),
			applied: begun("sharing", true),
		},
		mps.StepKind: {plan: func(*spaceNode) (step.Step, error) { return mps.Leftover(spaceClaim) }},
		vfio.StepKind: {
			plan: gpu(vfio.StepKind, vfio.Params{
				Function: spaceGPU(), Claim: spaceClaim, Driver: "vfio-pci", Before: []vfio.Before{{Address: spaceGPU()}},
			}),
			applied: begun("restore-points", false),
		},
		amdmode.StepKind: {plan: gpu(amdmode.StepKind, amdmode.Params{Function: spaceGPU(), Mode: "CPX"})},
		mig.ModeKind:     {plan: gpu(mig.ModeKind, mig.Mode{Parent: "GPU-1", PCIAddress: spaceGPU(), On: true})},
		mig.Kind: {
			plan: func(*spaceNode) (step.Step, error) { return instance.Step() },
			applied: func(n *spaceNode, _ step.Step) error {
				text := `{"version":1,"device":"nvidia-part","parent":"GPU-1","pciAddress":"0000:e1:00.0","profileID":19,` +
					`"profile":"1g.10gb","start":0,"size":1,"bootID":"boot-1"}`
				dir := filepath.Join(n.state, "mig")
				return errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "nvidia-part.json"), []byte(text), 0o600),
					os.WriteFile(filepath.Join(dir, ".lock"), nil, 0o600))
			},
		},
		region.ParamsKind: fpga(region.ParamsKind), region.ScrubKind: fpga(region.ScrubKind), region.ProgramKind: fpga(region.ProgramKind),
	}
}

// fillDisk makes files on a disk until it is full.
func fillDisk(t *testing.T, dir string, content []byte) {
	t.Helper()
	for i := 0; ; i++ {
		err := os.WriteFile(filepath.Join(dir, fmt.Sprint("fill", i)), content, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		check.Must(t, err)
	}
}

// TestUndoNeedsNoSpace: each step that the engine knows is undone while the plugin's disk has no space or inodes, with neither driver nor
// device, whether it was applied or not. While the disk is read-only Undo may fail with that reason, and succeeds afterwards.
func TestUndoNeedsNoSpace(t *testing.T) {
	rows := undoRows()
	known := slices.Sorted(maps.Keys(newSpaceNode(t).kinds))
	if listed := slices.Sorted(maps.Keys(rows)); !slices.Equal(known, listed) {
		t.Fatalf("the engine has the step kinds %v, and the table here %v", known, listed)
	}
	readOnly := func(n *spaceNode, flag uintptr) {
		check.Must(n, unix.Mount("", n.state, "", unix.MS_REMOUNT|flag, ""))
	}
	for trouble, begin := range map[string]func(n *spaceNode){
		"no space":  func(n *spaceNode) { fillDisk(n.T, n.state, make([]byte, 4096)); fillDisk(n.T, n.state, []byte{1}) },
		"no inodes": func(n *spaceNode) { fillDisk(n.T, n.state, nil) },
		"read-only": func(n *spaceNode) { readOnly(n, unix.MS_RDONLY) },
	} {
		for _, kind := range known {
			for _, applied := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/applied=%t", trouble, kind, applied), func(t *testing.T) {
					n := newSpaceNode(t)
					row := rows[kind]
					s, err := row.plan(n)
					check.Must(t, err)
					switch {
					case applied && row.applied != nil:
						check.Must(t, row.applied(n, s))
					case applied:
						t.Log("applied:", n.kinds.Apply(t.Context(), s))
					}
					begin(n)
					err = n.kinds.Undo(t.Context(), s)
					if trouble == "read-only" {
						if err != nil && !errors.Is(err, unix.EROFS) {
							t.Errorf("%v, want that the disk is read-only", err)
						}
						readOnly(n, 0)
						err = n.kinds.Undo(t.Context(), s)
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}
