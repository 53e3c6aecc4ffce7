// SPDX-License-Identifier: Apache-2.0

package supervise_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/pkg/mps/supervise"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// place is where a child finds the node of the test.
type place struct {
	Config supervise.Config
	Memory bool
}

func (p place) node() *node { return &node{root: p.Config.Root, dir: p.Config.Dir, memory: p.Memory} }

func planned(t *testing.T) (place, *fault.Injector) {
	t.Helper()
	plan, ok := fault.Planned()
	if !ok {
		t.Skip("only as a child process")
	}
	var p place
	check.Must(t, json.Unmarshal(plan.Data, &p))
	in, err := plan.Injector()
	check.Must(t, err)
	return p, in
}

func childPlan(t *testing.T, n *node, kill int) fault.Plan {
	t.Helper()
	config := n.config()
	config.FS = nil
	data, err := json.Marshal(place{Config: config, Memory: n.memory})
	check.Must(t, err)
	return fault.Plan{Faults: []fault.Fault{fault.Kill(kill)}, Quick: true, Data: data}
}

// TestChildSupervisor is a supervisor with a plugin, of which the disk kills it.
func TestChildSupervisor(t *testing.T) {
	p, in := planned(t)
	p.Config.FS = in.FS(disk.OS{})
	s, err := supervise.Open(t.Context(), p.Config)
	check.Must(t, err)
	listener, err := mps.Listen(t.Context(), filepath.Join(p.Config.Dir, mps.SocketName))
	check.Must(t, err)
	check.Must(t, s.Start())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mps.Serve(ctx, listener, uint32(os.Geteuid()), s) }()
	c, n := mps.Client{Dir: p.Config.Dir}, p.node()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(limited())))
	check.Must(t, in.Do("ready", func() error { return nil }))
	check.Must(t, c.Stop(t.Context(), limited().ID))
	cancel()
	check.Must(t, errors.Join(<-ended, s.Close()))
}

// TestSupervisorCrashPoints kills the supervisor at each operation on its list, and once with a daemon that is ready. The daemon dies with
// it. The next supervisor and the claim's step then do what is wanted, whether that is the daemon or nothing.
func TestSupervisorCrashPoints(t *testing.T) {
	kills := 0
	for ; ; kills++ {
		n := newNode(t)
		result, err := fault.Child{Test: "TestChildSupervisor"}.Run(t.Context(), childPlan(t, n, kills+1))
		check.Must(t, err)
		pidFile := filepath.Join(n.pipes(limited().ID), "nvidia-cuda-mps-control.pid")
		if _, err := os.Stat(pidFile); err == nil {
			pid := n.pid(limited().ID)
			check.Eventually(t, "the daemon died with the supervisor", func() bool { return !alive(pid) })
		}
		c := n.start()
		s, err := n.params(limited()).Step()
		check.Must(t, err)
		if kills%2 == 0 { // the claim is still wanted
			check.Must(t, n.runner(c).Kinds().Apply(t.Context(), s))
			check.Must(t, n.runner(c).Kinds().Verify(t.Context(), s))
		}
		check.Must(t, n.runner(c).Kinds().Undo(t.Context(), s))
		checkEmpty(t, n)
		n.stop()
		if result.Killed == nil {
			break
		}
	}
	// The directory of the list is made with 1 operation and a sync, the entry with 6 and removed with 2, and one is the daemon that is ready.
	t.Logf("%d kills", kills)
	if want := 2 + 6 + 1 + 2; kills != want {
		t.Errorf("%d points, want %d: say here what a change adds", kills, want)
	}
}

func checkEmpty(t *testing.T, n *node) {
	t.Helper()
	left, err := filepath.Glob(filepath.Dir(mps.HostDir(n.root)) + "/*/*")
	check.Must(t, err)
	listed, err := os.ReadDir(filepath.Join(n.dir, mps.ListName))
	check.Must(t, err)
	if len(left)+len(listed)+len(n.s.List()) > 0 {
		t.Errorf("%q, %v and %+v are left", left, listed, n.s.List())
	}
}

// TestChildPlugin is a plugin that is killed between its acts.
func TestChildPlugin(t *testing.T) {
	p, in := planned(t)
	c, n := mps.Client{Dir: p.Config.Dir}, p.node()
	s, err := n.params(limited()).Step()
	check.Must(t, err)
	at := func(what string) { check.Must(t, in.Do(what, func() error { return nil })) }
	at("planned")
	for _, name := range n.mounts() {
		check.Must(t, n.runner(c).Memory.MountMemory(name, hostmount.Memory{Free: 1 << 20}))
		at("mounted " + name)
	}
	_, err = c.Run(t.Context(), limited())
	check.Must(t, err)
	at("asked")
	check.Must(t, n.runner(c).Kinds().Apply(t.Context(), s))
	at("applied")
	for _, name := range n.mounts() {
		check.Must(t, c.Stop(t.Context(), limited().ID))
		at("before unmounting " + name)
		check.Must(t, n.runner(c).Memory.Detach(name))
	}
	check.Must(t, n.runner(c).Kinds().Undo(t.Context(), s))
	at("undone")
}

// TestPluginCrashPoints kills the plugin before it asks, while the daemon starts, and when it runs, and before and after each mount. No
// daemon ends with the plugin: the next one finds the same process and the same mounts.
func TestPluginCrashPoints(t *testing.T) {
	for memory, points := range map[bool][]bool{
		false: {false, true, true, false}, true: {false, false, false, true, true, false, false, false},
	} {
		for kill, running := range points {
			n := newNode(t)
			if memory {
				n.hasMemory()
			}
			c := n.start()
			result, err := fault.Child{Test: "TestChildPlugin"}.Run(t.Context(), childPlan(t, n, kill+1))
			check.Must(t, err)
			if result.Killed == nil {
				t.Fatalf("kill %d: the child finished", kill)
			}
			if got := len(n.s.List()) == 1; got != running {
				t.Fatalf("killed at %s: the daemon runs: %t, want %t", result.Killed, got, running)
			}
			s, err := n.params(limited()).Step()
			check.Must(t, err)
			check.Must(t, n.runner(c).Kinds().Apply(t.Context(), s))
			if status := n.status(limited().ID); status.Restarts != 0 || status.Memory != memory {
				t.Errorf("killed at %s: the daemon is %+v", result.Killed, status)
			}
			check.Must(t, n.runner(c).Kinds().Undo(t.Context(), s))
			checkEmpty(t, n)
			n.stop()
		}
	}
}

// TestFullDisk: a daemon that cannot be noted is not started, and one that cannot be struck out is not ended.
func TestFullDisk(t *testing.T) {
	n := newNode(t)
	config := n.config()
	in := fault.New()
	config.FS = in.FS(disk.OS{})
	s, err := supervise.Open(t.Context(), config)
	check.Must(t, err)
	defer s.Close() //nolint:errcheck // the test is over
	check.Must(t, s.Start())
	in.Set(fault.Full(0))
	if _, err := s.Run(*limited()); err == nil || len(s.List()) > 0 {
		t.Errorf("with a full disk: %v, %+v", err, s.List())
	}
	in.Set()
	_, err = s.Run(*limited())
	check.Must(t, err)
	in.Set(fault.ReadOnly(0))
	if err := s.Stop(t.Context(), limited().ID); err == nil || len(s.List()) == 0 {
		t.Errorf("with a disk that cannot be written: %v, %+v", err, s.List())
	}
	in.Set()
	check.Must(t, s.Stop(t.Context(), limited().ID))
}
