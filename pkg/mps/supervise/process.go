// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/rootfs"
	"github.com/fettle-dev/fettle/pkg/tool"
)

// process is one process of a daemon, with its servers.
type process struct {
	cmd *exec.Cmd
	// gone is closed when the process has ended and was waited for. err is how, from then on.
	gone   chan struct{}
	err    error
	output *lastOutput
}

func (p *process) isGone() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// while returns a context that ends with the process, too. stop must be called.
func (p *process) while(ctx context.Context) (living context.Context, stop func()) {
	living, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-p.gone:
			cancel()
		case <-living.Done():
		}
	}()
	return living, cancel
}

// places are where the programs are below a driver root.
func places() []string {
	return []string{"usr/bin/" + mps.Program, "usr/local/bin/" + mps.Program, "bin/" + mps.Program, "opt/bin/" + mps.Program}
}

// find returns the path of the program as the daemons see it. Links mean what they mean in the driver root: Debian has absolute ones there.
func find(driverRoot string) (string, error) {
	root, err := rootfs.Open(driverRoot)
	if err != nil {
		return "", fmt.Errorf("open the driver root: %w", err)
	}
	defer root.Close()
	for _, place := range places() {
		_, stat, err := root.Resolve(place)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			continue
		case err != nil:
			return "", fmt.Errorf("look for %s: %w", place, err)
		case stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Mode&0o111 == 0 || stat.Mode&0o022 != 0:
			return "", fmt.Errorf("%s is %s with mode %#o, want a program that only its owner can write",
				filepath.Join(driverRoot, place), rootfs.TypeName(stat.Mode), stat.Mode&0o7777)
		}
		return "/" + place, nil
	}
	return "", fmt.Errorf("%w below %s: none of %s", tool.ErrNotInstalled, driverRoot, strings.Join(places(), ", "))
}

// command makes a command with fixed arguments and nothing of this process's environment. The kernel kills it when this process dies.
func (d *daemon) command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := find(d.config.Root)
	if err != nil {
		return nil, fmt.Errorf("find NVIDIA's MPS: %w", err)
	}
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if d.chrooted() {
		attr.Chroot = d.config.Root
	}
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // G204: the path is one of a list, the arguments are constants
	cmd.Dir, cmd.SysProcAttr = "/", attr
	cmd.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin:/opt/bin", "LANG=C",
		"CUDA_VISIBLE_DEVICES=" + strings.Join(d.Devices, ","),
		mps.PipeDirectory + "=" + d.dir(mps.PipeName), "CUDA_MPS_LOG_DIRECTORY=" + d.dir(mps.LogName),
	}
	cmd.Env = append(cmd.Env, d.limits()...)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for servers that have its output
	return cmd, nil
}

// limits are the variables by which the daemon has the claim's limits from its start, for clients that come before it was told: those of
// containers that run already when a daemon is started again (MPS manual, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and
// CUDA_MPS_PINNED_DEVICE_MEM_LIMIT of the control daemon). Devices have the numbers of their places in CUDA_VISIBLE_DEVICES.
func (d *daemon) limits() []string {
	var env []string
	if d.ActiveThreadPercentage > 0 {
		env = append(env, fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", d.ActiveThreadPercentage))
	}
	var pinned []string
	for i, uuid := range d.Devices {
		if m := d.PinnedMemoryMiB[uuid]; m > 0 {
			pinned = append(pinned, fmt.Sprintf("%d=%dM", i, m))
		}
	}
	if len(pinned) > 0 {
		env = append(env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+strings.Join(pinned, ","))
	}
	return env
}

// confined returns what the daemon's processes may do: reach NVIDIA's driver in their root directory, the nodes of GPUs, and the
// directories of this daemon, but none of another. Links that a container makes in the pipe directory lead nowhere else.
func (d *daemon) confined() confine.MPSDaemon {
	root := d.config.Root
	pipes, logs, shm := d.dir(mps.PipeName), d.dir(mps.LogName), "dev/shm"
	paths := nvml.Reach(root, root, filepath.Join(root, pipes), filepath.Join(root, logs), filepath.Join(root, shm))
	for _, name := range []string{"etc/group", "etc/nsswitch.conf", "etc/passwd"} {
		paths.Read = append(paths.Read, filepath.Join(root, name))
	}
	paths.Write = append(paths.Write, filepath.Join(root, "dev/null"))
	c := confine.MPSDaemon{Chroot: d.chrooted(), Paths: paths}
	if major := nvml.CapsMajor(root); major != 0 {
		c.Majors, paths.Nodes = []uint32{major}, []string{nvml.CapsDir(root)}
	}
	return c
}

func (d *daemon) chrooted() bool { return d.config.Root != "/" }

// startProcess starts the daemon in the foreground.
func (d *daemon) startProcess(ctx context.Context) (*process, error) {
	args := []string{"-f"}
	if d.MultiUser {
		args = append(args, "-M")
	}
	cmd, err := d.command(context.WithoutCancel(ctx), args...) // it is asked to end first
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, gone: make(chan struct{}), output: &lastOutput{}}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	started := make(chan error, 1)
	go func() {
		defer close(p.gone)
		p.err = d.confined().Run(cmd, func(err error) { started <- err })
		if cmd.Process != nil {
			p.kill() // servers that it left
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill kills the process and those that it started.
func (p *process) kill() { _ = syscall.Kill(-p.pid(), syscall.SIGKILL) }

// reason says why a process that is gone ended: how, and the last line that it printed.
func (p *process) reason() error {
	if !p.isGone() {
		return fmt.Errorf("process %d hangs", p.pid())
	}
	err := p.err
	if err == nil {
		err = errors.New("it ended by itself")
	}
	if line := p.output.line(); line != "" {
		return fmt.Errorf("%w: %s", err, line)
	}
	return err
}

// control sends one command to the daemon and returns the answer.
func (d *daemon) control(ctx context.Context, line string) (string, error) {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd, err := d.command(ctx)
	if err != nil {
		return "", err
	}
	out, failed := &lastOutput{}, &lastOutput{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(line+"\n"), out, failed
	if err := d.confined().Run(cmd, func(error) {}); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return "", fmt.Errorf("command %q: %w: %s", line, err, failed.line()+out.line())
	}
	return out.text(), nil
}

// lastOutput keeps the end of what a program prints.
type lastOutput struct {
	mu   sync.Mutex
	data []byte
}

const maxOutput = 4 << 10

func (o *lastOutput) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.data = append(o.data, data...)
	if extra := len(o.data) - maxOutput; extra > 0 {
		o.data = append([]byte(nil), o.data[extra:]...)
	}
	return len(data), nil
}

func (o *lastOutput) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(string(o.data), "?"))
}

// line is the last line that is not empty.
func (o *lastOutput) line() string {
	text := strings.TrimSpace(o.text())
	return text[strings.LastIndexByte(text, '\n')+1:]
}
