// SPDX-License-Identifier: Apache-2.0

package mpssim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fettle-dev/fettle/pkg/filelock"
)

// The variables that the programs read.
const (
	pipeVariable    = "CUDA_MPS_PIPE_DIRECTORY"
	logVariable     = "CUDA_MPS_LOG_DIRECTORY"
	devicesVariable = "CUDA_VISIBLE_DEVICES"
)

// The names in the pipe directory.
const (
	controlSocket = "control"
	logPipe       = "log"
	lockFile      = "control_lock"
	pidFile       = "nvidia-cuda-mps-control.pid"
)

// serverArgument makes the program the server. The real one is a program of its own beside it.
const serverArgument = "--as-server"

// Control is the program nvidia-cuda-mps-control. It returns its exit status.
func Control(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	foreground, background, multiUser := false, false, false
	for _, arg := range args {
		switch arg {
		case "-f":
			foreground = true
		case "-d":
			background = true
		case "-M", "-multiuser-server", "--multiuser-server":
			multiUser = true
		case serverArgument:
			return server(stderr)
		default:
			fmt.Fprintf(stderr, "Unknown option %q. Usage: nvidia-cuda-mps-control [-d | -f] [-M]\n", arg)
			return 1
		}
	}
	pipes := os.Getenv(pipeVariable)
	if pipes == "" { // as that of driver 580 (kubernetes-sigs/dra-driver-nvidia-gpu#1143)
		fmt.Fprintf(stderr, "%s must be set to start or to communicate with MPS control daemon\n", pipeVariable)
		return 1
	}
	var err error
	switch {
	case foreground:
		err = runDaemon(pipes, multiUser, stdout)
	case background:
		err = detach(pipes, args)
	default:
		err = sendCommands(pipes, stdin, stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// own is this program. There may be no /proc that tells.
func own() (string, error) { return exec.LookPath(os.Args[0]) }

// detach starts the daemon in the background and returns when it answers.
func detach(pipes string, args []string) error {
	self, err := own()
	if err != nil {
		return err
	}
	in := []string{"-f"}
	for _, arg := range args {
		if arg != "-d" {
			in = append(in, arg)
		}
	}
	cmd := exec.Command(self, in...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdin = os.Stdin
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			return fmt.Errorf("the daemon ended: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
		if conn, err := net.Dial("unix", filepath.Join(pipes, controlSocket)); err == nil {
			return conn.Close()
		}
	}
}

// sendCommands sends each line of the input to the daemon and prints the answers.
func sendCommands(pipes string, stdin io.Reader, stdout io.Writer) error {
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		conn, err := net.Dial("unix", filepath.Join(pipes, controlSocket))
		if err != nil {
			return fmt.Errorf("Cannot find MPS control daemon process: %w", err) //nolint:staticcheck // ST1005: as the real one
		}
		answer, err := ask(conn, "command "+line)
		if err := errors.Join(err, conn.Close()); err != nil {
			return err
		}
		text, ok := strings.CutPrefix(answer, "ok ")
		if !ok {
			return errors.New(strings.TrimPrefix(answer, "error "))
		}
		if text = strings.TrimSpace(text); text != "" {
			fmt.Fprintln(stdout, strings.ReplaceAll(text, "|", "\n"))
		}
	}
	return lines.Err()
}

// ask writes one line and reads one.
func ask(conn net.Conn, line string) (string, error) {
	if _, err := fmt.Fprintln(conn, line); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("the daemon does not answer: %w", err)
	}
	return answer, nil
}

// runDaemon is the control daemon in the foreground.
func runDaemon(pipes string, multiUser bool, stdout io.Writer) error {
	self, err := own()
	if err != nil {
		return err
	}
	settings, err := readSettings(filepath.Dir(self))
	if err != nil {
		return err
	}
	if settings.FailStart != "" {
		return errors.New(settings.FailStart)
	}
	devices := strings.Split(os.Getenv(devicesVariable), ",")
	if err := settings.checkDevices(filepath.Dir(self), devices); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(pipes, lockFile), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := lock.Chmod(0o666); err != nil {
		return err
	}
	if ok, err := filelock.TryFlock(lock, filelock.Exclusive); err != nil || !ok {
		return errors.Join(errors.New("An instance of this daemon is already running"), err) //nolint:staticcheck // ST1005: as the real one
	}
	d := &daemon{
		self: self, settings: settings, pipes: pipes, multiUser: multiUser, devices: devices, out: stdout,
		percentage: 100, pinned: map[string]string{}, clients: map[int]*client{}, quit: make(chan struct{}),
	}
	if err := d.fromEnvironment(); err != nil {
		return err
	}
	if settings.Stubborn {
		signal.Ignore(syscall.SIGTERM)
	}
	for settings.StartsWith != "" {
		if _, err := os.Stat(filepath.Join(filepath.Dir(self), settings.StartsWith)); err == nil {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	return d.serve()
}

// makePipes makes what clients and servers look for, for all users.
func (d *daemon) makePipes() (net.Listener, error) {
	at := func(name string) string { return filepath.Join(d.pipes, name) }
	for _, name := range []string{controlSocket, logPipe, pidFile} {
		if err := os.Remove(at(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	if err := syscall.Mkfifo(at(logPipe), 0o666); err != nil {
		return nil, fmt.Errorf("make the log's pipe: %w", err)
	}
	if err := os.WriteFile(at(pidFile), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o666); err != nil {
		return nil, err
	}
	return net.Listen("unix", at(controlSocket))
}
