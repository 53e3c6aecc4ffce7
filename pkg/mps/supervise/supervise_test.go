// SPDX-License-Identifier: Apache-2.0

package supervise_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/pkg/mps/supervise"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/mpssim"
)

const gpu1, gpu2, instance = "GPU-00000001-0000-4000-8000-000000000000", "GPU-00000002-0000-4000-8000-000000000000",
	"MIG-00000003-0000-4000-8000-000000000000"

// programs has the stand-in and its client, built for all tests. A child that a test kills is given its parent's by programsVariable.
var programs string //nolint:gochecknoglobals // TestMain gives it to the tests

const programsVariable = "FETTLE_TEST_MPS_PROGRAMS"

func TestMain(m *testing.M) { os.Exit(main(m)) }

func main(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("the supervisor's tests need root: chroot and setuid")
		return 0
	}
	if programs = os.Getenv(programsVariable); programs != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "mps-programs-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	build := exec.Command("go", "build", "-o", dir+"/", "../../../test/mpssim/nvidia-cuda-mps-control", "../../../test/mpssim/client")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v: %s", err, out))
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	programs = dir
	if err := os.Setenv(programsVariable, dir); err != nil {
		panic(err)
	}
	return m.Run()
}

// node is a node with a driver root, in which the stand-in is installed, and a supervisor.
type node struct {
	t      testing.TB
	root   string
	dir    string
	bin    string
	bootID string
	// looks is the supervisor's Check, grace its Grace. Both are longer than any test but where a daemon does not answer.
	looks, grace time.Duration
	// relabel is the supervisor's Relabel. Nil: its default.
	relabel func(path, context string) error
	// memory says that directories are the claims' mounts.
	memory bool
	s      *supervise.Supervisor
	stop   func()
}

func newNode(t testing.TB) *node {
	t.Helper()
	base, err := os.MkdirTemp("", "mps") //nolint:usetesting // short: sockets have short paths
	check.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	check.Must(t, os.Chmod(base, 0o755))
	n := &node{
		t: t, root: filepath.Join(base, "driver"), dir: filepath.Join(base, "own"), bootID: "boot-1",
		looks: check.Patience, grace: check.Patience,
	}
	n.bin = filepath.Join(n.root, "usr/bin")
	check.Must(t, os.MkdirAll(n.bin, 0o755))
	check.Must(t, os.MkdirAll(n.dir, 0o700))
	data, err := os.ReadFile(filepath.Join(programs, mps.Program))
	check.Must(t, err)
	check.Must(t, os.WriteFile(filepath.Join(n.bin, mps.Program), data, 0o755))
	return n
}

func (n *node) config() supervise.Config {
	return supervise.Config{
		Root: n.root, Dir: n.dir, BootID: n.bootID, FS: disk.OS{}, Relabel: n.relabel,
		ReadyIn: check.Patience, Grace: n.grace, Check: n.looks, Pause: 100 * time.Millisecond,
	}
}

// start starts a supervisor. What it returns ends it as SIGTERM does.
func (n *node) start() mps.Client {
	n.t.Helper()
	s, err := supervise.Open(n.t.Context(), n.config())
	check.Must(n.t, err)
	listener, err := mps.Listen(n.t.Context(), filepath.Join(n.dir, mps.SocketName))
	check.Must(n.t, err)
	check.Must(n.t, s.Start())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mps.Serve(ctx, listener, uint32(os.Geteuid()), s) }()
	n.s = s
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-ended, s.Close()); err != nil {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(n.stop)
	return mps.Client{Dir: n.dir}
}

func (n *node) status(id string) mps.Status {
	for _, s := range n.s.List() {
		if s.ID == id {
			return s
		}
	}
	return mps.Status{}
}

// pipes is the pipe directory of a daemon, as the host has it.
func (n *node) pipes(id string) string { return n.at(id, mps.PipeName) }

// at is a directory of a daemon, as the host has it.
func (n *node) at(id, name string) string {
	if n.memory {
		return filepath.Join(mps.HostMemoryDir(n.root), id, name)
	}
	return filepath.Join(mps.HostDir(n.root), id, name)
}

// pid is that of the daemon's process.
func (n *node) pid(id string) int {
	data, err := os.ReadFile(filepath.Join(n.pipes(id), "nvidia-cuda-mps-control.pid"))
	check.Must(n.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	check.Must(n.t, err)
	return pid
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// client starts a program that joins the daemon as a user, and returns what it said at first.
func (n *node) client(id string, uid uint32) (said string, cmd *exec.Cmd) {
	n.t.Helper()
	// A mount at a place of its own is what a container has: the way to the directory is not searched by the client's user.
	cmd = exec.CommandContext(n.t.Context(), filepath.Join(programs, "client"))
	cmd.Env = []string{mps.PipeDirectory + "=" + n.pipes(id)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: true}}
	out, err := cmd.StdoutPipe()
	check.Must(n.t, err)
	check.Must(n.t, cmd.Start())
	n.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	buffer := make([]byte, 4096)
	for !strings.Contains(said, "joined") && !strings.Contains(said, "without") {
		read, err := out.Read(buffer)
		said += string(buffer[:read])
		if err != nil {
			break
		}
	}
	return said, cmd
}

func (n *node) runner(c mps.Client) mps.Runner {
	return mps.Runner{Client: c, Memory: hostmount.In(mps.HostMemoryDir(n.root), ""), Wait: check.Patience}
}

// params are those of a daemon on this node.
func (n *node) params(d *mps.Daemon) *mps.Params { return &mps.Params{Daemon: *d, Memory: n.memory} }

func limited() *mps.Daemon {
	return &mps.Daemon{
		ID: "uid-1", Devices: []string{gpu1, gpu2}, ActiveThreadPercentage: 40,
		PinnedMemoryMiB: map[string]int64{gpu1: 512, gpu2: 1024}, MultiUser: true,
	}
}

// toldLimits is what clients of that daemon are told, whoever they are.
const toldLimits = "user=0 percentage=40.0 pinned:" + gpu1 + "=512M pinned:" + gpu2 + "=1024M devices=" + gpu1 + "," + gpu2

// TestReady: a claim's daemon has the claim's limits, clients of any user join it and are told them, and nothing is left after Undo.
func TestReady(t *testing.T) {
	n := newNode(t)
	c := n.start()
	kinds := n.runner(c).Kinds()
	s, err := n.params(limited()).Step()
	check.Must(t, err)
	check.Must(t, kinds.Apply(t.Context(), s))
	check.Must(t, kinds.Apply(t.Context(), s))
	check.Must(t, kinds.Verify(t.Context(), s))
	var clients []*exec.Cmd
	for _, uid := range []uint32{0, 1000, 65534} {
		said, cmd := n.client("uid-1", uid)
		if !strings.Contains(said, toldLimits) {
			t.Errorf("user %d: %q, want %q", uid, said, toldLimits)
		}
		clients = append(clients, cmd)
	}
	pid := n.pid("uid-1")
	check.Must(t, kinds.Undo(t.Context(), s))
	check.Must(t, kinds.Undo(t.Context(), s))
	if alive(pid) {
		t.Errorf("process %d is left", pid)
	}
	for _, cmd := range clients {
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 3 {
			t.Errorf("a client ended with %v, want status 3: its daemon ended", err)
		}
	}
	left, err := filepath.Glob(mps.HostDir(n.root) + "/*")
	check.Must(t, err)
	listed, err := filepath.Glob(filepath.Join(n.dir, mps.ListName, "*"))
	check.Must(t, err)
	if len(left)+len(listed) > 0 {
		t.Errorf("%q and %q are left", left, listed)
	}
}

// TestLimits: a daemon has the limits both by the variables that it is started with, which hold for clients that come at once, and by
// commands. Each of the two is enough for its clients to have them.
func TestLimits(t *testing.T) {
	for _, from := range []string{mpssim.FromVariables, mpssim.FromCommands} {
		t.Run(from, func(t *testing.T) {
			n := newNode(t)
			check.Must(t, mpssim.Settings{LimitsFrom: from}.Write(n.bin))
			c := n.start()
			d := limited()
			check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
			if said, _ := n.client(d.ID, 0); !strings.Contains(said, toldLimits) {
				t.Errorf("a client was told %q, want %q", said, toldLimits)
			}
		})
	}
}

// TestUsers: without multi-user a client that is not root has a server of its own user, which must reach the pipes. A client of another
// user waits until it has ended.
func TestUsers(t *testing.T) {
	n := newNode(t)
	c := n.start()
	d := &mps.Daemon{ID: "uid-1", Devices: []string{instance}}
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
	said, first := n.client(d.ID, 1000)
	if !strings.Contains(said, "user=1000 percentage=100.0 devices="+instance) {
		t.Fatalf("first client: %q", said)
	}
	second := make(chan string, 1)
	go func() {
		said, _ := n.client(d.ID, 2000)
		second <- said
	}()
	check.Eventually(t, "the daemon hears the second client", func() bool {
		log, err := os.ReadFile(filepath.Join(mps.HostDir(n.root), d.ID, mps.LogName, "control.log"))
		check.Must(t, err)
		return strings.Contains(string(log), "from user 2000")
	})
	select {
	case said := <-second:
		t.Errorf("the second user's client did not wait: %q", said)
	default:
	}
	check.Must(t, first.Process.Kill())
	if said := <-second; !strings.Contains(said, "user=2000") {
		t.Errorf("second client: %q", said)
	}
}

// TestTogether: clients that come at the same time have one server.
func TestTogether(t *testing.T) {
	n := newNode(t)
	c := n.start()
	d := limited()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
	const clients = 8
	said := make(chan string, clients)
	for range clients {
		go func() {
			text, _ := n.client(d.ID, 0)
			said <- text
		}()
	}
	first := regexp.MustCompile(`server=\d+`)
	servers := map[string]bool{}
	for range clients {
		servers[first.FindString(<-said)] = true
	}
	if len(servers) != 1 || servers[""] {
		t.Errorf("servers of %d clients: %v, want one", clients, servers)
	}
}

// TestDies: a daemon that is killed is started again with its limits, and the restart and its reason are told.
func TestDies(t *testing.T) {
	n := newNode(t)
	c := n.start()
	d := limited()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
	_, client := n.client(d.ID, 0)
	pid := n.pid(d.ID)
	check.Must(t, mpssim.Settings{FailStart: "no license for this GPU"}.Write(n.bin))
	check.Must(t, syscall.Kill(pid, syscall.SIGKILL))
	check.Eventually(t, "the daemon is dead, with the reason", func() bool {
		s := n.status(d.ID)
		return s.State == mps.Dead && strings.Contains(s.Reason, "no license for this GPU") && s.Restarts > 0
	})
	check.GrowingLimit(t, "an answer with the reason", func(limit time.Duration) bool {
		err := mps.Runner{Client: c, Wait: limit}.Ensure(t.Context(), n.params(d))
		if !errors.Is(err, mps.ErrNotReady) {
			t.Fatalf("error %v, want ErrNotReady", err)
		}
		return strings.Contains(err.Error(), "no license")
	})
	if err := client.Wait(); err == nil {
		t.Error("the client outlives its daemon")
	}
	check.Must(t, mpssim.Settings{}.Write(n.bin))
	check.Eventually(t, "the daemon is ready again", func() bool { return n.status(d.ID).State == mps.Ready })
	if said, _ := n.client(d.ID, 1000); !strings.Contains(said, "percentage=40.0") {
		t.Errorf("a client of the new process was told %q", said)
	}
}

// TestSlow: a daemon that is not ready within a call goes on starting, and the next call finds it further.
func TestSlow(t *testing.T) {
	n := newNode(t)
	check.Must(t, mpssim.Settings{StartsWith: "gate"}.Write(n.bin))
	c := n.start()
	d := limited()
	ctx, pass := check.Deadline(t)
	ended := make(chan error, 1)
	go func() { ended <- n.runner(c).Ensure(ctx, n.params(d)) }()
	check.Eventually(t, "the daemon is started", func() bool { return n.status(d.ID).State == mps.Starting })
	pass()
	if err := <-ended; !errors.Is(err, mps.ErrNotReady) {
		t.Fatalf("error %v, want ErrNotReady", err)
	}
	check.Must(t, os.WriteFile(filepath.Join(n.bin, "gate"), nil, 0o600))
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
	if s := n.status(d.ID); s.Restarts != 0 {
		t.Errorf("status %+v, want the first process", s)
	}
}

// TestDeaf: a daemon that never answers is killed and started again; one that was ready and is silent now is told as stalled and lives on,
// and a stop kills it.
func TestDeaf(t *testing.T) {
	n := newNode(t)
	n.looks, n.grace = 200*time.Millisecond, 5*time.Second
	c := n.start()
	d := limited()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
	pid := n.pid(d.ID)
	check.Must(t, mpssim.Settings{Deaf: true}.Write(n.bin))
	check.Eventually(t, "the daemon is stalled", func() bool { return n.status(d.ID).State == mps.Stalled })
	if !alive(pid) {
		t.Error("the daemon was ended, which ends its clients")
	}
	check.Must(t, mpssim.Settings{}.Write(n.bin))
	check.Eventually(t, "the daemon is ready again", func() bool { return n.status(d.ID).State == mps.Ready })
	check.Must(t, mpssim.Settings{Deaf: true}.Write(n.bin))
	check.Must(t, c.Stop(t.Context(), d.ID))
	if alive(pid) {
		t.Error("the daemon is left")
	}
}

// TestNeverReady: a daemon that does not answer in time counts as dead.
func TestNeverReady(t *testing.T) {
	n := newNode(t)
	n.grace = 5 * time.Second
	check.Must(t, mpssim.Settings{Deaf: true, Stubborn: true}.Write(n.bin))
	config := n.config()
	config.ReadyIn = 300 * time.Millisecond // fragile: the daemon never answers, so that no limit is too short
	s, err := supervise.Open(t.Context(), config)
	check.Must(t, err)
	defer s.Close() //nolint:errcheck // the test is over
	check.Must(t, s.Start())
	_, err = s.Run(*limited())
	check.Must(t, err)
	check.Eventually(t, "it is dead, since it did not answer", func() bool {
		all := s.List()
		return all[0].State == mps.Dead && strings.Contains(all[0].Reason, "did not answer")
	})
}

// TestSupervisorEnds: the daemons end with the supervisor, and the next one runs the same; after a reboot it runs none.
func TestSupervisorEnds(t *testing.T) {
	n := newNode(t)
	c := n.start()
	d := limited()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
	pid := n.pid(d.ID)
	if _, err := supervise.Open(t.Context(), n.config()); !errors.Is(err, supervise.ErrRunning) {
		t.Errorf("a second supervisor: %v", err)
	}
	n.stop()
	if alive(pid) {
		t.Error("the daemon outlives the supervisor")
	}
	if _, err := c.List(t.Context()); !errors.Is(err, mps.ErrNoSupervisor) {
		t.Errorf("without a supervisor: %v", err)
	}
	n.start()
	check.Eventually(t, "the daemon is ready again", func() bool { return n.status(d.ID).State == mps.Ready })
	n.stop()
	n.bootID = "boot-2"
	c = n.start()
	all, err := c.List(t.Context())
	check.Must(t, err)
	left, err := filepath.Glob(mps.HostDir(n.root) + "/*")
	check.Must(t, err)
	if len(all)+len(left) > 0 {
		t.Errorf("after a reboot: %+v, %q", all, left)
	}
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
}

// TestStopWithoutSupervisor: a claim can be given back while no supervisor runs, and the next one does not run its daemon.
func TestStopWithoutSupervisor(t *testing.T) {
	n := newNode(t)
	c := n.start()
	d := limited()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
	n.stop()
	s, err := n.params(d).Step()
	check.Must(t, err)
	check.Must(t, n.runner(c).Kinds().Undo(t.Context(), s))
	check.Must(t, n.runner(c).Kinds().Undo(t.Context(), s))
	if err := n.runner(c).Kinds().Apply(t.Context(), s); !errors.Is(err, mps.ErrNoSupervisor) {
		t.Errorf("Apply: %v", err)
	}
	c = n.start()
	all, err := c.List(t.Context())
	check.Must(t, err)
	if len(all) > 0 {
		t.Errorf("it runs %+v", all)
	}
}

// TestManyClaims: claims that come and go at once have a daemon each, and none is left.
func TestManyClaims(t *testing.T) {
	n := newNode(t)
	c := n.start()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			d := &mps.Daemon{
				ID: fmt.Sprintf("uid-%d", i), Devices: []string{fmt.Sprintf("GPU-%08d-0000-4000-8000-000000000000", i)}, ActiveThreadPercentage: i + 1,
			}
			if err := n.runner(c).Ensure(t.Context(), n.params(d)); err != nil {
				t.Error(err)
				return
			}
			if said, _ := n.client(d.ID, 0); !strings.Contains(said, fmt.Sprintf("percentage=%d.0 devices=%s", i+1, d.Devices[0])) {
				t.Errorf("claim %d: %q", i, said)
			}
			if err := c.Stop(t.Context(), d.ID); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if left := n.s.List(); len(left) > 0 {
		t.Errorf("%+v are left", left)
	}
}

// TestRefused: other settings, devices that the machine lacks, and links that a container left in its pipe directory.
func TestRefused(t *testing.T) {
	n := newNode(t)
	c := n.start()
	d := limited()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
	other := limited()
	other.ActiveThreadPercentage = 41
	if err := n.runner(c).Ensure(t.Context(), n.params(other)); !errors.Is(err, mps.ErrConflict) {
		t.Errorf("other settings: %v", err)
	}
	check.Must(t, os.WriteFile(filepath.Join(n.bin, "machine"), []byte(`{"UUID":"`+gpu1+`"}`), 0o644))
	check.Must(t, mpssim.Settings{Machine: "machine"}.Write(n.bin))
	precious := filepath.Join(n.root, "precious")
	check.Must(t, os.WriteFile(precious, []byte("kept"), 0o600))
	check.Must(t, os.Symlink(precious, filepath.Join(n.pipes(d.ID), "link")))
	check.Must(t, os.Symlink(n.root, filepath.Join(n.pipes(d.ID), "dir")))
	check.Must(t, syscall.Kill(n.pid(d.ID), syscall.SIGKILL))
	check.Eventually(t, "the reason names the device", func() bool { return strings.Contains(n.status(d.ID).Reason, gpu2) })
	data, err := os.ReadFile(precious)
	check.Must(t, err)
	entries, err := os.ReadDir(n.pipes(d.ID))
	check.Must(t, err)
	if string(data) != "kept" || len(entries) > 1 { // the stand-in's lock
		t.Errorf("%q, and %v in the pipe directory", data, entries)
	}
	check.Must(t, os.Remove(filepath.Join(n.bin, mps.Program)))
	check.Eventually(t, "the reason says that the driver is not there", func() bool {
		return strings.Contains(n.status(d.ID).Reason, "not installed")
	})
}

// TestPlaces: the program is found through absolute links, which mean the driver root's files, and one that others may write is not run.
func TestPlaces(t *testing.T) {
	n := newNode(t)
	real := filepath.Join(n.root, "usr/lib/nvidia/current")
	check.Must(t, os.MkdirAll(real, 0o755))
	check.Must(t, os.Rename(filepath.Join(n.bin, mps.Program), filepath.Join(real, mps.Program)))
	check.Must(t, os.MkdirAll(filepath.Join(n.root, "etc/alternatives"), 0o755))
	check.Must(t, os.Symlink("/usr/lib/nvidia/current/"+mps.Program, filepath.Join(n.root, "etc/alternatives", mps.Program)))
	check.Must(t, os.Symlink("/etc/alternatives/"+mps.Program, filepath.Join(n.bin, mps.Program)))
	c := n.start()
	d := limited()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
	check.Must(t, os.Chmod(filepath.Join(real, mps.Program), 0o777))
	check.Must(t, syscall.Kill(n.pid(d.ID), syscall.SIGKILL))
	check.Eventually(t, "the reason names the mode", func() bool {
		return strings.Contains(n.status(d.ID).Reason, "only its owner can write")
	})
}

// TestLogs: a log that grew is cut.
func TestLogs(t *testing.T) {
	n := newNode(t)
	n.looks = 5 * time.Second // at a daemon and at its logs
	c := n.start()
	d := limited()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(d)))
	log := filepath.Join(mps.HostDir(n.root), d.ID, mps.LogName, "server.log")
	check.Must(t, os.WriteFile(log, nil, 0o644))
	check.Must(t, os.Truncate(log, 5<<20))
	check.Eventually(t, "the log is cut", func() bool {
		info, err := os.Stat(log)
		return err == nil && info.Size() < 1<<20
	})
}

// TestDamagedList: a file that cannot be read stops the supervisor, since its claim may have containers.
func TestDamagedList(t *testing.T) {
	n := newNode(t)
	check.Must(t, os.MkdirAll(filepath.Join(n.dir, mps.ListName), 0o700))
	path := filepath.Join(n.dir, mps.ListName, "uid-1")
	for _, text := range []string{
		"", "{}", `{"version":2,"bootID":"boot-1"}`, `{"version":1,"bootID":"boot-1","daemon":{"id":"uid-2","devices":["` + gpu1 + `"]}}`,
		`{"version":1,"bootID":"boot-1","daemon":{"id":"uid-1","devices":["../x"]}}`,
	} {
		check.Must(t, os.WriteFile(path, []byte(text), 0o600))
		s, err := supervise.Open(t.Context(), n.config())
		check.Must(t, err)
		if err := s.Start(); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", text, err)
		}
		check.Must(t, s.Close())
	}
	check.Must(t, os.Remove(path))
	check.Must(t, os.WriteFile(filepath.Join(n.dir, mps.ListName, disk.TemporaryPrefix+"uid-1-00000000"), []byte("{"), 0o600))
	n.start()
	if diff := cmp.Diff([]mps.Status{}, n.s.List()); diff != "" {
		t.Error(diff)
	}
}

// TestContext: the pipe directory has the SELinux context that lets containers use it before the daemon runs. If that is refused, it
// is not ready, and says why.
func TestContext(t *testing.T) {
	const context = "system_u:object_r:container_file_t:s0"
	n := newNode(t)
	var relabelled atomic.Value
	var refuse atomic.Bool
	refuse.Store(true)
	n.relabel = func(path, context string) error {
		if refuse.Load() {
			return syscall.EACCES
		}
		relabelled.Store(path + " " + context)
		return nil
	}
	client := n.start()
	d := limited()
	d.Context = context
	_, err := client.Run(t.Context(), d)
	check.Must(t, err)
	check.Eventually(t, "the daemon says that its directory has not the context", func() bool {
		s := n.status(d.ID)
		return s.State != mps.Ready && strings.Contains(s.Reason, "spc_t")
	})
	refuse.Store(false)
	check.Eventually(t, "the daemon is ready", func() bool { return n.status(d.ID).State == mps.Ready })
	if want := filepath.Join(n.root, mps.ClaimsDir, d.ID, mps.PipeName) + " " + context; relabelled.Load() != want {
		t.Errorf("relabelled %v, want %s", relabelled.Load(), want)
	}
}
