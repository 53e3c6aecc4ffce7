// SPDX-License-Identifier: Apache-2.0

package tool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/tool"
	"github.com/fettle-dev/fettle/test/check"
)

// place is where the program is below its root: this test's binary under another name.
const place = "opt/bin/vendor-program"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == filepath.Base(place) {
		// os.Exit would have the race detector wait a second for reports.
		syscall.Exit(program(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// program does what its first argument says.
func program(args []string) int {
	switch args[0] {
	case "args":
		fmt.Println(strings.Join(args, "|"))
		fmt.Println(strings.Join(os.Environ(), "|"))
		n, err := os.Stdin.Read(make([]byte, 1))
		fmt.Println("input", n, err)
		cwd, err := os.Getwd()
		fmt.Println("in", cwd, err)
	case "list":
		entries, err := os.ReadDir("/")
		for _, e := range entries {
			fmt.Println(e.Name())
		}
		if err != nil {
			return 1
		}
	case "held":
		held, err := io.ReadAll(os.NewFile(3, "held"))
		fmt.Println(string(held), err)
	case "exit":
		fmt.Println("some words")
		fmt.Fprintln(os.Stderr, "and the \x1b[31mreason\xff")
		code, _ := strconv.Atoi(args[1])
		return code
	case "signal":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		check.Hang()
	case "endless":
		for {
			fmt.Println(strings.Repeat("x", 1<<12))
		}
	case "hang":
		child(args[1])
		check.Hang()
	case "leave":
		child(args[1])
	case "rights":
		state, err := confine.ReadState()
		fmt.Print(state)
		_, err2 := net.Dial("unix", "/nowhere")
		fmt.Println(err, err2)
		var data syscall.Rlimit
		fmt.Println(syscall.Getrlimit(syscall.RLIMIT_DATA, &data), data.Max)
	case "wait":
		if len(args) > 1 {
			_ = os.WriteFile(args[1], nil, 0o600)
		}
		check.Hang()
	}
	return 0
}

// child starts another process that hangs, and writes down which.
func child(file string) {
	cmd := exec.Command("/proc/self/exe", "wait")
	cmd.Args[0] = os.Args[0]
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err := cmd.Start()
	if err == nil {
		err = os.WriteFile(file+".tmp", []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
	}
	if err == nil {
		err = os.Rename(file+".tmp", file)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(9)
	}
}

// everything is what these programs reach: they write only to directories of tests.
func everything() *confine.Paths { return confine.Everything(os.TempDir()) }

func install(t *testing.T, chroot bool) tool.Program {
	t.Helper()
	root := tool.Root{Dir: t.TempDir(), Chroot: chroot, Reach: everything}
	to := filepath.Join(root.Dir, place)
	check.Must(t, os.MkdirAll(filepath.Dir(to), 0o755))
	exe, err := os.Executable()
	check.Must(t, err)
	from, err := os.Open(exe)
	check.Must(t, err)
	defer from.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	check.Must(t, err)
	_, err = io.Copy(f, from)
	check.Must(t, errors.Join(err, f.Close()))
	p, err := root.Find("nowhere/x", place)
	check.Must(t, err)
	return p
}

func TestRun(t *testing.T) {
	p := install(t, false)
	output, err := p.Run(t.Context(), tool.Run{Args: []string{"args", "--x=$(reboot)", ";", "*"}, Env: []string{"A=b"}, Timeout: time.Minute})
	check.Must(t, err)
	want := "args|--x=$(reboot)|;|*\nPATH=/usr/sbin:/usr/bin:/sbin:/bin|LANG=C|A=b\ninput 0 EOF\nin / <nil>\n"
	if diff := cmp.Diff(want, output); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	held, err := os.CreateTemp(t.TempDir(), "")
	check.Must(t, err)
	defer held.Close()
	_, err = held.WriteString("lock")
	check.Must(t, err)
	_, err = held.Seek(0, io.SeekStart)
	check.Must(t, err)
	output, err = p.Run(t.Context(), tool.Run{Args: []string{"held"}, Timeout: time.Minute, Hold: []*os.File{held}})
	if output != "lock <nil>\n" {
		t.Errorf("the program was not given the file: %q, %v", output, err)
	}
}

func TestFailures(t *testing.T) {
	p := install(t, false)
	for _, tc := range []struct {
		name    string
		args    []string
		cause   error
		started bool
		exit    int
		output  string
	}{
		{name: "exit", args: []string{"exit", "7"}, started: true, exit: 7, output: "some words\n\nand the ?[31mreason?"},
		{name: "signal", args: []string{"signal"}, started: true, exit: -1},
		{name: "endless", args: []string{"endless"}, cause: tool.ErrOutput, started: true, exit: -1, output: strings.Repeat("x", 1000)},
		{name: "empty argument", args: []string{"args", ""}, cause: tool.ErrNotStarted, exit: -1},
		{name: "argument with a space", args: []string{"args", "a b"}, cause: tool.ErrNotStarted, exit: -1},
		{name: "argument with a line", args: []string{"args", "a\nb"}, cause: tool.ErrNotStarted, exit: -1},
		{name: "argument with NUL", args: []string{"args", "a\x00b"}, cause: tool.ErrNotStarted, exit: -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := p.Run(t.Context(), tool.Run{Args: tc.args, Timeout: time.Minute})
			failure, ok := errors.AsType[*tool.Error](err)
			if !ok || failure.Started != tc.started || failure.Exit != tc.exit || !strings.Contains(failure.Output, tc.output) ||
				tc.cause != nil && !errors.Is(err, tc.cause) || len(failure.Output) > 1<<10 {
				t.Errorf("got %v, %+v", err, failure)
			}
		})
	}
}

// TestTimeout: a program that is not done in time is killed.
func TestTimeout(t *testing.T) {
	p := install(t, false)
	file := filepath.Join(t.TempDir(), "began")
	check.GrowingLimit(t, "the program begins", func(limit time.Duration) bool {
		_, err := p.Run(t.Context(), tool.Run{Args: []string{"wait", file}, Timeout: limit})
		if _, early := os.Stat(file); early != nil {
			return false
		}
		failure, ok := errors.AsType[*tool.Error](err)
		if !ok || !failure.Started || failure.Exit != -1 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, %+v", err, failure)
		}
		return true
	})
}

// TestConfined: the program has no capability and no socket. Package confine tests the same for another root directory.
func TestConfined(t *testing.T) {
	p := install(t, false)
	got, err := p.Run(t.Context(), tool.Run{Args: []string{"rights"}, Timeout: time.Minute})
	check.Must(t, err)
	bounding := ""
	for line := range strings.Lines(got) {
		if strings.HasPrefix(line, "CapBnd: ") {
			bounding = line
		}
	}
	if os.Geteuid() == 0 && bounding != "CapBnd: none\n" {
		t.Errorf("root may get %s", bounding)
	}
	want := "CapEff: none\nCapPrm: none\nCapInh: none\n" + bounding + "CapAmb: none\nNoNewPrivs: true\nSeccomp: 2\n" +
		"<nil> dial unix /nowhere: socket: operation not permitted\n<nil> 4294967296\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestGroup: whatever the program started dies with it, at the deadline and at its end.
func TestGroup(t *testing.T) {
	p := install(t, false)
	for _, how := range []string{"hang", "leave"} {
		t.Run(how, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pid")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := p.Run(ctx, tool.Run{Args: []string{how, file}, Timeout: time.Minute})
				ended <- err
			}()
			text := await(t, func() (string, bool) {
				text, err := os.ReadFile(file)
				return string(text), err == nil
			})
			if how == "hang" {
				cancel()
			}
			if err := <-ended; err == nil {
				t.Error("no error")
			}
			await(t, func() (string, bool) {
				stat, err := os.ReadFile("/proc/" + text + "/stat")
				return "", err != nil || strings.Contains(string(stat), ") Z ")
			})
		})
	}
}

func await(t *testing.T, done func() (string, bool)) string {
	t.Helper()
	var text string
	check.Eventually(t, "what the processes do", func() (ok bool) {
		text, ok = done()
		return ok
	})
	return text
}

func TestFind(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "program")
	check.Must(t, os.WriteFile(outside, nil, 0o755))
	for _, tc := range []struct {
		name string
		make func(file string) error
		want bool
		none bool
	}{
		{name: "program", make: func(f string) error { return os.WriteFile(f, nil, 0o755) }, want: true},
		{name: "no execute permission", make: func(f string) error { return os.WriteFile(f, nil, 0o644) }},
		{name: "others may write it", make: func(f string) error { return errors.Join(os.WriteFile(f, nil, 0o755), os.Chmod(f, 0o777)) }},
		{name: "directory", make: func(f string) error { return os.Mkdir(f, 0o755) }},
		{name: "link out of the root", make: func(f string) error { return os.Symlink(outside, f) }},
		{name: "dangling link", make: func(f string) error { return os.Symlink("nothing", f) }, none: true},
		{name: "nothing", make: func(string) error { return nil }, none: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := tool.Root{Dir: t.TempDir()}
			check.Must(t, os.MkdirAll(filepath.Join(root.Dir, "usr/bin"), 0o755))
			check.Must(t, tc.make(filepath.Join(root.Dir, "usr/bin/x")))
			p, err := root.Find("usr/local/bin/x", "usr/bin/x")
			if (err == nil) != tc.want || errors.Is(err, tool.ErrNotInstalled) != tc.none {
				t.Errorf("found %q, %v", p.Path(), err)
			}
		})
	}
}

func TestChroot(t *testing.T) {
	p := install(t, true)
	if got := p.Inside("opt/lib"); got != "/opt/lib" {
		t.Errorf("inside: %q", got)
	}
	output, err := p.Run(t.Context(), tool.Run{Args: []string{"list"}, Timeout: time.Minute})
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EPERM) {
		t.Skipf("needs root, and a test without C libraries: %v", err)
	}
	if output != "opt\n" || err != nil {
		t.Errorf("it sees %q, %v", output, err)
	}
}
