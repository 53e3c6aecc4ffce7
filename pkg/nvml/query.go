// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrNoLibrary: the node has no NVIDIA management library, or none that can be loaded. Everything else works.
var ErrNoLibrary = errors.New("no NVIDIA management library (libnvidia-ml.so.1) found: " +
	"install NVIDIA's user-space driver on the node, or set the driver root")

// ErrStuck: an earlier child could not be killed, which happens when it waits inside the driver. No other is started beside it.
var ErrStuck = errors.New("an earlier fettle-nvml still hangs in the driver")

const (
	defaultTimeout = 10 * time.Second
	// grace is how long a killed child gets to die before it is left behind.
	grace = time.Second
	// maxStderr is how much of the end of the child's complaints goes into an error.
	maxStderr = 2 << 10
)

// Command says how to run the child.
type Command struct {
	// Path is the child's binary, fettle-nvml.
	Path string
	// LibraryPath is the library's file. Empty: the child looks in the usual places below DriverRoot.
	LibraryPath string
	// DriverRoot is the directory that NVIDIA's user-space driver is installed below. Empty: "/".
	DriverRoot string
	// Timeout bounds the whole run. Zero: 10 s.
	Timeout time.Duration
	// State are directories that the library keeps files in. NVIDIA's has none, a simulated one has.
	State []string
}

// Args are the child's arguments.
func (c Command) Args() []string {
	var args []string
	if c.DriverRoot != "" {
		args = append(args, "-driver-root", c.DriverRoot)
	}
	if c.LibraryPath != "" {
		args = append(args, "-library", c.LibraryPath)
	}
	return args
}

// ask is one question to the child: what is added to its arguments, and how its answer is read.
type ask[T any] struct {
	args   []string
	decode func(io.Reader) (T, error)
	// lock is a file that the child keeps open. Nil: none.
	lock *os.File
	// timeout bounds the run instead of the command's. Zero: the command's.
	timeout time.Duration
	// setting says that the child sets a mode of a GPU, for which the driver wants an administrator.
	setting bool
	// makes says that the child makes an instance, for which its library makes a device node.
	makes bool
	// always says that an answer may come with a failure too.
	always bool
}

// forReport asks for what the library says.
func forReport() ask[Report] { return ask[Report]{decode: Decode} }

// forDriver asks for the driver's files. Version is that of the kernel's driver, empty where it is not known.
func forDriver(version string) ask[Driver] {
	args := []string{"driver"}
	if version != "" {
		args = append(args, "-version", version)
	}
	return ask[Driver]{args: args, decode: DecodeDriver}
}

// Query runs the child once and returns its report, or ErrNoLibrary, or what went wrong: it hung, crashed, or printed something
// else. It returns within Timeout and about a second, even when the child cannot be killed.
func Query(ctx context.Context, command Command) (Report, error) {
	report, _, err := query(ctx, command, forReport())
	return report, err
}

// Prober asks again and again, as a plugin does, and never has two children at once: a question waits until the one before is answered, for
// as long as its own time limit. It is safe for concurrent use.
type Prober struct {
	command Command
	// turn holds a value while there is a child. stuck says that it was killed and is still there.
	turn  chan struct{}
	stuck atomic.Bool
}

// NewProber is a prober for one command.
func NewProber(command Command) *Prober {
	return &Prober{command: command, turn: make(chan struct{}, 1)}
}

// Query is Query, but ErrStuck while an earlier child cannot be killed, or does not end in time.
func (p *Prober) Query(ctx context.Context) (Report, error) { return probe(ctx, p, forReport()) }

// Driver asks for the files of the driver below the command's root, as NVIDIA lists them, or says ErrNoDriver. Version is that of the
// kernel's driver, to which they have to fit; empty where it is not known.
func (p *Prober) Driver(ctx context.Context, version string) (Driver, error) {
	return probe(ctx, p, forDriver(version))
}

func probe[T any](ctx context.Context, p *Prober, a ask[T]) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, a.limit(p.command))
	defer cancel()
	if err := p.await(ctx); err != nil {
		var none T
		return none, err
	}
	answer, gone, err := query(ctx, p.command, a)
	select {
	case <-gone:
		<-p.turn
	default:
		p.stuck.Store(true)
		go func() {
			<-gone
			p.stuck.Store(false)
			<-p.turn
		}()
	}
	return answer, err
}

// await takes the turn to have a child.
func (p *Prober) await(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	default:
	}
	if p.stuck.Load() {
		return ErrStuck
	}
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: another question was not answered in time: %w", ErrStuck, ctx.Err())
	}
}

// limit is how long the question may take, the wait for its turn included.
func (a ask[T]) limit(command Command) time.Duration {
	if a.timeout > 0 {
		return a.timeout
	}
	if command.Timeout > 0 {
		return command.Timeout
	}
	return defaultTimeout
}

// query also returns a channel that is closed once the child is gone.
func query[T any](ctx context.Context, command Command, a ask[T]) (answer T, childGone <-chan struct{}, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.limit(command))
	defer cancel()
	run, err := start(ctx, cancel, command, a)
	if err != nil {
		gone := make(chan struct{})
		close(gone)
		return answer, gone, fmt.Errorf("start %s: %w", command.Path, err)
	}
	err = run.wait(ctx)
	if err == nil {
		if answer, err = a.decode(&run.stdout.buffer); err == nil {
			return answer, run.gone, nil
		}
	} else if a.always && ExitStatus(err) != exitFailed && run.stdout.buffer.Len() > 0 {
		var bad error
		if answer, bad = a.decode(&run.stdout.buffer); bad != nil {
			err = errors.Join(err, bad)
		}
	}
	return answer, run.gone, fmt.Errorf("run %s: %w", command.Path, err)
}

// child is a running child.
type child struct {
	cmd            *exec.Cmd
	stdout, stderr *capture
	gone           chan struct{}
	err            error // of cmd.Wait, to be read once gone is closed
}

// start starts the child in a process group of its own, so that what it may have started dies with it.
func start[T any](ctx context.Context, cancel context.CancelFunc, command Command, a ask[T]) (*child, error) {
	cmd := exec.CommandContext(ctx, command.Path, append(command.Args(), a.args...)...) //nolint:gosec // the path is the operator's
	run := &child{
		cmd: cmd, gone: make(chan struct{}),
		stdout: &capture{limit: maxReport, overflow: cancel}, stderr: &capture{tail: maxStderr},
	}
	cmd.Stdout, cmd.Stderr = run.stdout, run.stderr
	if a.lock != nil {
		cmd.ExtraFiles = []*os.File{a.lock}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = grace / 2
	confined := command.confined(a.setting, a.makes)
	if err := confined.Start(cmd); err != nil {
		return nil, err
	}
	if err := confined.Limit(cmd.Process.Pid); err != nil {
		return nil, errors.Join(err, cmd.Cancel(), cmd.Wait())
	}
	go func() {
		run.err = cmd.Wait()
		close(run.gone)
	}()
	return run, nil
}

// wait returns how the child ended, or that it did not.
func (c *child) wait(ctx context.Context) error {
	select {
	case <-c.gone:
	case <-ctx.Done():
		select {
		case <-c.gone:
		case <-time.After(grace):
			return fmt.Errorf("%w: killed, and still there after %s: %w", ErrStuck, grace, ctx.Err())
		}
	}
	var said error
	if exit, exited := errors.AsType[*exec.ExitError](c.err); exited {
		said = exits()[exit.ExitCode()]
	}
	switch {
	case c.err == nil:
		return nil
	case said != nil:
		return fmt.Errorf("%w%s", said, c.complaint())
	case c.stdout.overflowed:
		return fmt.Errorf("printed more than %d bytes", maxReport)
	case ctx.Err() != nil:
		return fmt.Errorf("did not answer in time: %w%s", ctx.Err(), c.complaint())
	default:
		return fmt.Errorf("%w%s", c.err, c.complaint())
	}
}

// complaint is the end of what the child printed on standard error.
func (c *child) complaint() string {
	text := strings.TrimSpace(strings.ToValidUTF8(c.stderr.buffer.String(), "?"))
	if text == "" {
		return ""
	}
	return ": " + text
}

// capture keeps what a child prints: all of it up to limit, or its end.
type capture struct {
	buffer     bytes.Buffer
	limit      int    // more than this is not kept, and calls overflow
	overflow   func() // ends the child
	overflowed bool
	tail       int // only this much is kept, of the end
}

func (c *capture) Write(p []byte) (int, error) {
	switch {
	case c.tail > 0:
		c.buffer.Write(p)
		c.buffer.Next(max(c.buffer.Len()-c.tail, 0))
	case c.overflowed:
	case c.buffer.Len()+len(p) > c.limit:
		c.overflowed = true
		c.overflow()
	default:
		c.buffer.Write(p)
	}
	return len(p), nil
}
