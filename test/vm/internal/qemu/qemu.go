// SPDX-License-Identifier: Apache-2.0

// Package qemu boots a kernel with the devices that tests need, and returns what became of the program that ran there.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/test/vm/internal/guest"
)

// Program is the emulator.
const Program = "qemu-system-x86_64"

// Machine is what is booted.
type Machine struct {
	// Kernel and Initramfs are files, and Out is the directory that gets the machine's results.
	Kernel, Initramfs, Out string
	// Memory is in MiB. A page that the machine never used costs the host nothing.
	Memory int
	// CPUs is how many processors the machine has.
	CPUs int
	// Append are further words of the kernel's command line.
	Append []string
}

// ConsoleFile is the file in Out with what the kernel prints on its console.
const ConsoleFile = "console"

// ErrNoStatus says that the machine ended without an exit status of its program.
var ErrNoStatus = errors.New("the machine ended before its program did")

// arguments are the command line of the emulator.
//
// The order matters: the IOMMU stands before the devices that are behind it. A thread emulates each processor.
func (m Machine) arguments() []string {
	const emulated = "tcg,thread=multi"
	return []string{
		"-accel", emulated, "-machine", "q35,kernel-irqchip=off", "-cpu", "max",
		"-smp", strconv.Itoa(m.CPUs), "-m", strconv.Itoa(m.Memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", m.Kernel, "-initrd", m.Initramfs, "-append", strings.Join(m.commandLine(), " "),
		"-chardev", "file,id=console,path=" + filepath.Join(m.Out, ConsoleFile), "-serial", "chardev:console",
		"-chardev", "stdio,id=output,signal=off", "-serial", "chardev:output",
		"-device", "intel-iommu,intremap=on",
		"-virtfs", "local,path=/,mount_tag=" + guest.RootTag + ",security_model=none,readonly=on,multidevs=remap",
		"-virtfs", "local,path=" + m.Out + ",mount_tag=" + guest.OutTag + ",security_model=none",
		// A device that no driver of the kernel wants (docs/specs/edu.rst of QEMU).
		"-device", "edu",
		// A disk controller with virtual functions, none of which has a disk.
		"-device", "nvme-subsys,id=subsystem",
		"-device", "nvme,id=nvme,serial=fettle,subsys=subsystem,sriov_max_vfs=4,sriov_vq_flexible=8,sriov_vi_flexible=4," +
			"max_ioqpairs=10,msix_qsize=16",
	}
}

// Check fails where the emulator is too old for the machine. In those before 8.1 a processor may run an instruction that another one has
// just replaced, on which the kernel, which patches its own code, panics now and then ("Oops: int3"; seen with 7.2). It ended with QEMU's
// commit deba78709a, "accel/tcg: Always lock pages before translation".
func (m Machine) Check(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, Program, "--version").Output()
	if err != nil {
		return fmt.Errorf("ask the emulator for its version: %w", err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "QEMU emulator version %d.%d", &major, &minor); err != nil {
		return fmt.Errorf("%s --version says %q: %w", Program, out, err)
	}
	if m.CPUs > 1 && slices.Compare([]int{major, minor}, []int{8, 1}) < 0 {
		return fmt.Errorf("QEMU %d.%d emulates %d processors wrongly: install 8.1 or later, or give -cpus 1, which takes twice as long",
			major, minor, m.CPUs)
	}
	return nil
}

// commandLine are the words that the kernel is started with. A panic ends the machine, whose emulator does not boot it again. What the
// kernel does against leaks between processes only costs time here, as does clearing memory twice. On a busy host the kernel would take the
// processors' clocks for broken ones, and use others that are far slower to read.
//
// The timer of a processor ticks again and again, and is not set for the next event each time. On a busy host the interrupt of an idle
// processor's timer got lost (seen with 10.0: "rcu_preempt kthread timer wakeup didn't happen"), and what waited for it waited for ever.
func (m Machine) commandLine() []string {
	return append([]string{
		"console=ttyS0", "loglevel=4", "panic=-1", "intel_iommu=on", "mitigations=off", "init_on_alloc=0", "tsc=reliable",
		"nohz=off", "highres=off", guest.Marker,
	}, m.Append...)
}

// Run boots the machine and returns the exit status of its program, whose output goes to stdout. When ctx ends, the emulator is killed. An
// emulator that ends by an assertion of its own (seen with 10.0: iotlb_to_section in system/physmem.c, about once in a hundred runs) says
// nothing about the program. So the machine is booted once more then, and stderr says so.
func (m Machine) Run(ctx context.Context, stdout, stderr io.Writer) (int, error) {
	code, err := m.run(ctx, stdout, stderr)
	if !aborted(err) {
		return code, err
	}
	fmt.Fprintf(stderr, "FLAKY: the emulator ended by a fault of its own, and boots the machine once more: %v\n", err) // as far as it is seen
	return m.run(ctx, stdout, stderr)
}

// aborted reports whether a program ended itself by abort(3).
func aborted(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGABRT
}

func (m Machine) run(ctx context.Context, stdout, stderr io.Writer) (int, error) {
	status := filepath.Join(m.Out, guest.StatusFile)
	if err := os.Remove(status); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("forget an earlier exit status: %w", err)
	}
	command := exec.CommandContext(ctx, Program, m.arguments()...)
	command.Stdout, command.Stderr = stdout, stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	command.WaitDelay = time.Second
	runtime.LockOSThread() // the end of the thread that started it ends the emulator
	err := command.Run()
	runtime.UnlockOSThread()
	if ctx.Err() != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoStatus, context.Cause(ctx))
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %s: %w", ErrNoStatus, Program, err)
	}
	data, err := os.ReadFile(status)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoStatus, err)
	}
	code, err := strconv.Atoi(string(data))
	if err != nil {
		return 0, fmt.Errorf("%w: its exit status is %q", ErrNoStatus, data)
	}
	return code, nil
}
