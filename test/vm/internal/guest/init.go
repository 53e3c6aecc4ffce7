// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Init is what the first process does: it runs the job and switches the machine off. It returns only where even that fails.
func Init() error {
	status, err := run()
	if err != nil {
		tell("%v", err)
	} else {
		err = finish(status)
	}
	unix.Sync()
	return errors.Join(err, unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

// tell writes a line to the kernel's log, which the host keeps.
func tell(format string, args ...any) {
	if f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0); err == nil {
		fmt.Fprintf(f, "<3>vm: "+format, args...)
		_ = f.Close()
	}
}

// run makes the root, runs the job in it and returns its exit status.
func run() (status int, err error) {
	if err := os.Setenv("PATH", Path); err != nil {
		return 0, err
	}
	if err := mountAll(early()); err != nil {
		return 0, err
	}
	data, err := os.ReadFile(JobFile)
	if err != nil {
		return 0, fmt.Errorf("read the job: %w", err)
	}
	var job Job
	if err := json.Unmarshal(data, &job); err != nil {
		return 0, fmt.Errorf("decode the job: %w", err)
	}
	if err := loadModules(ModulesDir); err != nil {
		return 0, err
	}
	if err := enterRoot(job); err != nil {
		return 0, err
	}
	if len(job.Load) > 0 {
		if out, err := exec.Command("modprobe", append([]string{"--all"}, job.Load...)...).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("load modules: %w: %s", err, out)
		}
	}
	if err := loopback(); err != nil {
		return 0, err
	}
	tell("the machine is ready after %s", uptime())
	if status, err = runProgram(job); err == nil && status != 0 {
		keepResults(job.Results)
	}
	return status, err
}

// keepResults copies directories for the host, as far as they are there.
func keepResults(dirs []string) {
	for _, dir := range dirs {
		err := os.CopyFS(filepath.Join(OutDir, filepath.Base(dir)), os.DirFS(dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			tell("keep %s: %v", dir, err)
		}
	}
}

// loadModules loads the modules of a directory in the order of their names.
func loadModules(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("load modules: %w", err)
	}
	for _, file := range files {
		if err := loadModule(filepath.Join(dir, file.Name())); err != nil {
			return fmt.Errorf("load module %s: %w", file.Name(), err)
		}
	}
	return nil
}

// loadModule has the kernel load a module, and unpack it first where its name says that it is compressed.
func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(path, ".ko") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// loopback switches the network's loopback interface on.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("switch loopback on: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("switch loopback on: %w", err)
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("switch loopback on: %w", err)
	}
	return nil
}

// uptime is how long the kernel has run.
func uptime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano()).Round(100 * time.Millisecond)
}

// runProgram starts the job's program and takes the exit status of every process that ends, until the program has ended.
func runProgram(job Job) (int, error) {
	terminal, err := openTerminal()
	if err != nil {
		return 0, err
	}
	defer terminal.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	program := job.Args[0]
	if !strings.Contains(program, "/") {
		if program, err = exec.LookPath(program); err != nil {
			return 0, fmt.Errorf("find the program: %w", err)
		}
	}
	process, err := os.StartProcess(program, job.Args, &os.ProcAttr{
		Dir: job.Dir, Env: job.Env, Files: []*os.File{null, terminal, terminal}, Sys: &unix.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start the program: %w", err)
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the program: %w", err)
		case pid != process.Pid:
		case status.Signaled():
			const bySignal = 128 // as a shell says it
			return bySignal + int(status.Signal()), nil
		default:
			return status.ExitStatus(), nil
		}
	}
}

// openTerminal opens the terminal for output, which then changes nothing of it.
func openTerminal() (*os.File, error) {
	f, err := os.OpenFile("/dev/"+Terminal, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the terminal: %w", err)
	}
	settings, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err == nil {
		settings.Oflag &^= unix.OPOST
		err = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, settings)
	}
	if err != nil {
		return nil, fmt.Errorf("set the terminal: %w", errors.Join(err, f.Close()))
	}
	return f, nil
}

// finish leaves the kernel's log and then the exit status for the host.
func finish(status int) error {
	log, err := exec.Command("dmesg").Output()
	if err == nil {
		err = os.WriteFile(filepath.Join(OutDir, KernelLog), log, 0o644)
	}
	if err != nil {
		tell("keep the kernel's log: %v", err)
	}
	if err := os.WriteFile(filepath.Join(OutDir, StatusFile), []byte(strconv.Itoa(status)), 0o644); err != nil {
		tell("tell the exit status: %v", err)
		return err
	}
	return nil
}
