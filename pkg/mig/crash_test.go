// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package mig_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/mig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// foreigners are instances that somebody else made beside the claim's place. They survive everything but a reset.
const (
	besideProfile, besideStart = 14, 0 // 2g with two compute instances
	bareProfile, bareStart     = 19, 6 // 1g without any
)

func beside() []string { return []string{"14@0/2", "19@6/0"} }

// crashed is a node with foreign instances, and the claim's one where it was made before.
func crashed(t *testing.T, made bool) *node {
	t.Helper()
	n := start(t, nvmlsim.H100)
	_, err := n.Foreign(0, besideProfile, besideStart, 1, 1)
	check.Must(t, err)
	_, err = n.Foreign(0, bareProfile, bareStart)
	check.Must(t, err)
	if made {
		check.Must(t, n.apply(small()))
	}
	return n
}

// afterwards are the ways on from a crash, each of which has to end well. Each is tried twice, since it may be cut off itself.
func afterwards() map[string]func(n *node) {
	w := small()
	return map[string]func(*node){
		"undone": func(n *node) {
			check.Must(n.t, n.undo(w))
			n.has(beside())
		},
		"finished": func(n *node) {
			check.Must(n.t, n.apply(w))
			check.Must(n.t, n.verify(w))
			n.has(append(beside(), "19@4"), w.Device)
			if edits, err := n.process().Edits(w.Device); err != nil || len(edits.Nodes) != 3 {
				n.t.Errorf("edits %+v, %v", edits, err)
			}
		},
		"rebooted": func(n *node) {
			if n.boot == boot {
				check.Must(n.t, n.Reboot())
				check.Must(n.t, n.SwitchOn())
				_, err := n.Foreign(0, w.ProfileID, w.Start, 1)
				check.Must(n.t, err)
				n.boot = otherBoot
			}
			check.Must(n.t, n.undo(w))
			n.has([]string{"19@4"})
		},
		"reset": func(n *node) {
			check.Must(n.t, n.Reset(0, 5))
			check.Must(n.t, n.undo(w))
			n.has([]string{})
		},
	}
}

// crashes counts points, and tries each way on from each state that a crash leaves. Two crashes that leave the same state of the machine
// and of the files are followed by the same.
type crashes struct {
	points int
	states map[string]bool
}

func (c *crashes) goesOn(t *testing.T, crash func(t *testing.T) *node) {
	t.Helper()
	c.points++
	state := crash(t).look()
	if c.states[state] {
		return
	}
	c.states[state] = true
	for name, way := range afterwards() {
		n := crash(t)
		check.Must(t, n.Script())
		way(n)
		way(n)
		if t.Failed() {
			t.Fatalf("failed: %s", name)
		}
	}
}

// look is everything that outlives a process: the machine, and the files. Names of temporary files are made up each time.
func (n *node) look() string {
	n.t.Helper()
	s, err := n.Look()
	check.Must(n.t, err)
	cards, err := json.Marshal(s.Cards)
	check.Must(n.t, err)
	text := string(cards)
	entries, err := os.ReadDir(n.state)
	if !errors.Is(err, fs.ErrNotExist) {
		check.Must(n.t, err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(n.state, e.Name()))
		check.Must(n.t, err)
		name := e.Name()
		if strings.HasPrefix(name, disk.TemporaryPrefix) {
			name = disk.TemporaryPrefix
		}
		text += fmt.Sprintf("\n%s %q", name, data)
	}
	return text
}

// verb is what is cut off.
type verb struct {
	name string
	made bool
	do   func(*node) error
}

func verbs() []verb {
	return []verb{
		{name: "create", do: func(n *node) error { return n.apply(small()) }},
		{name: "destroy", made: true, do: func(n *node) error { return n.undo(small()) }},
	}
}

// TestCrashPoints kills fettle-nvml before and after each call of the library, and the plugin before and after each operation on files and
// each child, while an instance is made and while it is destroyed. Afterwards the instance is finished or gone, as the next process wants,
// also after a reboot or a reset of the GPU, and foreign instances are as they were.
func TestCrashPoints(t *testing.T) {
	for _, v := range verbs() {
		t.Run("fettle-nvml, "+v.name, func(t *testing.T) { killChild(t, v) })
		t.Run("plugin, "+v.name, func(t *testing.T) { killPlugin(t, v) })
	}
}

// killChild kills fettle-nvml at each call. After one call and before the next nothing happens, so "after" counts for changes and the last.
func killChild(t *testing.T, v verb) {
	whole := crashed(t, v.made)
	check.Must(t, whole.Script())
	check.Must(t, v.do(whole))
	calls, err := whole.Look()
	check.Must(t, err)
	c := crashes{states: map[string]bool{}}
	for at := 1; at <= calls.Total; at++ {
		for _, after := range []bool{false, true} {
			kill := nvmlsim.Fault{Nth: at, After: after, Do: nvmlsim.Kill}
			changed := 0
			crash := func(t *testing.T) *node {
				n := crashed(t, v.made)
				check.Must(t, n.Script(kill))
				wants(t, v.do(n), "signal: killed")
				s, err := n.Look()
				check.Must(t, err)
				changed = s.LastChange
				return n
			}
			if after && at < calls.Total {
				if crash(t); changed != at {
					continue
				}
			}
			c.goesOn(t, crash)
		}
	}
	t.Logf("%s: fettle-nvml was killed at %d points of %d calls, which left %d states, with %d ways on from each",
		v.name, c.points, calls.Total, len(c.states), len(afterwards()))
}

// job is what the plugin's process does.
type job struct {
	File, Root, State string
	Undo              bool
}

// TestChild plays the plugin until the plan kills it.
func TestChild(t *testing.T) {
	plan, ok := fault.Planned()
	if !ok {
		t.Skip("only as a child process")
	}
	var j job
	check.Must(t, json.Unmarshal(plan.Data, &j))
	in, err := plan.Injector()
	check.Must(t, err)
	n := &node{t: t, Machine: nvmlsim.Machine{File: j.File}, root: j.Root, state: j.State, boot: boot, fs: in.FS(disk.OS{})}
	point := func(name string) error { return in.Do(name, func() error { return nil }) }
	kinds := mig.New(mig.Config{FS: n.fs, Dir: n.state, HostRoot: n.root, BootID: n.boot, Library: counted{n.prober(), point}}).Kinds()
	s, err := small().Step()
	check.Must(t, err)
	if j.Undo {
		check.Must(t, kinds.Undo(t.Context(), s))
	} else {
		check.Must(t, kinds.Apply(t.Context(), s))
	}
}

// counted makes each child of the plugin a point at which the plugin can be killed.
type counted struct {
	*nvml.Prober
	// point is a point at which the plugin can be killed before a child. That after it is the one before the next operation.
	point func(name string) error
}

func (c counted) ListMIG(ctx context.Context, lock *os.File, place nvml.MIGPlace) (nvml.MIGAnswer, error) {
	if err := c.point("list"); err != nil {
		return nvml.MIGAnswer{}, err
	}
	return c.Prober.ListMIG(ctx, lock, place)
}

func (c counted) CreateMIG(ctx context.Context, lock *os.File, place nvml.MIGPlace, finish bool) (nvml.MIGAnswer, error) {
	if err := c.point("create"); err != nil {
		return nvml.MIGAnswer{}, err
	}
	return c.Prober.CreateMIG(ctx, lock, place, finish)
}

func (c counted) DestroyMIG(ctx context.Context, lock *os.File, place nvml.MIGPlace, id *nvml.MIGIdentity) (nvml.MIGAnswer, error) {
	if err := c.point("destroy"); err != nil {
		return nvml.MIGAnswer{}, err
	}
	return c.Prober.DestroyMIG(ctx, lock, place, id)
}

// plugin runs a process of the plugin.
func (n *node) plugin(ctx context.Context, undo bool, faults ...fault.Fault) (fault.Result, error) {
	n.t.Helper()
	data, err := json.Marshal(job{File: n.File, Root: n.root, State: n.state, Undo: undo})
	check.Must(n.t, err)
	return fault.Child{}.Run(ctx, fault.Plan{Faults: faults, Data: data})
}

// killPlugin kills the plugin before each operation, and in the middle of each write.
func killPlugin(t *testing.T, v verb) {
	c := crashes{states: map[string]bool{}}
	for at := 1; ; at++ {
		for _, kill := range []fault.Fault{fault.Kill(at), fault.Tear(at)} {
			probe := crashed(t, v.made)
			result, err := probe.plugin(t.Context(), v.made, kill)
			check.Must(t, err)
			if result.Killed == nil {
				t.Logf("%s: the plugin was killed at %d points, which left %d states, with %d ways on from each",
					v.name, c.points, len(c.states), len(afterwards()))
				return
			}
			if kill.Do == fault.ActTear && !result.Killed.Done {
				continue // no write, so killed where it was before
			}
			c.goesOn(t, func(t *testing.T) *node {
				n := crashed(t, v.made)
				_, err := n.plugin(t.Context(), v.made, kill)
				check.Must(t, err)
				return n
			})
		}
	}
}

// TestOrphan: the plugin is killed while its child is about to make the instance. The next plugin waits until the child is gone, and finds
// what it made.
func TestOrphan(t *testing.T) {
	n := crashed(t, false)
	w := small()
	gate := filepath.Join(t.TempDir(), "gate")
	check.Must(t, n.Script(nvmlsim.Fault{Function: "Device.CreateGpuInstanceWithPlacement", Do: nvmlsim.Wait, File: gate}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := n.plugin(ctx, false)
		ended <- err
	}()
	check.Eventually(t, "the child comes to the creation", func() bool {
		_, err := os.Stat(gate + ".waiting")
		return err == nil
	})
	cancel()
	if err := <-ended; err == nil {
		t.Fatal("the plugin was not killed")
	}
	s, err := w.Step()
	check.Must(t, err)
	if err := n.process().Kinds().Undo(check.Passed(t), s); !errors.Is(err, filelock.ErrHeld) {
		t.Errorf("undone beside the orphan: %v", err)
	}
	n.has(beside(), w.Device)
	undone := make(chan error, 1)
	go func() { undone <- step.Kinds.Undo(n.process().Kinds(), t.Context(), s) }()
	check.Must(t, os.WriteFile(gate, nil, 0o600))
	check.Must(t, <-undone)
	n.has(beside())
	look, err := n.Look()
	check.Must(t, err)
	if len(look.Changes) < 4 {
		t.Errorf("the orphan made nothing: %v", look.Changes)
	}
}
