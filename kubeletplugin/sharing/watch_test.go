// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/kubeletplugin/prepare"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/timeslice"
	"github.com/fettle-dev/fettle/test/check"
)

// supervisor answers with what a test sets.
type supervisor struct {
	daemons []mps.Status
	memory  bool
}

func (s *supervisor) List() []mps.Status               { return s.daemons }
func (s *supervisor) Memory() bool                     { return s.memory }
func (*supervisor) Run(mps.Daemon) (mps.Status, error) { return mps.Status{}, errors.New("not here") }
func (*supervisor) Stop(context.Context, string) error { return errors.New("not here") }

// serve has a supervisor answer, and returns the directory of its socket.
func serve(t *testing.T) (*supervisor, string) {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, mps.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	s := &supervisor{}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- mps.Serve(ctx, listener, uint32(os.Getuid()), s) }()
	t.Cleanup(func() {
		stopped := ctx.Err() != nil // the test's context ends before its cleanups
		cancel()
		if err := <-served; err != nil && !stopped {
			t.Error(err)
		}
	})
	return s, dir
}

// TestWatch: what becomes of a daemon is told to its claim once, and is the health of the claim's GPU until the daemon is well or gone.
func TestWatch(t *testing.T) {
	s, dir := serve(t)
	var said []string
	f, err := New(Config{
		HostRoot: t.TempDir(), StateDir: t.TempDir(), BootID: "boot", Supervisor: dir,
		Devices: func() map[string]string { return map[string]string{"a": "GPU-1", "b": "GPU-2", "c": "GPU-3"} },
		Load: func(uid string) (*record.Record, error) {
			if uid != "uid-1" && uid != "uid-2" {
				return nil, os.ErrNotExist
			}
			return &record.Record{UID: uid, Devices: []record.Device{
				{Name: "a"}, {Name: "b", AdminAccess: true}, {Name: "c"}, {Name: "ssd0"}, // c is held without a daemon
			}}, nil
		},
		Level: func(_ context.Context, device, problem string) {
			state := "well"
			if problem != "" {
				state = "ill"
			}
			said = append(said, device+" "+state)
		},
		ClaimEvent: func(r *record.Record, _, reason, _ string) { said = append(said, r.UID+" "+reason) },
	})
	if err != nil {
		t.Fatal(err)
	}
	w := watcher{Feature: f}
	for _, tc := range []struct {
		what    string
		daemons []mps.Status
		want    []string
	}{
		{"none yet: what was reported before has ended", nil, []string{"a well", "b well", "c well"}},
		{"starts", []mps.Status{{ID: "uid-1", State: mps.Starting}}, nil},
		{"ready", []mps.Status{{ID: "uid-1", State: mps.Ready}}, nil},
		{"the same", []mps.Status{{ID: "uid-1", State: mps.Ready}}, nil},
		{"dead", []mps.Status{{ID: "uid-1", State: mps.Dead, Reason: "killed"}}, []string{"a ill", "uid-1 MPSDaemonEnded"}},
		{"still dead", []mps.Status{{ID: "uid-1", State: mps.Dead, Reason: "killed"}}, []string{"a ill"}},
		{"started again", []mps.Status{{ID: "uid-1", State: mps.Starting, Restarts: 1}}, []string{"a ill", "uid-1 MPSDaemonEnded"}},
		{"ready again", []mps.Status{{ID: "uid-1", State: mps.Ready, Restarts: 1}}, []string{"a well"}},
		{"between two looks", []mps.Status{{ID: "uid-1", State: mps.Ready, Restarts: 2}}, []string{"a ill", "uid-1 MPSDaemonEnded"}},
		{"quiet", []mps.Status{{ID: "uid-1", State: mps.Ready, Restarts: 2}}, []string{"a well"}},
		{"hangs", []mps.Status{{ID: "uid-1", State: mps.Stalled, Restarts: 2}}, []string{"a ill", "uid-1 MPSDaemonStalled"}},
		{"another's", []mps.Status{{ID: "uid-1", State: mps.Stalled, Restarts: 2}, {ID: "x", State: mps.Dead}}, []string{"a ill"}},
		{"its claim ended", []mps.Status{{ID: "x", State: mps.Dead}}, []string{"a well"}},
		{
			"two on one GPU",
			[]mps.Status{{ID: "uid-1", State: mps.Stalled}, {ID: "uid-2", State: mps.Stalled}},
			[]string{"a ill", "a ill"},
		},
		{"one of them ended", []mps.Status{{ID: "uid-2", State: mps.Stalled}}, []string{"a ill"}},
		{"the other is well", []mps.Status{{ID: "uid-2", State: mps.Ready}}, []string{"a well"}},
	} {
		s.daemons, said = nil, nil
		for _, daemon := range tc.daemons {
			daemon.Devices = []string{"GPU-1", "GPU-2"}
			s.daemons = append(s.daemons, daemon)
		}
		w.look(t.Context())
		if diff := cmp.Diff(tc.want, said); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.what, diff)
		}
	}
}

// TestFirstLookBlames: what an earlier process reported is taken back before the first look's own findings, not after.
func TestFirstLookBlames(t *testing.T) {
	s, dir := serve(t)
	ill := map[string]string{}
	f, err := New(Config{
		HostRoot: t.TempDir(), StateDir: t.TempDir(), BootID: "boot", Supervisor: dir,
		Devices: func() map[string]string { return map[string]string{"a": "GPU-1", "b": "GPU-2"} },
		Load: func(uid string) (*record.Record, error) {
			return &record.Record{UID: uid, Devices: []record.Device{{Name: "a"}}}, nil
		},
		Level:      func(_ context.Context, device, problem string) { ill[device] = problem },
		ClaimEvent: func(*record.Record, string, string, string) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.daemons = []mps.Status{{ID: "uid-1", State: mps.Dead, Devices: []string{"GPU-1"}}}
	(&watcher{Feature: f}).look(t.Context())
	if ill["a"] == "" || ill["b"] != "" {
		t.Errorf("the devices' problems are %q", ill)
	}
}

// TestOrphanedDaemon: a daemon of a MIG instance leaves no setting by which a claim without a record could be found, only itself.
func TestOrphanedDaemon(t *testing.T) {
	s, dir := serve(t)
	root := t.TempDir()
	f, err := New(Config{
		HostRoot: t.TempDir(), StateDir: t.TempDir(), BootID: "boot", Supervisor: dir, HostDriverRoot: root,
		Devices: func() map[string]string {
			return map[string]string{"whole": "GPU-1", "unread": "", "instance": "MIG-1"}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.daemons = []mps.Status{
		{ID: "uid-1", State: mps.Ready, Devices: []string{"MIG-1"}},
		{ID: "uid-2", Devices: []string{"MIG-gone"}},
		{ID: "old"},
	}
	instance := device.Device{Kind: device.KindGPU, Name: "instance"}
	if diff := cmp.Diff([]prepare.Orphan{{UID: "uid-1", Device: instance}}, f.Orphans(t.Context())); diff != "" {
		t.Errorf("orphans (-want +got):\n%s", diff)
	}
	steps, err := f.Leftovers(t.Context(), "uid-1", instance)
	if err != nil || len(steps) != 1 || steps[0].Kind != mps.StepKind || steps[0].Target != "uid-1" {
		t.Errorf("left over: %v, %v, want the end of its daemon", steps, err)
	}
	for _, uid := range []string{"uid-3", "uid-4"} { // one has a mount, and no daemon
		check.Must(t, os.MkdirAll(filepath.Join(mps.HostMemoryDir(root), "uid-3", mps.PipeName), 0o700))
		steps, err := f.Leftovers(t.Context(), uid, instance)
		if err != nil || (len(steps) == 1) != (uid == "uid-3") {
			t.Errorf("left over of %s: %v, %v", uid, steps, err)
		}
	}
}

// TestLeftoverWithoutSupervisor: the daemon of a claim whose record is lost is not started again by a supervisor that begins after that
// claim ended.
func TestLeftoverWithoutSupervisor(t *testing.T) {
	dir := t.TempDir()
	listed := filepath.Join(dir, mps.ListName, "uid-1")
	check.Must(t, os.Mkdir(filepath.Dir(listed), 0o700), os.WriteFile(listed, []byte("{}"), 0o600))
	f, err := New(Config{HostRoot: t.TempDir(), StateDir: t.TempDir(), BootID: "boot", Supervisor: dir})
	check.Must(t, err)
	steps, err := f.Leftovers(t.Context(), "uid-1", device.Device{Kind: device.KindGPU, Name: "nvidia-0000-18-00-0"})
	check.Must(t, err)
	for _, s := range steps {
		check.Must(t, f.Kinds().Undo(t.Context(), s))
	}
	if _, err := os.Lstat(listed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the next supervisor starts the daemon: %v", err)
	}
}

// TestUnreadablePoint: a restore point that cannot be read keeps what is left on its own GPU from being found, and on no other.
func TestUnreadablePoint(t *testing.T) {
	f, err := New(Config{HostRoot: t.TempDir(), StateDir: t.TempDir(), BootID: "boot"})
	check.Must(t, err)
	check.Must(t, f.points.Make())
	point := step.Step{Kind: timeslice.StepKind, Target: "0000:18:00.0", Params: []byte("{}")}
	_, err = f.points.Begin("uid-1", point)
	check.Must(t, err)
	check.Must(t, os.WriteFile(filepath.Join(f.StateDir, pointsDir, timeslice.StepKind+"_0000:2a:00.0.json"), []byte("{"), 0o600))
	whole := device.Device{Kind: device.KindGPU, Name: "nvidia-0000-18-00-0"}
	if diff := cmp.Diff([]prepare.Orphan{{UID: "uid-1", Device: whole}}, f.Orphans(t.Context())); diff != "" {
		t.Errorf("orphans (-want +got):\n%s", diff)
	}
	if steps, err := f.Leftovers(t.Context(), "uid-1", whole); err != nil || len(steps) != 1 {
		t.Errorf("left over: %v, %v", steps, err)
	}
	whole.Name = "nvidia-0000-2a-00-0"
	if _, err := f.Leftovers(t.Context(), "uid-1", whole); err == nil || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("where it cannot be read: %v", err)
	}
}

// TestHangingSupervisor: a supervisor that takes a question and never answers ends neither the search for orphans nor what is left of a
// claim, and others are found all the same.
func TestHangingSupervisor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, mps.SocketName))
	check.Must(t, err)
	defer listener.Close() //nolint:errcheck // nobody listens
	f, err := New(Config{HostRoot: t.TempDir(), StateDir: t.TempDir(), BootID: "boot", Supervisor: dir})
	check.Must(t, err)
	check.Must(t, f.points.Make())
	_, err = f.points.Begin("uid-1", step.Step{Kind: timeslice.StepKind, Target: "0000:18:00.0", Params: []byte("{}")})
	check.Must(t, err)
	whole := device.Device{Kind: device.KindGPU, Name: "nvidia-0000-18-00-0"}
	if diff := cmp.Diff([]prepare.Orphan{{UID: "uid-1", Device: whole}}, f.Orphans(t.Context())); diff != "" {
		t.Errorf("orphans (-want +got):\n%s", diff)
	}
	_, err = f.Leftovers(t.Context(), "uid-1", whole)
	check.WantErr(t, err, context.DeadlineExceeded, "supervisor")
}

// TestLevelEnds: the problem of a device ends with that of its daemon, although the device has no UUID then, or is not listed, and although
// it is listed only some time after a new process began.
func TestLevelEnds(t *testing.T) {
	s, dir := serve(t)
	ill := map[string]string{}
	listed := map[string]string{"a": "GPU-1"}
	f, err := New(Config{
		HostRoot: t.TempDir(), StateDir: t.TempDir(), BootID: "boot", Supervisor: dir,
		Devices: func() map[string]string { return listed },
		Load: func(uid string) (*record.Record, error) {
			return &record.Record{UID: uid, Devices: []record.Device{{Name: "a"}}}, nil
		},
		Level:      func(_ context.Context, device, problem string) { ill[device] = problem },
		ClaimEvent: func(*record.Record, string, string, string) {},
	})
	check.Must(t, err)
	look := func(w *watcher, state mps.State) {
		s.daemons = []mps.Status{{ID: "uid-1", State: state, Devices: []string{"GPU-1"}}}
		w.look(t.Context())
	}
	for name, meanwhile := range map[string]map[string]string{"without a UUID": {"a": ""}, "not listed": {}} {
		w := &watcher{Feature: f}
		look(w, mps.Ready)
		look(w, mps.Dead)
		if ill["a"] == "" {
			t.Fatalf("%s: a dead daemon is no problem of its device", name)
		}
		listed = meanwhile
		look(w, mps.Dead)
		look(w, mps.Ready)
		if ill["a"] != "" {
			t.Errorf("%s: the problem stays: %q", name, ill["a"])
		}
		listed = map[string]string{"a": "GPU-1"}
	}
	ill["a"], listed = "an earlier process's", map[string]string{}
	w := &watcher{Feature: f}
	look(w, mps.Ready)
	listed = map[string]string{"a": "GPU-1"}
	look(w, mps.Ready)
	if ill["a"] != "" {
		t.Errorf("after a restart the problem stays: %q", ill["a"])
	}
}
