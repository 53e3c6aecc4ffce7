// SPDX-License-Identifier: Apache-2.0

package timeslice_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/restorepoint"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/pkg/timeslice"
	"github.com/fettle-dev/fettle/pkg/tool"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/nvmlsim/smi"
)

// TestShared: claims have an interval together, in either order of their ends, and the default is set after the last. Each call may be made
// twice.
func TestShared(t *testing.T) {
	for name, ends := range map[string][]string{"the first ends first": {"a", "b"}, "the first ends last": {"b", "a"}} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			for _, claim := range []string{"a", "a", "b", "b"} {
				check.Must(t, n.apply(claim, timeslice.Long))
				check.Must(t, n.verify(claim, timeslice.Long))
			}
			n.is(`Long ["a","b"]`)
			for range 2 {
				check.Must(t, n.undo(ends[0], timeslice.Long))
				n.is(`Long ["` + ends[1] + `"]`)
			}
			for range 2 {
				check.Must(t, n.undo(ends[1], timeslice.Long))
				n.is("Default []")
			}
		})
	}
}

// TestArguments: the tool gets these arguments and no other, for each interval.
func TestArguments(t *testing.T) {
	n := start(t)
	want := []string{}
	for _, interval := range []timeslice.Interval{timeslice.Short, timeslice.Medium, timeslice.Default} {
		check.Must(t, n.apply("a", interval))
		n.is(interval.String() + ` ["a"]`)
		check.Must(t, n.undo("a", interval))
		want = append(want, smi.SetTimeslice+" "+uuid+" --set-timeslice "+map[timeslice.Interval]string{
			timeslice.Short: "1", timeslice.Medium: "2", timeslice.Default: "0",
		}[interval], smi.SetTimeslice+" "+uuid+" --set-timeslice 0")
	}
	s, err := n.Look()
	check.Must(t, err)
	if diff := cmp.Diff(want, s.Changes); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestDisagrees: a claim with another interval is refused with both, before the tool runs, and its rollback changes nothing.
func TestDisagrees(t *testing.T) {
	n := start(t)
	check.Must(t, n.apply("a", timeslice.Short))
	check.Must(t, n.Script())
	for _, err := range []error{n.process().Check(params("b", timeslice.Long)), n.apply("b", timeslice.Long)} {
		says(t, err, "have time slice Short, and this claim wants time slice Long")
		if !errors.Is(err, restorepoint.ErrDisagrees) {
			t.Errorf("%v", err)
		}
	}
	check.Must(t, n.undo("b", timeslice.Long))
	n.is(`Short ["a"]`)
	if s, err := n.Look(); err != nil || s.Total > 0 {
		t.Errorf("the tool ran %d times, %v", s.Total, err)
	}
	check.Must(t, n.process().Check(params("b", timeslice.Short)))
}

// TestRefusedPlans: an instance, a name that is no GPU's, and a fifth interval are refused before anything is done.
func TestRefusedPlans(t *testing.T) {
	for _, p := range []timeslice.Params{
		{UUID: "MIG-1", Interval: timeslice.Short},
		{UUID: "0", Interval: timeslice.Short},
		{UUID: "", Interval: timeslice.Short},
		{UUID: uuid, Interval: 4},
		{UUID: uuid, Interval: -1},
	} {
		if _, err := p.Step(); err == nil || (p.UUID == "MIG-1") != errors.Is(err, timeslice.ErrMIG) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	// What a record says is checked like a plan.
	n := start(t)
	good := stepOf(t, "a", timeslice.Short)
	good.Params = []byte(`{"claim":"a","uuid":"--help","pciAddress":"0000:41:00.0","interval":1}`)
	says(t, n.process().Kinds().Apply(t.Context(), good), `"--help"`)
	n.is("Default []")
}

// TestRefused: what hinders the tool is named with what helps. Nothing was set then, and the rollback needs no tool.
func TestRefused(t *testing.T) {
	refuse := func(function string, ret nvmlsim.Return) func(*node) {
		return func(n *node) {
			check.Must(n.t, n.Script(nvmlsim.Fault{Function: function, Do: nvmlsim.Fail, Return: ret}))
		}
	}
	for name, tc := range map[string]struct {
		make  func(n *node)
		want  error
		words []string
	}{
		"unsupported": {
			make: refuse(smi.SetTimeslice, nvmlsim.NotSupported), want: timeslice.ErrUnsupported,
			words: []string{"Failed to set timeslice policy with value Long for GPU 0 : Not Supported", "exit status 3"},
		},
		"forbidden": {
			make: refuse(smi.SetTimeslice, nvmlsim.NoPermission), want: timeslice.ErrForbidden, words: []string{"Insufficient Permissions"},
		},
		"any other":   {make: refuse(smi.SetTimeslice, nvmlsim.Unknown), words: []string{"exit status 255", "Unknown Error"}},
		"exit 1":      {make: refuse(smi.Version, 1), words: []string{"exit status 1"}},
		"in MIG mode": {make: func(n *node) { n.change(func(s *nvmlsim.State) { s.Cards[0].MIG = true }) }, want: timeslice.ErrUnsupported},
		"no such GPU": {make: func(n *node) { n.change(func(s *nvmlsim.State) { s.Cards[0].UUID = "GPU-2" }) }, want: timeslice.ErrGone},
		"off the bus": {make: func(n *node) { n.change(func(s *nvmlsim.State) { s.Cards[0].Lost = true }) }, want: timeslice.ErrGone},
		"no tool": {
			make: func(n *node) { check.Must(n.t, os.Remove(n.smi())) }, want: tool.ErrNotInstalled, words: []string{"user-space driver"},
		},
		"no driver":     {make: func(n *node) { n.kernel("") }, words: []string{"driver is not loaded"}},
		"no version":    {make: func(n *node) { n.kernel("unknown") }, words: []string{"no version"}},
		"too old":       {make: func(n *node) { n.kernel("450.80.02") }, want: timeslice.ErrTooOld, words: []string{"450.80.02, want 455"}},
		"other version": {make: func(n *node) { n.kernel("590.48.01") }, want: timeslice.ErrVersion, words: []string{"580.95.05", "590.48.01"}},
		"the tool's other version": {
			make: func(n *node) { n.change(func(s *nvmlsim.State) { s.ToolVersion = "470.82.01" }) },
			want: timeslice.ErrVersion, words: []string{"470.82.01"},
		},
		"no version in what it prints": {
			make: func(n *node) { n.change(func(s *nvmlsim.State) { s.ToolVersion = "unknown" }) },
			want: timeslice.ErrVersion, words: []string{"does not say its version"},
		},
		"a script": {
			make: func(n *node) {
				check.Must(n.t, errors.Join(os.Remove(n.smi()), os.WriteFile(n.smi(), []byte("#!/bin/sh\n"), 0o755)))
			},
			words: []string{"ELF"},
		},
		"it is killed": {
			make:  func(n *node) { check.Must(n.t, n.Script(nvmlsim.Fault{Function: smi.Version, Do: nvmlsim.Kill})) },
			words: []string{"signal: killed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			tc.make(n)
			err := n.apply("a", timeslice.Long)
			says(t, err, append(tc.words, "GPU 0000:41:00.0: set its time slice Long")...)
			if tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
			check.Must(t, errors.Join(n.undo("a", timeslice.Long), n.undo("a", timeslice.Long)))
			n.is("Default []")
		})
	}
}

// TestRefusedBesideOthers: a claim that the tool refuses does not take what others have.
func TestRefusedBesideOthers(t *testing.T) {
	n := start(t)
	check.Must(t, n.apply("a", timeslice.Long))
	check.Must(t, n.Script(nvmlsim.Fault{Function: smi.SetTimeslice, Do: nvmlsim.Fail, Return: nvmlsim.Unknown}))
	says(t, n.apply("b", timeslice.Long), "exit status 255")
	says(t, n.apply("a", timeslice.Long), "exit status 255") // it may have set it before, so it keeps its point
	check.Must(t, n.undo("b", timeslice.Long))
	n.is(`Long ["a"]`)
	says(t, n.undo("a", timeslice.Long), "set its time slice Default", "exit status 255")
	n.is(`Long ["a"]`)
	check.Must(t, n.Script())
	check.Must(t, n.undo("a", timeslice.Long))
	n.is("Default []")
}

// TestHangs: a tool that does not answer is killed in time. The claim keeps its point, for the interval may be set, and Undo sets the
// default.
func TestHangs(t *testing.T) {
	for name, tc := range map[string]struct {
		fault nvmlsim.Fault
		then  string
	}{
		"asked for its version": {fault: nvmlsim.Fault{Function: smi.Version}, then: "Default []"},
		"before it is set":      {fault: nvmlsim.Fault{Function: smi.SetTimeslice}, then: `Default ["a"]`},
		"after it was set":      {fault: nvmlsim.Fault{Function: smi.SetTimeslice, After: true}, then: `Long ["a"]`},
	} {
		t.Run(name, func(t *testing.T) {
			check.GrowingLimit(t, "a tool that hangs there", func(limit time.Duration) bool {
				n := start(t)
				tc.fault.Do, tc.fault.File = nvmlsim.Wait, filepath.Join(t.TempDir(), "gate") // which never opens
				check.Must(t, n.Script(tc.fault))
				n.timeout = limit
				err := n.apply("a", timeslice.Long)
				if _, early := os.Stat(tc.fault.File + ".waiting"); early != nil {
					return false
				}
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
				n.is(tc.then)
				check.Must(t, n.Script())
				n.timeout = 0
				check.Must(t, n.undo("a", timeslice.Long))
				n.is("Default []")
				return true
			})
		})
	}
}

// TestGone: without the driver, or the GPU, there is no interval to restore. Without the tool there may be one.
func TestGone(t *testing.T) {
	for name, gone := range map[string]func(n *node){
		"driver": func(n *node) { n.kernel("") },
		"driver has let go of the GPU, no tool": func(n *node) {
			check.Must(n.t, os.MkdirAll(filepath.Join(n.root, sysfs.PCIDevice("0000:41:00.0")), 0o755), os.Remove(n.smi()))
		},
		"GPU": func(n *node) { n.change(func(s *nvmlsim.State) { s.Cards[0].Absent = true }) },
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			check.Must(t, n.apply("a", timeslice.Long))
			gone(n)
			check.Must(t, n.undo("a", timeslice.Long))
			if points, err := n.points().List(); err != nil || len(points) > 0 {
				t.Errorf("%v, %v", points, err)
			}
		})
	}
	n := start(t)
	check.Must(t, n.apply("a", timeslice.Long))
	check.Must(t, os.Rename(n.smi(), n.smi()+".away"))
	says(t, n.undo("a", timeslice.Long), "not installed")
	n.is(`Long ["a"]`)
	check.Must(t, os.Rename(n.smi()+".away", n.smi()))
	check.Must(t, n.undo("a", timeslice.Long))
	n.is("Default []")
}

// TestVersions: while the tool is of another driver than the kernel's the default cannot be set. The claim ends, and that is told.
func TestVersions(t *testing.T) {
	n := start(t)
	check.Must(t, n.apply("a", timeslice.Long))
	n.change(func(s *nvmlsim.State) { s.ToolVersion = "590.48.01" })
	check.Must(t, n.undo("a", timeslice.Long))
	n.is("Long []")
	if len(*n.changes) != 1 || !strings.Contains((*n.changes)[0], "stays Long until the node is rebooted: nvidia-smi is of another driver") {
		t.Errorf("reported %q", *n.changes)
	}
}

// TestReboot: the interval ends with the boot, and a claim that is prepared again has it again.
func TestReboot(t *testing.T) {
	n := start(t)
	check.Must(t, n.apply("a", timeslice.Long))
	check.Must(t, n.Reboot())
	n.boot = "boot-2"
	check.Must(t, n.undo("a", timeslice.Long))
	n.is("Default []")
	check.Must(t, n.apply("a", timeslice.Long))
	check.Must(t, n.Reboot())
	n.boot = "boot-3"
	check.Must(t, n.apply("b", timeslice.Short))
	n.is(`Short ["b"]`)
	check.Must(t, errors.Join(n.undo("a", timeslice.Long), n.undo("b", timeslice.Short)))
	n.is("Default []")
}

// TestAdministrator: the tool has the capability that the driver asks for, and this process's others not.
func TestAdministrator(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: what has nothing cannot keep it")
	}
	n := start(t)
	n.change(func(s *nvmlsim.State) { s.AsksAdmin = true })
	check.Must(t, n.apply("a", timeslice.Long))
	n.is(`Long ["a"]`)
	n.change(func(s *nvmlsim.State) { s.Cards[0].TimeSlice = 0 })
	weak := tools(n.root)
	weak.Keep = 0
	p, err := weak.Find("usr/bin/nvidia-smi")
	check.Must(t, err)
	_, err = p.Run(t.Context(), tool.Run{Args: []string{"compute-policy", "-i", uuid, "--set-timeslice", "3"}, Timeout: time.Minute})
	if failure, ok := errors.AsType[*tool.Error](err); !ok || failure.Exit != 4 {
		t.Errorf("without the capability: %v", err)
	}
}

// TestOrphan: while the tool of a plugin that was killed may still set the interval, nobody else acts.
func TestOrphan(t *testing.T) {
	n := start(t)
	gate := filepath.Join(t.TempDir(), "gate")
	check.Must(t, n.Script(nvmlsim.Fault{Function: smi.SetTimeslice, Nth: 1, Do: nvmlsim.Wait, File: gate}))
	applied := make(chan error, 1)
	go func() { applied <- n.apply("a", timeslice.Long) }()
	check.Eventually(t, "the tool comes to the interval", func() bool {
		_, err := os.Stat(gate + ".waiting")
		return err == nil
	})
	if err := n.process().Kinds().Undo(check.Passed(t), stepOf(t, "a", timeslice.Long)); !errors.Is(err, filelock.ErrHeld) {
		t.Errorf("undone beside the tool: %v", err)
	}
	check.Must(t, os.WriteFile(gate, nil, 0o600))
	check.Must(t, <-applied)
	check.Must(t, n.undo("a", timeslice.Long))
	n.is("Default []")
}
