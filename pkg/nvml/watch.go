// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/pkg/confine"
)

const (
	// missedBeats is how many heartbeats a child may miss before it counts as hung.
	missedBeats = 3
	// firstPause and longestPause are how long the watcher waits before it starts a child again; the pause doubles with each child
	// that did not live long.
	firstPause   = time.Second
	longestPause = time.Minute
)

// Watcher keeps a child that reports events and, at an interval, the state of all GPUs. A child that crashes, hangs or prints
// something else is killed and started again, more and more slowly. It dies with this process.
type Watcher struct {
	// Command says how to run the child. Its timeout bounds the start, up to the first message.
	Command Command
	// Interval is the time between heartbeats.
	Interval time.Duration
	// FirstPause is the shortest pause between two children. Zero: 1 s.
	FirstPause time.Duration

	// gone is closed when the last child is.
	gone <-chan struct{}
}

// Run calls receive for every message and failed whenever a child ended, one call at a time, until ctx ends. It never has two
// children: where one cannot be killed, which happens when it waits inside the driver, it waits for it and says ErrStuck. It may be
// called again after it returned.
func (w *Watcher) Run(ctx context.Context, receive func(Message), failed func(error)) {
	shortest := w.FirstPause
	if shortest <= 0 {
		shortest = firstPause
	}
	if w.gone != nil && !await(ctx, w.gone, 0) {
		return
	}
	pause := shortest
	for ctx.Err() == nil {
		begin := time.Now()
		gone, err := w.live(ctx, receive)
		w.gone = gone
		if ctx.Err() != nil {
			return
		}
		failed(fmt.Errorf("watch GPUs with %s: %w", w.Command.Path, err))
		if time.Since(begin) > longestPause {
			pause = shortest
		}
		if !await(ctx, gone, pause) {
			return
		}
		pause = min(2*pause, longestPause)
	}
}

// await waits for the end of a child and a pause, and returns false when ctx ended before.
func await(ctx context.Context, gone <-chan struct{}, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-gone:
	}
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// live is the life of one child. It returns why it ended, and a channel that is closed once the child is gone.
func (w *Watcher) live(ctx context.Context, receive func(Message)) (<-chan struct{}, error) {
	run := &watching{lines: make(chan []byte), stop: make(chan struct{}), gone: make(chan struct{}), stderr: &capture{tail: maxStderr}}
	started := make(chan error, 1)
	go run.own(w.command(), w.Command.confined(false, false), started)
	if err := <-started; err != nil {
		return run.gone, fmt.Errorf("start: %w", err)
	}
	err := run.listen(ctx, w.startTimeout(), w.silence(), receive)
	close(run.stop)
	_ = syscall.Kill(-run.pid, syscall.SIGKILL)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-run.gone:
		return run.gone, run.why(err)
	case <-timer.C:
		return run.gone, fmt.Errorf("%w: killed, and still there after %s: %w", ErrStuck, grace, err)
	}
}

func (w *Watcher) command() *exec.Cmd {
	args := append(w.Command.Args(), "watch", "-interval", w.Interval.String())
	cmd := exec.Command(w.Command.Path, args...) //nolint:gosec // the path is the operator's
	// A process group of its own, so that what it may have started is killed with it; and nobody kills it when this process is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = grace / 2
	return cmd
}

func (w *Watcher) startTimeout() time.Duration {
	if w.Command.Timeout > 0 {
		return w.Command.Timeout + w.Interval
	}
	return defaultTimeout + w.Interval
}

// silence is how long a child may say nothing.
func (w *Watcher) silence() time.Duration { return missedBeats*w.Interval + grace }

// watching is a running child.
type watching struct {
	pid    int
	lines  chan []byte   // what it prints
	stop   chan struct{} // closed when nobody listens any more
	gone   chan struct{} // closed when it is
	stderr *capture
	err    error // of reading or waiting, to be read once gone is closed
}

// own starts the child and stays with it to its end. It keeps the confined thread, because the kernel takes the death of the thread that
// started a child for the death of the parent.
func (r *watching) own(cmd *exec.Cmd, confined confine.Child, started chan<- error) {
	defer close(r.gone)
	cmd.Stderr = r.stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = confined.ConfineThread()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		started <- err
		return
	}
	r.pid = cmd.Process.Pid
	started <- nil
	readErr := confined.Limit(r.pid)
	if readErr != nil {
		_ = syscall.Kill(-r.pid, syscall.SIGKILL)
	} else {
		readErr = r.read(stdout)
	}
	close(r.lines)
	r.err = errors.Join(readErr, cmd.Wait())
}

// read passes on each line. A line that is too long ends the child's life.
func (r *watching) read(stdout io.Reader) error {
	scanner := bufio.NewScanner(stdout)
	scanner.Buffer(nil, maxReport)
	for scanner.Scan() {
		select {
		case r.lines <- append([]byte(nil), scanner.Bytes()...):
		case <-r.stop:
			return nil
		}
	}
	if errors.Is(scanner.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("printed a line of more than %d bytes", maxReport)
	}
	return nil // the pipe ended with the child, and how that ended says more
}

// listen receives until the child ends, prints what is no message, or is silent for too long.
func (r *watching) listen(ctx context.Context, first, silence time.Duration, receive func(Message)) error {
	timer := time.NewTimer(first)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return errors.New("hung: no heartbeat in time")
		case line, ok := <-r.lines:
			if !ok {
				return errEnded
			}
			if ctx.Err() != nil { // both had come: none is received after ctx ended
				return ctx.Err()
			}
			m, err := DecodeMessage(line)
			if err != nil {
				return err
			}
			receive(m)
			timer.Reset(silence)
		}
	}
}

// errEnded: the child ended by itself; what it printed on standard error and its status say why.
var errEnded = errors.New("ended")

// why is the reason of the end of a child that is gone.
func (r *watching) why(err error) error {
	exit, exited := errors.AsType[*exec.ExitError](r.err)
	text := (&child{stderr: r.stderr}).complaint()
	switch {
	case exited && exit.ExitCode() == ExitNoLibrary:
		return fmt.Errorf("%w%s", ErrNoLibrary, text)
	case errors.Is(err, errEnded) && r.err != nil:
		return fmt.Errorf("%w: %w%s", err, r.err, text)
	default:
		return fmt.Errorf("%w%s", err, text)
	}
}
