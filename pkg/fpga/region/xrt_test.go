// SPDX-License-Identifier: Apache-2.0

package region_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/fpga/xrt"
	"github.com/fettle-dev/fettle/pkg/tool"
	"github.com/fettle-dev/fettle/test/check"
)

const (
	alveo = "sys/bus/pci/devices/0000:3b:00."
	// empty is what a card without an image shows.
	empty = "00000000-0000-0000-0000-000000000000"
)

// script is what the next run of the fake xbmgmt that programs or resets does; the driver root holds it.
type script struct {
	// Shows is the uuid that the card shows afterwards, the image's own where it is empty.
	Shows string
	Says  string
	Exit  int
	Hang  bool
	// Endless prints for ever, Unlocked leaves the card to its users.
	Endless, Unlocked bool
}

// xbmgmt is the fake, as the process that this test binary is then.
func xbmgmt(root string, args []string) int {
	if args[0] == "--version" {
		fmt.Println("Version : 2.16.204")
		return 0
	}
	var s script
	text, err := os.ReadFile(filepath.Join(root, "script.json"))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	shows := empty
	if i := len(args) - 1; err == nil && args[i-1] == "--user" {
		var file []byte
		if file, err = os.ReadFile(args[i]); err == nil {
			shows = fmt.Sprintf("%x", file[416:432])
		}
	}
	calls, openErr := os.OpenFile(filepath.Join(root, "calls"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err = errors.Join(err, openErr); err != nil {
		fmt.Println(err)
		return 99
	}
	defer calls.Close()
	fmt.Fprintln(calls, strings.Join(args[:len(args)-1], " "))
	switch {
	case s.Hang:
		check.Hang()
	case s.Endless:
		for {
			fmt.Println(strings.Repeat("Downloading xclbin ", 100))
		}
	}
	if s.Shows != "" {
		shows = s.Shows
	}
	err = os.WriteFile(filepath.Join(root, alveo+"1/xclbinuuid"), []byte(shows+"\n"), 0o600)
	if s.Unlocked {
		err = errors.Join(err, os.WriteFile(filepath.Join(root, alveo+"0/config_mailbox_channel_disable"), []byte("0x0\n"), 0o600))
	}
	fmt.Println(s.Says, err)
	return s.Exit
}

// card3b is a card with XRT, whose tree is the driver root too.
type card3b struct {
	*bench
	// patience is how long its runs may take.
	patience *time.Duration
}

func newCard(t *testing.T) card3b {
	t.Helper()
	r := &fpga.Region{
		Backend: fpga.BackendXRT, Card: "0000:3b:00.0", InterfaceID: shell,
		XRT: &fpga.XRTRegion{Management: "0000:3b:00.0", User: "0000:3b:00.1"},
	}
	copies := t.TempDir()
	patience := time.Minute
	c := card3b{patience: &patience, bench: newBench(t, r, func(tree, locks string) region.Backend {
		return region.XRT(func() (*xrt.Host, error) {
			return xrt.Open(tree, xrt.Options{
				Tools:    tool.Root{Dir: tree, Reach: func() *confine.Paths { return confine.Everything(os.TempDir()) }},
				StateDir: copies, Clock: check.Hurried(), Timeout: patience,
			})
		}, locks)
	})}
	for name, text := range map[string]string{
		alveo + "0/config_mailbox_channel_disable": "0x120\n", alveo + "1/interface_uuids": shell + "\n", alveo + "1/xclbinuuid": empty + "\n",
		alveo + "1/kdsstat": "contexts:\t0\n",
	} {
		c.set(name, text)
	}
	c.script(script{})
	exe, err := os.Executable()
	check.Must(t, err)
	place := filepath.Join(c.tree, "opt/xilinx/xrt/bin/unwrapped/xbmgmt2")
	check.Must(t, os.MkdirAll(filepath.Dir(place), 0o755))
	if os.Link(exe, place) != nil { // It may be on another disk.
		from, err := os.ReadFile(exe)
		check.Must(t, err)
		check.Must(t, os.WriteFile(place, from, 0o755))
	}
	return c
}

func (c card3b) script(s script) {
	c.t.Helper()
	text, err := json.Marshal(s)
	check.Must(c.t, err)
	c.set("script.json", string(text))
}

const (
	programming = "program --device 0000:3b:00.0 --user"
	resetting   = "--force reset --device"
)

// runs wants xbmgmt to be run exactly so meanwhile.
func (c card3b) runs(want []string, act func()) {
	c.t.Helper()
	if diff := cmp.Diff(want, c.ran(act)); diff != "" {
		c.t.Errorf("runs (-want +got):\n%s", diff)
	}
}

// ran is how xbmgmt is run meanwhile.
func (c card3b) ran(act func()) (got []string) {
	c.t.Helper()
	name := filepath.Join(c.tree, "calls")
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Fatal(err)
	}
	act()
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		got = append(got, strings.TrimSpace(line))
	}
	return got
}

// TestXRTPrograms: a card is what its uuid and the file say. To have an image reset, the card is.
func TestXRTPrograms(t *testing.T) {
	c := newCard(t)
	image, second := c.xclbin(nlb0), c.xclbin(other)
	program := c.program(ours(), image)
	c.runs(nil, func() { wants(t, c.apply(c.program(ours(), nil)), region.ErrEmpty) })
	c.runs([]string{programming}, func() { check.Must(t, c.apply(program)) })
	c.holds(held(image, ours()))
	check.Must(t, c.verify(program))
	c.runs(nil, func() { check.Must(t, c.apply(program)) })
	c.runs([]string{resetting, programming}, func() { check.Must(t, c.apply(c.program(ours(), image, withReset))) })
	c.runs([]string{resetting, programming}, func() { check.Must(t, c.apply(c.program(ours(), image, mode(region.ModeAlways)))) })
	c.runs(nil, func() {
		check.Must(t, c.apply(c.program(ours(), image, mode(region.ModeNever), withReset)))
		check.Must(t, c.apply(c.program(ours(), nil, withReset)))
		wants(t, c.apply(c.program(ours(), second, mode(region.ModeNever))), region.ErrOther, "attribute afuID")
	})
	c.runs([]string{programming}, func() { check.Must(t, c.apply(c.program(ours(), second))) })
	wants(t, c.verify(program), nil, "delete the pod")
}

// TestXRTGivesBack: what a tenant left in the card's memory goes with a reset.
func TestXRTGivesBack(t *testing.T) {
	c := newCard(t)
	image, blank := c.xclbin(nlb0), c.xclbin(nothing)
	for release, want := range map[region.Release][]string{
		region.ReleaseReset: {resetting}, region.ReleaseKeep: nil, region.ReleaseBlank: {programming},
	} {
		program := c.program(ours(), image, released(release, blank))
		check.Must(t, c.apply(program))
		c.runs(want, func() { check.Must(t, c.undo(program)) })
		if c.content().Claim != "" {
			t.Errorf("%s: held by %+v", release, c.content())
		}
	}
}

// TestXRTFaults: however XRT's program fails, a card that may have been touched is unknown, and one that was not is as before.
func TestXRTFaults(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before func(c card3b)
		script script
		kind   backend.Kind
		runs   int
		err    error
	}{
		{name: "exits with a fault", script: script{Exit: 1, Says: "ERROR: ICAP", Shows: empty}, runs: 2},
		{name: "hangs", script: script{Hang: true}, runs: 2},
		{name: "prints without end", script: script{Endless: true}, runs: 2, err: tool.ErrOutput},
		{name: "says that it worked", script: script{Shows: other}, runs: 2, err: xrt.ErrWrongImage},
		{name: "leaves the card open to its users", script: script{Unlocked: true}, runs: 1, err: xrt.ErrNotLocked},
		{name: "busy", script: script{Exit: 1, Says: "ERROR: device or resource busy", Shows: empty}, runs: 1, kind: backend.Retryable},
		{
			name: "in use", before: func(c card3b) { c.set(alveo+"1/kdsstat", "contexts:\t1\n") }, kind: backend.Retryable,
		},
		{
			name: "open to its users", before: func(c card3b) { c.set(alveo+"0/config_mailbox_channel_disable", "0x100\n") },
			kind: backend.Terminal, err: xrt.ErrNotLocked,
		},
		{
			name: "XRT is not installed", before: func(c card3b) { check.Must(c.t, os.RemoveAll(filepath.Join(c.tree, "opt"))) },
			kind: backend.Terminal, err: tool.ErrNotInstalled,
		},
		{
			name: "another card took its place", before: func(c card3b) { c.set(alveo+"1/interface_uuids", otherShell+"\n") },
			kind: backend.Terminal, err: backend.ErrInterface,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel() // with the one that hangs
			var c card3b
			var err error
			var got []string
			apply := func(limit time.Duration) bool {
				c = newCard(t)
				if tc.before != nil {
					tc.before(c)
				}
				c.script(tc.script)
				*c.patience = limit
				got = c.ran(func() { err = c.apply(c.program(ours(), c.xclbin(nlb0))) })
				return len(got) >= tc.runs
			}
			if tc.script.Hang {
				check.GrowingLimit(t, "both runs begin", apply)
			} else {
				apply(time.Minute)
			}
			if diff := cmp.Diff(slices.Repeat([]string{programming}, tc.runs), got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("runs (-want +got):\n%s", diff)
			}
			if wants(t, err, tc.err); backend.KindOf(err) != tc.kind {
				t.Errorf("%v is %s, want %s", err, backend.KindOf(err), tc.kind)
			}
			if tc.kind != backend.Unknown {
				c.holds(region.Content{})
				return
			}
			c.holds(unknownBy(ours()))
			c.script(script{})
			*c.patience = time.Minute
			c.set(alveo+"0/config_mailbox_channel_disable", "0x120\n")
			blank := clearing(c.xclbin(nothing))
			check.Must(t, c.undo(c.program(ours(), nil, released(region.ReleaseReset, blank))))
			c.holds(wiped(blank))
		})
	}
}

// TestXRTOnlyXclbins: a file of which only a part is the image is not for such a card.
func TestXRTOnlyXclbins(t *testing.T) {
	c := newCard(t)
	c.runs(nil, func() { wants(t, c.apply(c.program(ours(), c.keep(gbs(shell, nlb0, "", 100)))), nil, "want an xclbin") })
	c.holds(region.Content{})
}

// TestXRTUnknownWithoutBlank: an empty card has not proven that it works.
func TestXRTUnknownWithoutBlank(t *testing.T) {
	c := newCard(t)
	c.script(script{Exit: 1, Shows: empty})
	program := c.program(ours(), c.xclbin(nlb0))
	wants(t, c.apply(program), nil)
	wants(t, c.undo(program), region.ErrUnknownState, region.ErrEmpty.Error())
	c.set(alveo+"1/xclbinuuid", other+"\n")
	c.script(script{})
	check.Must(t, c.undo(program))
	if got := c.content(); got.Unknown || got.Claim != "" || got.Digest != "" {
		t.Errorf("content %+v", got)
	}
}
