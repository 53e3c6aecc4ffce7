// SPDX-License-Identifier: Apache-2.0

// Package proc starts the daemons of a cluster detached, inside their control group and namespaces, and finds them
// again by process ID and start time.
package proc

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// LaunchCommand is the hidden subcommand by which this program becomes a daemon; see Launch.
const LaunchCommand = "launch"

// A Spec says what runs where.
type Spec struct {
	Cluster string // cluster ID, visible in the process's environment as FETTLE_CLUSTER
	Cgroup  string // joined before anything else
	// NamespacesOf is the process whose namespaces are entered; 0 stays in this program's.
	NamespacesOf int
	// New are the namespaces created for the process, as clone flags.
	New  uintptr
	Args []string
	Env  []string
	Log  string
}

// A Daemon is a started process while this program still is its parent.
type Daemon struct {
	PID int
	// Done is closed when the process ends; Err is set then.
	Done chan struct{}
	Err  error
	log  string
}

// Start runs a daemon that outlives this program.
func Start(s Spec) (*Daemon, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(s.Log), 0o755); err != nil {
		return nil, fmt.Errorf("make log directory: %w", err)
	}
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	args := append([]string{LaunchCommand, s.Cgroup, strconv.Itoa(s.NamespacesOf)}, s.Args...)
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.Env = append(append(os.Environ(), "FETTLE_CLUSTER="+s.Cluster), s.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: s.New}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Args[0], err)
	}
	d := &Daemon{PID: cmd.Process.Pid, Done: make(chan struct{}), log: s.Log}
	go func() {
		d.Err = cmd.Wait()
		close(d.Done)
	}()
	return d, nil
}

// errCleanly stands for the status of a process that should have stayed and ended without a fault.
var errCleanly = errors.New("exit status 0")

// Ended reports a daemon that stopped early, with the end of its log.
func (d *Daemon) Ended() error {
	select {
	case <-d.Done:
		return fmt.Errorf("process ended (%w); its log %s ends:\n%s", cmp.Or(d.Err, errCleanly), d.log, Tail(d.log, 15))
	default:
		return nil
	}
}

// Tail returns the last lines of a file, as far as it can be read.
func Tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Join moves a process into a control group.
type Join func(group string, pid int) error

// Launch turns this process into the daemon of Start's arguments: group, process to take the namespaces of, command.
// It keeps its process ID, so that Start's caller knows the daemon's, and returns only on failure.
func Launch(args []string, join Join) error {
	if len(args) < 3 {
		return errors.New("launch is internal")
	}
	pid, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	if err := join(args[0], os.Getpid()); err != nil {
		return err
	}
	return Replace(Enter(pid, args[2:]))
}

// Enter is the command that runs args in the network and mount namespace of a process. nsenter is used, because a Go
// program cannot enter a mount namespace once it has threads, and ip netns would mount another /sys.
func Enter(pid int, args []string) []string {
	if pid == 0 {
		return args
	}
	return append([]string{"nsenter", "--target", strconv.Itoa(pid), "--net", "--mount", "--"}, args...)
}

// Replace executes args in place of this program.
func Replace(args []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return fmt.Errorf("find %s: %w", args[0], err)
	}
	if err := syscall.Exec(path, args, os.Environ()); err != nil {
		return fmt.Errorf("execute %s: %w", path, err)
	}
	return nil
}
