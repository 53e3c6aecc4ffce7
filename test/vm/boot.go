// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/test/vm/internal/guest"
	"github.com/fettle-dev/fettle/test/vm/internal/kernel"
	"github.com/fettle-dev/fettle/test/vm/internal/qemu"
)

// errUnable wraps why this machine cannot boot another.
var errUnable = errors.New("this machine cannot boot a virtual one")

// check returns the first thing that is missing and that no package brings.
func check() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("%w: its programs are for %s, the virtual machine is for amd64", errUnable, runtime.GOARCH)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: not root, whose files the machine runs on: run it with sudo", errUnable)
	}
	for _, program := range []string{qemu.Program, "cpio", "modprobe", "dpkg-deb"} {
		_, missing := exec.LookPath(program)
		if _, err := exec.LookPath("apt-get"); missing != nil && err != nil {
			return fmt.Errorf("%w: there is no %s, and no apt-get to install it", errUnable, program)
		}
	}
	return nil
}

// cacheDir is where the kernel is kept and the machine's results are left.
func cacheDir() (string, error) {
	if dir := os.Getenv("FETTLE_CACHE"); dir != "" {
		return filepath.Join(dir, "vm"), nil
	}
	return filepath.Abs(filepath.Join(".cache", "vm"))
}

func fetch(ctx context.Context, stdout io.Writer) error {
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	_, err = kernel.Fetch(ctx, cache, stdout)
	return err
}

// options are the flags of "vm run".
type options struct {
	memory, cpus int
	timeout      time.Duration
	cluster      bool
	env          list
	append       list
	args         []string
}

// list is a flag that may be given several times.
type list []string

// String implements flag.Value.
func (l *list) String() string { return strings.Join(*l, " ") }

// Set implements flag.Value.
func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("vm run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.memory, "memory", 2048, "memory in MiB")
	flags.IntVar(&o.cpus, "cpus", 2, "number of processors")
	flags.DurationVar(&o.timeout, "timeout", 30*time.Minute, "how long all may take")
	flags.BoolVar(&o.cluster, "cluster", false,
		"load the modules that a cluster's nodes need, and have FETTLE_CACHE in memory but for bin and tools")
	flags.Var(&o.env, "env", "a variable for the program, NAME or NAME=VALUE; may be given several times")
	flags.Var(&o.append, "append", "a word for the kernel's command line; may be given several times")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, usageError{err}
	}
	if o.args = flags.Args(); len(o.args) == 0 {
		return nil, usageError{errors.New("run needs a program")}
	}
	return o, nil
}

// deviceModules are the drivers of the machine's devices: there is no udev that would load them.
func deviceModules() []string { return []string{"nvme"} }

// clusterModules are what the nodes of a test cluster and their pods need of the kernel, beside what is loaded when it is asked for.
func clusterModules() []string {
	return []string{
		"veth", "bridge", "br_netfilter", "erofs", "fuse", "loop", "nf_tables", "nft_compat", "xt_MASQUERADE", "xt_comment", "nft_chain_nat",
	}
}

// job is what the machine is to do.
func (o *options) job(k kernel.Kernel) (guest.Job, error) {
	dir, err := os.Getwd()
	if err != nil {
		return guest.Job{}, fmt.Errorf("find the working directory: %w", err)
	}
	job := guest.Job{
		Args: o.args, Dir: dir, Modules: k.Modules(), Load: deviceModules(),
		Env: []string{"PATH=" + guest.Path, "HOME=/root", "TMPDIR=" + guest.TempDir},
	}
	for _, variable := range o.env {
		name, _, given := strings.Cut(variable, "=")
		if !given {
			variable = name + "=" + os.Getenv(name)
		}
		job.Env = slices.DeleteFunc(job.Env, func(known string) bool { return strings.HasPrefix(known, name+"=") })
		job.Env = append(job.Env, variable)
	}
	if o.cluster {
		job.Load, job.Cache = append(job.Load, clusterModules()...), os.Getenv("FETTLE_CACHE")
		if job.Cache == "" {
			return guest.Job{}, usageError{errors.New("-cluster needs FETTLE_CACHE")}
		}
		// What the demo and the end-to-end suite leave of a failure.
		job.Results = []string{filepath.Join(job.Cache, "demo-failed"), filepath.Join(job.Cache, "e2e-failed")}
	}
	return job, nil
}

// run boots the machine and returns the exit status of the program. No other machine of this user runs at the same time.
func (o *options) run(ctx context.Context, stdout, stderr io.Writer) (int, error) {
	if err := check(); err != nil {
		return 0, err
	}
	cache, err := cacheDir()
	if err != nil {
		return 0, err
	}
	k, err := kernel.Find(cache)
	if err != nil {
		return 0, fmt.Errorf("%w: run: vm fetch", err)
	}
	lock, err := takeTurn(ctx, stderr)
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("it took longer than %s", o.timeout))
	defer cancel()
	temp, err := os.MkdirTemp("", "fettle-vm-")
	if err != nil {
		return 0, fmt.Errorf("make a directory for the machine: %w", err)
	}
	defer os.RemoveAll(temp) //nolint:errcheck // nothing depends on it
	m, err := o.machine(ctx, k, temp, filepath.Join(cache, "out"))
	if err != nil {
		return 0, err
	}
	if err := m.Check(ctx); err != nil {
		return 0, err
	}
	begin := time.Now()
	code, err := m.Run(ctx, stdout, stderr)
	if err != nil {
		return 0, fmt.Errorf("%w; the kernel's last words, from %s:\n%s", err, m.Out, lastLines(filepath.Join(m.Out, qemu.ConsoleFile)))
	}
	took := time.Since(begin).Seconds()
	fmt.Fprintf(stderr, "vm: kernel %s, %.0f s, exit status %d; the kernel's log is in %s\n", k.Release, took, code, m.Out)
	return code, nil
}

// machine prepares what is booted.
func (o *options) machine(ctx context.Context, k kernel.Kernel, temp, out string) (qemu.Machine, error) {
	job, err := o.job(k)
	if err != nil {
		return qemu.Machine{}, err
	}
	modules, err := k.Needed(ctx, guest.RootModules()...)
	if err != nil {
		return qemu.Machine{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return qemu.Machine{}, fmt.Errorf("find this program: %w", err)
	}
	initramfs, err := qemu.WriteInitramfs(ctx, temp, self, job, modules)
	if err != nil {
		return qemu.Machine{}, err
	}
	if err := os.RemoveAll(out); err != nil {
		return qemu.Machine{}, fmt.Errorf("remove earlier results: %w", err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return qemu.Machine{}, fmt.Errorf("make the directory for results: %w", err)
	}
	return qemu.Machine{Kernel: k.Image(), Initramfs: initramfs, Out: out, Memory: o.memory, CPUs: o.cpus, Append: o.append}, nil
}

// takeTurn waits until no other virtual machine of these tests runs: two would each take twice as long, and miss deadlines.
func takeTurn(ctx context.Context, stderr io.Writer) (*os.File, error) {
	path := filepath.Join(os.TempDir(), "fettle-vm.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("wait for another virtual machine: %w", err)
	}
	free, err := filelock.TryFlock(f, filelock.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("wait for another virtual machine: %w", errors.Join(err, f.Close()))
	}
	if free {
		return f, nil
	}
	fmt.Fprintln(stderr, "vm: waiting for another virtual machine to end")
	if err := filelock.WaitFlock(ctx, f, filelock.Exclusive); err != nil {
		return nil, fmt.Errorf("wait for another virtual machine: %w", err)
	}
	return f, nil
}

// lastLines is the end of a file, as far as it can be read.
func lastLines(path string) string {
	const most = 30
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
