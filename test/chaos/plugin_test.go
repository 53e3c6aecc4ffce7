// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// fleet is the plugin's pods on the node, of which a rolling update has two, and the part of kubelet that knows them.
type fleet struct {
	binary, dir string
	args        []string
	trace       *trace
	report      func(...violation)
	// starter runs functions on one thread: a child whose parent thread ends is killed.
	starter chan func()

	mu   sync.Mutex
	pods []*instance
	made int

	// power is held for reading while a process is started, and for writing while the node is switched off or on.
	power sync.RWMutex
	// down: the node is off, and nothing is started.
	down bool
}

func newFleet(ctx context.Context, binary, dir string, args []string, t *trace, report func(...violation)) *fleet {
	f := &fleet{binary: binary, dir: dir, args: args, trace: t, report: report, starter: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for {
			select {
			case <-ctx.Done():
				return
			case start := <-f.starter:
				start()
			}
		}
	}()
	return f
}

// instance is one pod of the plugin. Its process is started again when it ends, as kubelet does with a container.
type instance struct {
	fleet *fleet
	uid   string
	// ended is closed when the pod is gone.
	ended chan struct{}

	mu sync.Mutex
	// process is nil while none runs. gone is closed then.
	process *os.Process
	gone    chan struct{}
	// doomed: the process was told to end.
	doomed bool
	// leaving: the pod is deleted, no process follows.
	leaving bool
	// client and connection are there from the registration to the end of the process.
	client     drapb.DRAPluginClient
	connection *grpc.ClientConn
	// calls counts what this process was asked.
	calls int
}

// add makes a pod of the plugin.
func (f *fleet) add(ctx context.Context) {
	i := &instance{fleet: f, ended: make(chan struct{}), gone: make(chan struct{})}
	close(i.gone)
	f.mu.Lock()
	f.made++
	i.uid = fmt.Sprintf("00000000-0000-4000-8000-%012d", f.made)
	f.pods = append(f.pods, i)
	f.mu.Unlock()
	go i.supervise(ctx)
}

// supervise starts a process as long as the pod is wanted.
func (i *instance) supervise(ctx context.Context) {
	defer close(i.ended)
	const pause = 5 * time.Millisecond
	for ctx.Err() == nil && !i.isLeaving() {
		command, err := i.start(ctx)
		if command == nil && err == nil {
			wait(ctx, pause) // the node is off
			continue
		}
		if err == nil {
			err = i.follow(ctx, command)
		}
		if err != nil && ctx.Err() == nil {
			i.fleet.report(violation{lost, i.uid, fmt.Sprintf("the plugin ended by itself: %v", err)})
			wait(ctx, time.Second)
		}
	}
	i.fleet.mu.Lock()
	defer i.fleet.mu.Unlock()
	i.fleet.pods = slices.DeleteFunc(i.fleet.pods, func(other *instance) bool { return other == i })
}

// start starts a process, or nothing while the node is off.
func (i *instance) start(ctx context.Context) (*exec.Cmd, error) {
	i.fleet.power.RLock()
	defer i.fleet.power.RUnlock()
	if i.fleet.down {
		return nil, nil //nolint:nilnil // documented above
	}
	log, err := os.OpenFile(filepath.Join(i.fleet.dir, "log", i.uid), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := append(slices.Clone(i.fleet.args), "--pod-uid="+i.uid, "--http-address=127.0.0.1:0", "--health-port=0")
	command := exec.Command(i.fleet.binary, args...) //nolint:noctx // it is ended by signals only
	command.Env = []string{}                         // what make exports for tests names no flag of the plugin
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case i.fleet.starter <- func() { started <- command.Start() }:
	}
	if err := <-started; err != nil {
		return nil, err
	}
	i.mu.Lock()
	i.process, i.gone, i.doomed, i.calls = command.Process, make(chan struct{}), false, 0
	leaving := i.leaving
	i.mu.Unlock()
	i.fleet.trace.note("plugin %s: process %d starts", i.uid, command.Process.Pid)
	if leaving {
		i.signal(syscall.SIGTERM) // it was too early for whoever deleted the pod
	}
	return command, nil
}

// follow registers a process and returns after it ended. An end that nobody asked for is an error.
func (i *instance) follow(ctx context.Context, command *exec.Cmd) error {
	alive, cancel := context.WithCancel(ctx)
	registered := make(chan struct{})
	go func() {
		defer close(registered)
		i.register(alive)
	}()
	err := command.Wait()
	cancel()
	<-registered
	i.mu.Lock()
	defer i.mu.Unlock()
	i.fleet.trace.note("plugin %s: process %d ended: %v", i.uid, command.Process.Pid, err)
	i.process, i.client = nil, nil
	close(i.gone)
	if i.connection != nil {
		_ = i.connection.Close()
		i.connection = nil
	}
	if i.doomed {
		return nil
	}
	return errors.Join(errors.New("nobody asked it to"), err)
}

// register does what kubelet does with a socket that appears in its registry.
func (i *instance) register(ctx context.Context) {
	const pause = 3 * time.Millisecond
	for ctx.Err() == nil {
		connection, err := i.discover(ctx)
		if err == nil {
			i.mu.Lock()
			i.connection, i.client = connection, drapb.NewDRAPluginClient(connection)
			i.mu.Unlock()
			i.fleet.trace.note("plugin %s: registered", i.uid)
			return
		}
		wait(ctx, pause)
	}
}

// discover finds the plugin's registration socket, asks who is there, and connects to where it says that it serves.
func (i *instance) discover(ctx context.Context) (*grpc.ClientConn, error) {
	registry := filepath.Join(i.fleet.dir, "r")
	entries, err := os.ReadDir(registry)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.Contains(e.Name(), i.uid) {
			continue
		}
		first, err := dial(ctx, filepath.Join(registry, e.Name()))
		if err != nil {
			return nil, err
		}
		defer first.Close() //nolint:errcheck // nothing is lost
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		client := registerapi.NewRegistrationClient(first)
		info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
		if err != nil {
			return nil, err
		}
		if info.Type != registerapi.DRAPlugin || info.Name != driver {
			return nil, fmt.Errorf("socket %s says that it is %s %s", e.Name(), info.Type, info.Name)
		}
		if _, err := client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
			return nil, err
		}
		return dial(ctx, info.Endpoint)
	}
	return nil, errors.New("no socket yet")
}

// dial connects to a socket that someone listens on; a connection that fails once would wait a second before the next attempt.
func dial(ctx context.Context, path string) (*grpc.ClientConn, error) {
	var dialer net.Dialer
	probe, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	_ = probe.Close()
	return grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func (i *instance) isLeaving() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.leaving
}

// members are the pods, the oldest first.
func (f *fleet) members() []*instance {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.pods)
}

// serving are the pods that kubelet can call.
func (f *fleet) serving() []*instance {
	return slices.DeleteFunc(f.members(), func(i *instance) bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		return i.client == nil
	})
}

// call returns the client and counts the call; nil if the plugin does not serve now.
func (i *instance) call() drapb.DRAPluginClient {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.client != nil {
		i.calls++
	}
	return i.client
}

// busy says whether a process that was not told to end was called at all, or with early whether one is there.
func (i *instance) busy(early bool) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.process != nil && !i.doomed && (early || i.calls > 0)
}

// signal sends a signal to the process, and says whether there was one that had not been told to end.
func (i *instance) signal(s syscall.Signal) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.process == nil || i.doomed {
		return false
	}
	i.doomed = s != syscall.SIGSTOP
	i.fleet.trace.note("plugin %s: %s to process %d", i.uid, s, i.process.Pid)
	return i.process.Signal(s) == nil
}

// resume lets a stopped process go on, whatever it was told since.
func (i *instance) resume() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.process != nil {
		i.fleet.trace.note("plugin %s: process %d goes on", i.uid, i.process.Pid)
		_ = i.process.Signal(syscall.SIGCONT)
	}
}

// leave deletes the pod: its process is told to end and none follows.
func (i *instance) leave() {
	i.mu.Lock()
	i.leaving = true
	i.mu.Unlock()
	i.signal(syscall.SIGTERM)
}

// shutDown ends all processes at once and returns when the last is gone; none is started until startUp.
func (f *fleet) shutDown() {
	f.power.Lock()
	f.down = true
	f.power.Unlock()
	for _, i := range f.members() {
		i.force()
	}
	for _, i := range f.members() {
		<-i.hasNoProcess()
	}
}

// force kills the process even if it was told to end before.
func (i *instance) force() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.process != nil {
		i.doomed = true
		i.fleet.trace.note("plugin %s: process %d is killed", i.uid, i.process.Pid)
		_ = i.process.Kill()
	}
}

// hasNoProcess returns what is closed when the process that runs now, if any, was waited for.
func (i *instance) hasNoProcess() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.gone
}

func (f *fleet) startUp() {
	f.power.Lock()
	defer f.power.Unlock()
	f.down = false
}
