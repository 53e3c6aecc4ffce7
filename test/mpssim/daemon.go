// SPDX-License-Identifier: Apache-2.0

package mpssim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// daemon is the control daemon.
type daemon struct {
	self      string
	settings  Settings
	pipes     string
	multiUser bool
	devices   []string
	out       io.Writer

	mu         sync.Mutex
	percentage float64
	pinned     map[string]string
	// server is the process that the clients of one user have, and user its user.
	server *exec.Cmd
	user   uint32
	// starting is set while a server is started, for which the clients that come meanwhile wait.
	starting bool
	clients  map[int]*client
	next     int
	quit     chan struct{}
	ending   bool
}

type client struct {
	conn net.Conn
	pid  int32
}

func (d *daemon) logf(format string, args ...any) {
	line := fmt.Sprintf("[%s Control %5d] ", time.Now().Format("2006-01-02 15:04:05.000"), os.Getpid()) + fmt.Sprintf(format, args...)
	fmt.Fprintln(d.out, line)
	f, err := os.OpenFile(filepath.Join(os.Getenv(logVariable), "control.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return
	}
	fmt.Fprintln(f, line)
	_ = f.Close()
}

func (d *daemon) serve() error {
	listener, err := d.makePipes()
	if err != nil {
		return err
	}
	defer os.Remove(filepath.Join(d.pipes, pidFile)) //nolint:errcheck // it ends
	drain, err := os.OpenFile(filepath.Join(d.pipes, logPipe), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer drain.Close()
	go func() { _, _ = io.Copy(io.Discard, drain) }()
	d.logf("Starting control daemon using socket %s", filepath.Join(d.pipes, controlSocket))
	d.logf("To connect CUDA applications to this daemon, set env %s=%s", pipeVariable, d.pipes)
	go func() {
		<-d.quit
		_ = listener.Close()
	}()
	for {
		conn, err := listener.Accept()
		if err != nil {
			break
		}
		go d.connection(conn)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endServer()
	d.logf("Exit")
	return nil
}

// connection is a command, a server that reports, or a client.
func (d *daemon) connection(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // the other side looks at what it got
	if now, err := readSettings(filepath.Dir(d.self)); err == nil && now.Deaf {
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	input := bufio.NewReader(conn)
	line, err := input.ReadString('\n')
	if err != nil {
		return
	}
	verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch verb {
	case "command":
		text, err := d.command(strings.Fields(rest))
		if err != nil {
			fmt.Fprintf(conn, "error %v\n", err)
			return
		}
		fmt.Fprintf(conn, "ok %s\n", strings.ReplaceAll(text, "\n", "|"))
	case "server":
		fmt.Fprintln(conn, "ok")
		_, _ = io.Copy(io.Discard, input) // until either ends
	case "client":
		d.client(conn, input)
	}
}

func (d *daemon) command(words []string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	verb, args := words[0], words[1:]
	switch {
	case strings.HasPrefix(verb, "set_default_") && d.settings.LimitsFrom == FromVariables:
		return "", nil
	case strings.Contains(verb, "_default_"):
		return d.defaults(verb, args)
	case verb == "get_server_list" && len(args) == 0:
		if d.server == nil {
			return "", nil
		}
		return strconv.Itoa(d.server.Process.Pid), nil
	case verb == "get_client_list" && len(args) == 1:
		var pids []string
		for _, id := range slices.Sorted(maps.Keys(d.clients)) {
			pids = append(pids, strconv.Itoa(int(d.clients[id].pid)))
		}
		return strings.Join(pids, "\n"), nil
	case verb == "quit":
		if !d.settings.Stubborn && !d.ending {
			d.ending = true
			close(d.quit)
		}
		return "", nil
	}
	return "", unrecognized(verb)
}

func unrecognized(verb string) error {
	return fmt.Errorf("Unrecognized command %q", verb) //nolint:staticcheck // ST1005: as the real one
}

// fromEnvironment sets what new clients have from the variables with which the daemon was started.
func (d *daemon) fromEnvironment() error {
	if d.settings.LimitsFrom == FromCommands {
		return nil
	}
	if percentage := os.Getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"); percentage != "" {
		if _, err := d.defaults("set_default_active_thread_percentage", []string{percentage}); err != nil {
			return err
		}
	}
	for limit := range strings.SplitSeq(os.Getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), ",") {
		place, amount, ok := strings.Cut(limit, "=")
		if n, err := strconv.Atoi(place); ok && err == nil && n >= 0 && n < len(d.devices) {
			d.pinned[d.devices[n]] = amount
		}
	}
	return nil
}

// defaults gets and sets what new clients have.
func (d *daemon) defaults(verb string, args []string) (string, error) {
	switch {
	case verb == "get_default_active_thread_percentage" && len(args) == 0:
		return strconv.FormatFloat(d.percentage, 'f', 1, 64), nil
	case verb == "set_default_active_thread_percentage" && len(args) == 1:
		n, err := strconv.ParseFloat(args[0], 64)
		if err != nil || n <= 0 || n > 100 {
			return "", fmt.Errorf("Invalid active thread percentage %s", args[0]) //nolint:staticcheck // ST1005: as the real one
		}
		d.percentage = n
		return strconv.FormatFloat(n, 'f', 1, 64), nil
	case verb == "get_default_device_pinned_mem_limit" && len(args) == 1:
		return d.pinned[args[0]], nil
	case verb == "set_default_device_pinned_mem_limit" && len(args) == 2:
		if !slices.Contains(d.devices, args[0]) {
			return "", fmt.Errorf("Invalid device %s", args[0]) //nolint:staticcheck // ST1005: as the real one
		}
		d.pinned[args[0]] = args[1]
		return "", nil
	}
	return "", unrecognized(verb)
}

// client serves a CUDA program until it or the server ends.
func (d *daemon) client(conn net.Conn, input io.Reader) {
	user, pid, err := peer(conn)
	if err != nil {
		return
	}
	answer, id, err := d.admit(conn, user, pid)
	if err != nil {
		fmt.Fprintf(conn, "error %v\n", err)
		return
	}
	fmt.Fprintln(conn, answer)
	_, _ = io.Copy(io.Discard, input)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.clients, id)
}

// admit waits for the clients of another user to end, and starts a server for this one.
func (d *daemon) admit(conn net.Conn, user uint32, pid int32) (answer string, id int, err error) {
	if d.multiUser {
		user = 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.logf("NEW CLIENT %d from user %d", pid, user)
	for d.starting || d.server != nil && d.user != user && len(d.clients) > 0 {
		d.mu.Unlock()
		<-time.After(10 * time.Millisecond)
		d.mu.Lock()
	}
	if d.server != nil && d.user != user {
		d.endServer()
	}
	if d.server == nil {
		if err := d.startServer(user); err != nil {
			return "", 0, err
		}
	}
	d.next++
	d.clients[d.next] = &client{conn: conn, pid: pid}
	words := []string{fmt.Sprintf("ok server=%d user=%d percentage=%.1f", d.server.Process.Pid, d.user, d.percentage)}
	for _, uuid := range slices.Sorted(maps.Keys(d.pinned)) {
		words = append(words, fmt.Sprintf("pinned:%s=%s", uuid, d.pinned[uuid]))
	}
	return strings.Join(append(words, "devices="+strings.Join(d.devices, ",")), " "), d.next, nil
}

// startServer starts the server as the user of the client. Like the real one, that must reach the pipe directory by its path.
func (d *daemon) startServer(user uint32) error {
	cmd := exec.Command(d.self, serverArgument)
	cmd.Stdin = os.Stdin // a driver root need not have a /dev/null
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if user != uint32(os.Geteuid()) {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user, NoSetGroups: true}
	}
	var said strings.Builder
	cmd.Stderr = &said
	ready, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("MPS client failed to connect to the MPS control daemon or the MPS server: start it as user %d: %w", user, err)
	}
	// The pipe of the log blocks nobody, so the server tells at once.
	d.starting = true
	d.mu.Unlock()
	line, err := bufio.NewReader(ready).ReadString('\n')
	d.mu.Lock()
	d.starting = false
	if err != nil || line != "ready\n" {
		failed := errors.Join(err, cmd.Wait())
		d.logf("Server %d exited: %s", cmd.Process.Pid, said.String())
		return fmt.Errorf("MPS client failed to connect to the MPS control daemon or the MPS server: %w: %s",
			failed, strings.TrimSpace(said.String()))
	}
	d.server, d.user = cmd, user
	d.logf("NEW SERVER %d: Ready", cmd.Process.Pid)
	go func() {
		_ = cmd.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.server == cmd {
			d.logf("Server %d exited", cmd.Process.Pid)
			d.server = nil
			d.dropClients()
		}
	}()
	return nil
}

// endServer ends the server and its clients.
func (d *daemon) endServer() {
	if d.server != nil {
		_ = d.server.Process.Kill()
		d.server = nil
	}
	d.dropClients()
}

func (d *daemon) dropClients() {
	for id, c := range d.clients {
		_ = c.conn.Close()
		delete(d.clients, id)
	}
}

// server is the program nvidia-cuda-mps-server: it opens the log and connects to the control daemon, and ends with it.
func server(stderr io.Writer) int {
	pipes := os.Getenv(pipeVariable)
	log, err := os.OpenFile(filepath.Join(pipes, logPipe), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	defer log.Close()
	conn, err := net.Dial("unix", filepath.Join(pipes, controlSocket))
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	if _, err := ask(conn, fmt.Sprintf("server %d", os.Getpid())); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	if _, err := os.Stdout.WriteString("ready\n"); err != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, conn)
	return 0
}

// peer says who is at the other end.
func peer(conn net.Conn) (user uint32, pid int32, err error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var who *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { who, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, failed); err != nil {
		return 0, 0, err
	}
	return who.Uid, who.Pid, nil
}
