// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/test/check"
)

const gpu, instance = "GPU-00000001-0000-4000-8000-000000000000", "MIG-00000003-0000-4000-8000-000000000000"

// asStranger makes the test binary a client of the socket that it names.
const asStranger = "TEST_AS_STRANGER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asStranger); dir != "" {
		_, err := Client{Dir: dir}.List(context.Background())
		fmt.Print(err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		d    Daemon
		want string
	}{
		{"whole", Daemon{ID: "u-1", Devices: []string{gpu}, ActiveThreadPercentage: 100, PinnedMemoryMiB: map[string]int64{gpu: 1}}, ""},
		{"instance", Daemon{ID: "u-1", Devices: []string{instance}}, ""},
		{"older instance", Daemon{ID: "u-1", Devices: []string{"MIG-" + gpu + "/1/0"}}, ""},
		{"no id", Daemon{Devices: []string{gpu}}, `id ""`},
		{"a way out", Daemon{ID: "../x", Devices: []string{gpu}}, "id"},
		{"hidden", Daemon{ID: ".x", Devices: []string{gpu}}, "id"},
		{"no device", Daemon{ID: "u"}, "0 devices"},
		{"index", Daemon{ID: "u", Devices: []string{"0"}}, `device "0"`},
		{"more than a UUID", Daemon{ID: "u", Devices: []string{gpu + "\nquit"}}, "want the UUID"},
		{"twice", Daemon{ID: "u", Devices: []string{gpu, gpu}}, "twice"},
		{"two instances", Daemon{ID: "u", Devices: []string{gpu, instance}}, "daemon of its own"},
		{"percentage", Daemon{ID: "u", Devices: []string{gpu}, ActiveThreadPercentage: 101}, "want 1 to 100"},
		{"negative", Daemon{ID: "u", Devices: []string{gpu}, ActiveThreadPercentage: -1}, "want 1 to 100"},
		{"another's memory", Daemon{ID: "u", Devices: []string{gpu}, PinnedMemoryMiB: map[string]int64{instance: 1}}, "not one of the devices"},
		{"no memory", Daemon{ID: "u", Devices: []string{gpu}, PinnedMemoryMiB: map[string]int64{gpu: 0}}, "0 MiB"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.d.Validate()
			if tc.want == "" && err != nil || tc.want != "" && (!errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if _, err := plain(&tc.d).Step(); (err == nil) != (tc.want == "") {
				t.Errorf("step: %v", err)
			}
		})
	}
}

func TestEdits(t *testing.T) {
	for memory, dir := range map[bool]string{false: "mps", true: "mps-memory"} {
		p := Params{Daemon: Daemon{ID: "u-1", Devices: []string{gpu}}, Memory: memory}
		got := p.Edits("/run/nvidia/driver")
		want := container.Edits{
			Env: []string{"CUDA_MPS_PIPE_DIRECTORY=/run/fettle/mps"},
			Mounts: []container.Mount{{
				HostPath: "/run/nvidia/driver/run/fettle/" + dir + "/u-1/pipe", ContainerPath: "/run/fettle/mps", NonRecursive: true,
			}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("edits (-want +got):\n%s", diff)
		}
		if faults := got.Validate(); len(faults) > 0 {
			t.Error(faults)
		}
	}
}

// TestNeeds: what fits into the directories of a claim counts for its namespace. Plain ones have no bound that could.
func TestNeeds(t *testing.T) {
	for memory, want := range map[bool][]budget.Need{
		false: nil, true: {{Resource: budget.Mounts, Amount: 2}, {Resource: budget.Memory, Amount: 2 * (8<<20 + 2048<<10)}},
	} {
		s, err := (&Params{Daemon: Daemon{ID: "u-1", Devices: []string{gpu}}, Memory: memory}).Step()
		check.Must(t, err)
		got, err := Runner{}.Kinds().Needs(s)
		check.Must(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("memory %t (-want +got):\n%s", memory, diff)
		}
	}
}

// plain is a daemon with directories that are no mounts.
func plain(d *Daemon) *Params { return &Params{Daemon: *d} }

// fake is a supervisor of which daemons are as the test says.
type fake struct {
	mu      sync.Mutex
	daemons map[string]Daemon
	state   State
	stopped []string
	// memory are the daemons with directories in memory. Nil: a supervisor of an earlier version.
	memory map[string]bool
}

func (f *fake) Memory() bool { return f.memory != nil }

func (f *fake) Run(d Daemon) (Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if had, ok := f.daemons[d.ID]; ok && !had.Same(&d) {
		return Status{}, fmt.Errorf("MPS daemon %s %w", d.ID, ErrConflict)
	}
	f.daemons[d.ID] = d
	return Status{ID: d.ID, State: f.state, Reason: "a reason", Restarts: 2, Memory: f.memory[d.ID]}, nil
}

func (f *fake) Stop(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.daemons, id)
	f.stopped = append(f.stopped, id)
	return nil
}

func (f *fake) List() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []Status{}
	for id := range f.daemons {
		out = append(out, Status{ID: id, State: f.state, Memory: f.memory[id]})
	}
	return out
}

func serve(t *testing.T, f *fake, uid uint32) Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps") //nolint:usetesting // another user must reach it
	check.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := Listen(t.Context(), filepath.Join(dir, SocketName))
	check.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, listener, uid, f) }()
	t.Cleanup(func() {
		cancel()
		check.Must(t, <-ended)
	})
	return Client{Dir: dir}
}

// shortListener fails once since the process has no file left.
type shortListener struct {
	net.Listener

	failed bool
}

func (l *shortListener) Accept() (net.Conn, error) {
	if !l.failed {
		l.failed = true
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// TestServeShort: a supervisor without a file for one more client goes on, since its daemons would end with it, and answers later.
func TestServeShort(t *testing.T) {
	dir := t.TempDir()
	listener, err := Listen(t.Context(), filepath.Join(dir, SocketName))
	check.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	f := &fake{daemons: map[string]Daemon{"u-1": {}}, state: Ready}
	go func() { ended <- Serve(ctx, &shortListener{Listener: listener}, uint32(os.Geteuid()), f) }()
	asked, giveUp := context.WithTimeout(t.Context(), check.Patience)
	defer giveUp()
	found := make(chan error, 1)
	go func() {
		list, err := Client{Dir: dir}.List(asked)
		if err == nil && len(list) != 1 {
			err = fmt.Errorf("got %v", list)
		}
		found <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("it ended: %v", err)
	case err := <-found:
		check.Must(t, err)
	}
	cancel()
	check.Must(t, <-ended)
}

// TestProtocol: each operation arrives as it was asked, and each kind of refusal comes back as itself.
func TestProtocol(t *testing.T) {
	f := &fake{daemons: map[string]Daemon{}, state: Starting}
	c := serve(t, f, uint32(os.Geteuid()))
	d := &Daemon{ID: "u-1", Devices: []string{gpu}, ActiveThreadPercentage: 5, PinnedMemoryMiB: map[string]int64{gpu: 7}, MultiUser: true}
	status, err := c.Run(t.Context(), d)
	check.Must(t, err)
	if diff := cmp.Diff(Status{ID: "u-1", State: Starting, Reason: "a reason", Restarts: 2}, status); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(*d, f.daemons["u-1"]); diff != "" {
		t.Error(diff)
	}
	check.GrowingLimit(t, "an answer with the reason", func(limit time.Duration) bool {
		err := Runner{Client: c, Wait: limit}.Ensure(t.Context(), plain(d))
		if !errors.Is(err, ErrNotReady) {
			t.Fatalf("not ready: %v", err)
		}
		return strings.Contains(err.Error(), "a reason") && strings.Contains(err.Error(), "2 times")
	})
	other := *d
	other.MultiUser = false
	if _, err := c.Run(t.Context(), &other); !errors.Is(err, ErrConflict) {
		t.Errorf("other settings: %v", err)
	}
	all, err := c.List(t.Context())
	check.Must(t, err)
	if diff := cmp.Diff([]Status{{ID: "u-1", State: Starting}}, all); diff != "" {
		t.Error(diff)
	}
	leftover, err := Leftover("u-1")
	check.Must(t, err)
	check.Must(t, Runner{Client: c, Memory: hostmount.In(t.TempDir(), "")}.Kinds().Undo(t.Context(), leftover))
	if _, err := Leftover("../x"); !errors.Is(err, ErrInvalid) {
		t.Errorf("leftover ../x: %v", err)
	}
	if err := c.Stop(t.Context(), "../x"); !errors.Is(err, ErrInvalid) {
		t.Errorf("stop ../x: %v", err)
	}
	if diff := cmp.Diff([]string{"u-1"}, f.stopped); diff != "" {
		t.Error(diff)
	}
}

// TestOddRequests: what is not a whole request of this version changes nothing, and is answered with the reason.
func TestOddRequests(t *testing.T) {
	f := &fake{daemons: map[string]Daemon{}, state: Ready}
	c := serve(t, f, uint32(os.Geteuid()))
	for text, want := range map[string]string{
		"":                                  "EOF",
		"{":                                 "EOF",
		`{"version":2,"op":"list"}`:         "version 2",
		`{"version":1,"op":"list","x":1}`:   "unknown field",
		`{"version":1,"op":"list"}{}`:       "more behind",
		`{"version":1,"op":"exec"}`:         `"exec"`,
		`{"version":1,"op":"run"}`:          "want run with a daemon",
		`{"version":1,"op":"stop"}`:         "no valid id",
		strings.Repeat(" ", maxRequest+100): "more than",
		`{"version":1,"op":"run","daemon":{"id":"u","devices":["0"]}}`: "want the UUID",
	} {
		conn, err := net.Dial("unix", filepath.Join(c.Dir, SocketName))
		check.Must(t, err)
		_, err = io.WriteString(conn, text)
		check.Must(t, err)
		check.Must(t, conn.(*net.UnixConn).CloseWrite())
		data, err := io.ReadAll(conn)
		if len(text) <= maxRequest { // the rest of what is too long is not read, so the connection may break
			check.Must(t, err)
		}
		a, err := parseAnswer(data)
		check.Must(t, err)
		if !strings.Contains(a.Error, want) {
			t.Errorf("%.40q: %q, want %q", text, a.Error, want)
		}
		check.Must(t, conn.Close())
	}
	if len(f.daemons) > 0 {
		t.Errorf("it runs %v", f.daemons)
	}
}

// TestOddAnswers: what is not a whole answer is an error, never an empty list.
func TestOddAnswers(t *testing.T) {
	for _, text := range []string{"", "{", `{}`, `{"version":2}`, `{"version":1}{}`, `[]`, strings.Repeat(" ", maxAnswer+1)} {
		dir := t.TempDir()
		listener, err := net.Listen("unix", filepath.Join(dir, SocketName))
		check.Must(t, err)
		go func() {
			if conn, err := listener.Accept(); err == nil {
				_, _ = io.ReadAll(conn)
				_, _ = io.WriteString(conn, text)
				_ = conn.Close()
			}
		}()
		if all, err := (Client{Dir: dir}).List(t.Context()); err == nil {
			t.Errorf("%.20q: %v", text, all)
		}
		check.Must(t, listener.Close())
	}
}

// TestSilentSupervisor: a question ends with its context.
func TestSilentSupervisor(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, SocketName))
	check.Must(t, err)
	defer listener.Close() //nolint:errcheck // the test is over
	connected := make(chan net.Conn, 2)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connected <- conn
		}
	}()
	ctx, pass := check.Deadline(t)
	ended := make(chan error, 1)
	go func() {
		_, err := (Client{Dir: dir}).List(ctx)
		ended <- err
	}()
	defer (<-connected).Close() //nolint:errcheck // the test is over
	pass()
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
	// fragile: the supervisor never answers, so that no limit is too short
	err = Runner{Client: Client{Dir: dir}, Wait: 50 * time.Millisecond}.Ensure(t.Context(), plain(&Daemon{ID: "u", Devices: []string{gpu}}))
	if !errors.Is(err, ErrNotReady) {
		t.Errorf("error %v, want ErrNotReady", err)
	}
}

// TestOtherUser: the kernel's word counts, also where the socket's mode would let a stranger in.
func TestOtherUser(t *testing.T) {
	f := &fake{daemons: map[string]Daemon{}, state: Ready}
	c := serve(t, f, uint32(os.Geteuid())+1)
	if _, err := c.List(t.Context()); err == nil || !strings.Contains(err.Error(), "may not ask") {
		t.Errorf("error %v, want a refusal of this user", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to be another user")
	}
	c = serve(t, f, 0)
	info, err := os.Stat(filepath.Join(c.Dir, SocketName))
	check.Must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %s", info.Mode())
	}
	check.Must(t, errors.Join(os.Chmod(filepath.Join(c.Dir, SocketName), 0o666), os.Chmod(c.Dir, 0o755)))
	self, err := os.ReadFile(os.Args[0])
	check.Must(t, err)
	program := filepath.Join(c.Dir, "stranger")
	check.Must(t, os.WriteFile(program, self, 0o755))
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = []string{asStranger + "=" + c.Dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	check.Must(t, err)
	if !strings.Contains(string(out), "user 65534 may not ask") {
		t.Errorf("a stranger was told %q", out)
	}
}

// TestStopWithoutSupervisor: the daemon leaves the list, so that no later supervisor runs it.
func TestStopWithoutSupervisor(t *testing.T) {
	c := Client{Dir: t.TempDir()}
	check.Must(t, c.Stop(t.Context(), "u-1")) // there never was a supervisor
	check.Must(t, os.MkdirAll(filepath.Join(c.Dir, ListName), 0o700))
	path := filepath.Join(c.Dir, ListName, "u-1")
	check.Must(t, os.WriteFile(path, nil, 0o600))
	check.Must(t, c.Stop(t.Context(), "u-1"))
	if _, err := os.Stat(path); err == nil {
		t.Error("the daemon is still on the list")
	}
	if _, err := c.List(t.Context()); !errors.Is(err, ErrNoSupervisor) {
		t.Errorf("list: %v", err)
	}
}

// FuzzRequest: a request that is taken is valid, and is the same after another round.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"version":1,"op":"list"}`))
	f.Add([]byte(`{"version":1,"op":"stop","id":"u-1"}`))
	f.Add([]byte(`{"version":1,"op":"run","daemon":{"id":"u","devices":["` + gpu + `"],"pinnedMemoryMiB":{"` + gpu + `":1}}}`))
	f.Add([]byte(`{"version":1,"op":"run","daemon":null}`))
	f.Add([]byte(`{"version":1,"op":"run","dAemon":{"id":"0","deviCes":["` + gpu + `"],"pinnedMemorYMiB":{}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRequest(data)
		if err != nil {
			return
		}
		switch {
		case r.Daemon != nil && (r.Op != opRun || r.Daemon.Validate() != nil),
			r.ID != "" && (r.Op != opStop || strings.ContainsAny(r.ID, "/\n\x00") || r.ID[0] == '.'):
			t.Errorf("%q was taken as %+v", data, r)
		}
		again, err := json.Marshal(r)
		check.Must(t, err)
		same, err := parseRequest(again)
		check.Must(t, err)
		if r.Op != same.Op || r.ID != same.ID || (r.Daemon == nil) != (same.Daemon == nil) || r.Daemon != nil && !r.Daemon.Same(same.Daemon) {
			t.Errorf("%q was taken as %+v, and again as %+v", data, r, same)
		}
	})
}

// FuzzAnswer: no answer is worse than an error.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"version":1,"daemons":[{"id":"u","state":"ready"}]}`))
	f.Add([]byte(`{"version":1,"error":"no","fault":"conflict"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if a, err := parseAnswer(data); err == nil && a.Version != protocolVersion {
			t.Errorf("%q was taken as %+v", data, a)
		}
	})
}
