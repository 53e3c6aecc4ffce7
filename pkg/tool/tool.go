// SPDX-License-Identifier: Apache-2.0

// Package tool runs a vendor's program: never through a shell, with the arguments and the environment of the caller only, with limits on
// its output and memory, and with a deadline after which all its processes are killed. The program reaches the files of its
// Root and no others, and has no socket and no capability beyond those of its Root. The package knows no vendor.
package tool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/pkg/confine"
)

const (
	// maxOutput limits what a program may print on each of its two outputs before it is killed.
	maxOutput = 256 << 10
	// maxMemory limits what it may write to in memory. It keeps several copies of an image.
	maxMemory = 4 << 30
	// maxStatus limits how much of the end of its output goes into an error.
	maxStatus = 1 << 10
	// grace is how long Run waits for a killed program to end.
	grace = time.Second
)

// Root is the directory in which a vendor's programs are installed.
type Root struct {
	// Dir is absolute: "/", or the directory where the host's tree is mounted.
	Dir string
	// Chroot runs programs with Dir as their root directory, so that they find their libraries and files as on the host. It needs
	// CAP_SYS_CHROOT, and has no effect if Dir is "/".
	Chroot bool
	// Reach returns the files that programs reach, as they are when one is started: a card may have come. Without it none is started.
	Reach func() *confine.Paths
	// Keep are the capabilities that programs keep of those that this process has.
	Keep confine.Capabilities
	// Loader has a program that is linked dynamically run by the loader below Dir, with libraries from below Dir. So it runs without Chroot in
	// a container that has none of them, or others. It has no effect if Dir is "/".
	Loader bool
	// Libraries are sonames of libraries that programs open by themselves, for Loader.
	Libraries []string
}

// Find returns the first of places that is a program: a plain file that may be executed and that only its owner can write. Places are
// relative to the root. Find follows a link as long as it stays below the root. With Loader, an absolute link means a file below the root.
func (r Root) Find(places ...string) (Program, error) {
	if r.Loader && r.Dir != "/" {
		return r.findForLoader(places)
	}
	dir, err := os.OpenRoot(r.Dir)
	if err != nil {
		return Program{}, fmt.Errorf("open the driver root: %w", err)
	}
	defer dir.Close()
	var unfit []error
	for _, place := range places {
		info, err := dir.Stat(place)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			continue
		case err != nil:
			unfit = append(unfit, err)
			continue
		case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 || info.Mode().Perm()&0o022 != 0:
			unfit = append(unfit, fmt.Errorf("%s has mode %s, want a program that only its owner can write",
				filepath.Join(r.Dir, place), info.Mode()))
			continue
		}
		return Program{root: r, place: place}, nil
	}
	return Program{}, r.notFound(places, unfit)
}

// notFound says why none of the places is a program.
func (r Root) notFound(places []string, unfit []error) error {
	if len(unfit) > 0 {
		return errors.Join(unfit...)
	}
	return fmt.Errorf("%w below %s: none of %s", ErrNotInstalled, r.Dir, strings.Join(places, ", "))
}

// Causes that callers may ask for with errors.Is.
var (
	// ErrNotInstalled: no program is in any of the places.
	ErrNotInstalled = errors.New("the program is not installed")
	// ErrNotStarted: the program did not run, so it did nothing.
	ErrNotStarted = errors.New("the program did not start")
	// ErrOutput: the program printed too much.
	ErrOutput = errors.New("the program prints without end")
	// ErrStuck: the program was killed and has not ended, as when it waits inside a driver.
	ErrStuck = errors.New("the program was killed and still hangs in the driver")
)

// Program is a program that Find found.
type Program struct {
	root  Root
	place string
	// loader is below the root too; empty: the program is started as it is. libraries are the directories that it searches.
	loader    string
	libraries []string
}

// Path returns the path of the program as this process sees it.
func (p Program) Path() string { return filepath.Join(p.root.Dir, p.place) }

// Inside returns the path of a place below the root as the program sees it.
func (p Program) Inside(place string) string {
	if p.chrooted() {
		return filepath.Join("/", place)
	}
	return filepath.Join(p.root.Dir, place)
}

func (p Program) chrooted() bool { return p.root.Chroot && p.root.Dir != "/" }

// Run describes one run of a program.
type Run struct {
	// Args are passed unchanged.
	Args []string
	// Env is the environment, beside a PATH of the system's directories and LANG=C.
	Env []string
	// Timeout limits the run. After it, the program and all its children are killed.
	Timeout time.Duration
	// Hold lists files that stay open in the program. A lock among them outlives this process for as long as the program runs.
	Hold []*os.File
}

// Error says how a run failed.
type Error struct {
	Program string
	// Started is false if the program certainly did nothing.
	Started bool
	// Exit is the exit status, or -1 if the program did not exit by itself.
	Exit int
	// Output is the end of what it printed on both outputs.
	Output string
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("run %s: %v", e.Program, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// Run runs the program to its end and returns its standard output. Its input is empty, so that the program gets no answer to a question.
// Every error is an *Error.
func (p Program) Run(ctx context.Context, run Run) (string, error) {
	if err := checkArgs(run.Args); err != nil {
		return "", &Error{Program: p.Path(), Exit: -1, Err: fmt.Errorf("%w: %w", ErrNotStarted, err)}
	}
	ctx, cancel := context.WithTimeout(ctx, run.Timeout)
	defer cancel()
	stdout, stderr := &capture{overflow: cancel}, &capture{overflow: cancel}
	cmd := p.command(ctx, run)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	confined := confine.Child{Keep: p.root.Keep, Chroot: p.chrooted(), Memory: maxMemory}
	if p.root.Reach != nil {
		confined.Paths = p.root.Reach()
	}
	if err := confined.Start(cmd); err != nil {
		return "", &Error{Program: p.Path(), Exit: -1, Err: fmt.Errorf("%w: %w", ErrNotStarted, err)}
	}
	unlimited := confined.Limit(cmd.Process.Pid)
	if unlimited != nil {
		cancel()
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	left, err := await(ctx, gone)
	if left {
		// The program may still write to the captures.
		return "", &Error{Program: p.Path(), Started: true, Exit: -1, Err: fmt.Errorf("%w: %w", ErrStuck, err)}
	}
	// Processes that the program started and left behind end with it.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	switch {
	case unlimited != nil:
		err = unlimited
	case stdout.full || stderr.full:
		err = ErrOutput
	case err != nil && ctx.Err() != nil:
		err = fmt.Errorf("it was killed: %w", context.Cause(ctx))
	}
	if err == nil {
		return stdout.text(), nil
	}
	return "", &Error{
		Program: p.Path(), Started: true, Exit: cmd.ProcessState.ExitCode(), Output: tail(stdout.text() + "\n" + stderr.text()), Err: err,
	}
}

// await waits for the program to end, and 2 s longer after it was killed. left says that it is still there.
func await(ctx context.Context, gone <-chan error) (left bool, err error) {
	select {
	case err := <-gone:
		return false, err
	case <-ctx.Done():
	}
	select {
	case err := <-gone:
		return false, err
	case <-time.After(2 * grace):
		return true, context.Cause(ctx)
	}
}

func (p Program) command(ctx context.Context, run Run) *exec.Cmd {
	path, attr := p.Path(), &syscall.SysProcAttr{Setpgid: true}
	args, env := run.Args, run.Env
	switch libraries := strings.Join(p.libraries, ":"); {
	case p.loader != "":
		path, args = filepath.Join(p.root.Dir, p.loader), append([]string{"--library-path", libraries, path}, args...)
	case libraries != "":
		env = append([]string{"LD_LIBRARY_PATH=" + libraries}, env...)
	}
	if p.chrooted() {
		path, attr.Chroot = filepath.Join("/", p.place), p.root.Dir
	}
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // G204: the path is one of a list, the arguments were validated
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C"}, env...)
	cmd.ExtraFiles = run.Hold
	cmd.SysProcAttr = attr
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = grace
	return cmd
}

// checkArgs refuses arguments that no validated value can be. The caller decides whether an argument may begin with a dash.
func checkArgs(args []string) error {
	for _, arg := range args {
		if arg == "" || strings.ContainsFunc(arg, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("argument %q: want printable characters without spaces", arg)
		}
	}
	return nil
}

// tail returns the end of a text, without control characters.
func tail(text string) string {
	text = strings.TrimSpace(strings.ToValidUTF8(text, "?"))
	if len(text) > maxStatus {
		text = strings.ToValidUTF8(text[len(text)-maxStatus:], "")
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return '?'
		}
		return r
	}, text)
}

// capture keeps what a program prints, and kills the program when that is too much.
type capture struct {
	buffer   bytes.Buffer
	overflow func()
	full     bool
}

func (c *capture) Write(p []byte) (int, error) {
	switch {
	case c.full:
	case c.buffer.Len()+len(p) > maxOutput:
		c.full = true
		c.overflow()
	default:
		c.buffer.Write(p)
	}
	return len(p), nil
}

func (c *capture) text() string { return strings.ToValidUTF8(c.buffer.String(), "?") }
