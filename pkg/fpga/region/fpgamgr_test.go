// SPDX-License-Identifier: Apache-2.0

package region_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/fpgamgr"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/test/check"
)

const (
	zynq    = "firmware:zynqmp-firmware:pcap"
	manager = "sys/class/fpga_manager/fpga0/"
)

// chip is a manager of AMD's kernel: what was loaded, by content, and how the next loads end.
type chip struct {
	*bench
	loaded []string
	flags  string
	// ends are the states after the next loads; operating where there is none. An end that is an errno is the write's.
	ends []any
}

func newChip(t *testing.T, partial bool) *chip {
	t.Helper()
	c := &chip{}
	r := &fpga.Region{
		Backend: fpga.BackendFPGAManager, Card: zynq, InterfaceID: shell, Manager: &fpga.ManagerRegion{Platform: zynq, Partial: partial},
	}
	c.bench = newBench(t, r, func(tree, locks string) region.Backend {
		return region.FPGAManager(func() (*fpgamgr.Host, error) {
			return fpgamgr.Open(tree, fpgamgr.Options{Write: c.write})
		}, locks)
	})
	for name, text := range map[string]string{
		manager + "state": "operating\n", manager + "status": "", manager + "flags": "0\n", manager + "firmware": "",
		"sys/class/fpga_bridge/br0/state": "enabled\n", "lib/firmware/other": "",
	} {
		c.set(name, text)
	}
	check.Must(t, os.Symlink("../../../devices/platform/"+zynq, filepath.Join(c.tree, manager, "device")))
	return c
}

// write answers as firmware_store of drivers/fpga/fpga-mgr.c does.
func (c *chip) write(name, value string) error {
	if path.Base(name) == "flags" {
		c.flags = value
		return os.WriteFile(filepath.Join(c.tree, name), []byte(value+"\n"), 0o600)
	}
	data, err := os.ReadFile(filepath.Join(c.tree, "lib/firmware", value))
	if err != nil {
		return err
	}
	state := "operating"
	if len(c.ends) > 0 {
		end := c.ends[0]
		c.ends = c.ends[1:]
		if errno, ok := end.(unix.Errno); ok {
			return fmt.Errorf("write: %w", errno)
		}
		state = fmt.Sprint(end)
	}
	c.loaded = append(c.loaded, string(data))
	c.set(manager+"state", state+"\n")
	if strings.Contains(state, "error") {
		return fmt.Errorf("write: %w", unix.EIO)
	}
	return nil
}

// loads wants exactly this to be loaded meanwhile, and no copy left.
func (c *chip) loads(want []string, act func()) {
	c.t.Helper()
	c.loaded = nil
	act()
	if diff := cmp.Diff(want, c.loaded); diff != "" {
		c.t.Errorf("loaded (-want +got):\n%s", diff)
	}
	entries, err := os.ReadDir(filepath.Join(c.tree, "lib/firmware"))
	if err != nil || len(entries) != 1 {
		c.t.Errorf("firmware directory has %v, %v", entries, err)
	}
}

// TestManagerPrograms: a chip without readback holds what the file says, while the machine runs and the chip works.
func TestManagerPrograms(t *testing.T) {
	for _, partial := range []bool{false, true} {
		c := newChip(t, partial)
		image, second := c.raw(nlb0, "logic"), c.raw(other, "other logic")
		program := c.program(ours(), image)
		c.loads([]string{"logic"}, func() { check.Must(t, c.apply(program)) })
		if want := map[bool]string{false: "0", true: "1"}[partial]; c.flags != want {
			t.Errorf("flags %s, want %s", c.flags, want)
		}
		c.holds(held(image, ours()))
		check.Must(t, c.verify(program))
		c.loads(nil, func() { check.Must(t, c.apply(program)) })
		c.loads([]string{"logic"}, func() { check.Must(t, c.apply(c.program(ours(), image, withReset))) })
		c.loads([]string{"other logic"}, func() { check.Must(t, c.apply(c.program(ours(), second))) })
		c.reboot()
		c.loads([]string{"other logic"}, func() { check.Must(t, c.apply(c.program(ours(), second))) })
		c.set(manager+"state", "write error\n")
		wants(t, c.verify(c.program(ours(), second)), nil, "write error", "delete the pod")
		c.loads([]string{"other logic"}, func() { check.Must(t, c.apply(c.program(ours(), second))) })
		if a := c.attempts[0]; a.Err != nil || a.Image.Digest != image.Digest || a.Why != "program" {
			t.Errorf("attempt %+v", a)
		}
	}
}

// TestManagerNever: a chip that shows nothing is known by the digest alone, and used as it is only while it operates.
func TestManagerNever(t *testing.T) {
	c := newChip(t, false)
	image := c.raw(nlb0, "logic")
	never := c.program(ours(), image, mode(region.ModeNever), withReset)
	asIs := c.program(ours(), nil, withReset)
	c.loads(nil, func() {
		wants(t, c.apply(never), region.ErrOther, "bitstreamDigest")
		check.Must(t, c.apply(asIs))
		for _, state := range []string{"unknown", "power off", "write error", "write"} {
			c.set(manager+"state", state+"\n")
			if state == "write" {
				wants(t, c.apply(asIs), nil, "another process programs it")
				continue
			}
			wants(t, c.apply(asIs), nil, fmt.Sprintf("%q", state), "let a claim program it")
		}
		c.set(manager+"state", "operating\n")
		c.set(manager+"status", "reconfig CRC error\n")
		wants(t, c.apply(asIs), nil, "CRC")
		c.set(manager+"status", "")
		c.set("sys/class/fpga_bridge/br0/state", "disabled\n")
		wants(t, c.apply(asIs), nil, "br0")
		c.set("sys/class/fpga_bridge/br0/state", "enabled\n")
	})
	check.Must(t, c.apply(c.program(ours(), image)))
	c.loads(nil, func() {
		check.Must(t, c.apply(never))
		wants(t, c.apply(c.program(ours(), c.raw(nlb0, "logic of the same id"), mode(region.ModeNever))), region.ErrOther)
	})
}

// TestManagerGivesBack: nothing but a blank image stops the logic, and without one it is known whose it was.
func TestManagerGivesBack(t *testing.T) {
	c := newChip(t, false)
	image, blank := c.raw(nlb0, "logic"), clearing(c.raw(nothing, "blank"))
	for _, release := range []region.Release{region.ReleaseReset, region.ReleaseKeep} {
		program := c.program(ours(), image, released(release, blank))
		check.Must(t, c.apply(program))
		c.loads(nil, func() { check.Must(t, c.undo(program)) })
		left := held(image, ours())
		left.Claim = ""
		c.holds(left)
		wants(t, c.apply(&region.Scrub{Device: first, Claim: theirs(), Required: true, KeepMemory: true}), region.ErrTraces)
	}
	program := c.program(ours(), image, released(region.ReleaseBlank, blank))
	check.Must(t, c.apply(program))
	c.loads([]string{"blank"}, func() { check.Must(t, c.undo(program)) })
	c.holds(wiped(blank))
}

// TestManagerWithoutRoom: the blank image has no room in the firmware directory. The claim ends, and it is known whose logic is left.
func TestManagerWithoutRoom(t *testing.T) {
	c := newChip(t, false)
	image, blank := c.raw(nlb0, "logic"), clearing(c.raw(nothing, "blank"))
	program := c.program(ours(), image, released(region.ReleaseBlank, blank))
	check.Must(t, c.apply(program))
	at := filepath.Join(c.tree, "lib/firmware")
	check.Mount(t, at, check.Tmpfs("nr_inodes=1"))
	err := c.undo(program)
	check.Must(t, unix.Unmount(at, 0), err)
	left := held(image, ours())
	left.Claim = ""
	c.holds(left)
}

// TestManagerFaults: what a failed load leaves behind, and what puts it right.
func TestManagerFaults(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before func(c *chip)
		ends   []any
		kind   backend.Kind
		loads  int
		err    error
	}{
		{name: "fails twice", ends: []any{"write error", "write complete error"}, loads: 2, err: unix.EIO},
		{name: "fails twice by its state alone", ends: []any{"write init", "unknown"}, loads: 2},
		{name: "busy", ends: []any{unix.EBUSY}, kind: backend.Retryable, err: unix.EBUSY},
		{name: "sysfs is read-only", ends: []any{unix.EROFS}, kind: backend.Terminal, err: unix.EROFS},
		{name: "programmed by hand", before: func(c *chip) { c.set(manager+"state", "write\n") }, kind: backend.Retryable},
		{
			name:   "bridges are closed",
			before: func(c *chip) { c.set("sys/class/fpga_bridge/br0/state", "disabled\n") }, kind: backend.Terminal,
		},
		{
			name: "no firmware directory", kind: backend.Terminal,
			before: func(c *chip) { check.Must(c.t, os.RemoveAll(filepath.Join(c.tree, "lib"))) },
		},
		{
			name: "upstream kernel", kind: backend.Terminal, err: fpgamgr.ErrNoManager,
			before: func(c *chip) { check.Must(c.t, os.Remove(filepath.Join(c.tree, manager, "firmware"))) },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newChip(t, false)
			if tc.before != nil {
				tc.before(c)
			}
			c.ends = tc.ends
			program := c.program(ours(), c.raw(nlb0, "logic"))
			err := c.apply(program)
			if wants(t, err, tc.err); backend.KindOf(err) != tc.kind || len(c.loaded) != tc.loads {
				t.Fatalf("%v is %s after %d loads, want %s after %d", err, backend.KindOf(err), len(c.loaded), tc.kind, tc.loads)
			}
			if tc.kind != backend.Unknown {
				c.holds(region.Content{})
				return
			}
			c.holds(unknownBy(ours()))
			wants(t, c.verify(program), region.ErrUnknownState)
			wants(t, c.undo(program), region.ErrUnknownState, "ClusterFPGABitstream")
			blank := clearing(c.raw(nothing, "blank"))
			check.Must(t, c.undo(c.program(ours(), nil, released(region.ReleaseReset, blank))))
			c.holds(wiped(blank))
		})
	}
	t.Run("a second attempt", func(t *testing.T) {
		c := newChip(t, false)
		c.ends = []any{"write error"}
		image := c.raw(nlb0, "logic")
		c.loads([]string{"logic", "logic"}, func() { check.Must(t, c.apply(c.program(ours(), image))) })
		c.holds(held(image, ours()))
	})
	t.Run("another shell's", func(t *testing.T) {
		c := newChip(t, false)
		c.regions[first].InterfaceID = otherShell
		c.loads(nil, func() { wants(t, c.apply(c.program(ours(), c.raw(nlb0, "logic"))), backend.ErrInterface) })
	})
}

// TestManagerHasNoParams: an image's clocks are no wish where there are no clocks.
func TestManagerHasNoParams(t *testing.T) {
	c := newChip(t, false)
	plan := func(set []region.Param) (*region.Params, error) {
		return c.own.PlanParams(t.Context(), c.regions[first], region.Params{
			Device: first, Claim: ours(), Set: set, Image: c.raw(nlb0, "logic"),
		})
	}
	if p, err := plan(nil); p != nil || err != nil {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, name := range []string{"clockKHz", "ltr"} {
		_, err := plan([]region.Param{{Name: name, Value: 1}})
		if wants(t, err, backend.ErrNoParam); backend.KindOf(err) != backend.Terminal {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(c.loaded) > 0 {
		t.Error("planning loaded something")
	}
}
