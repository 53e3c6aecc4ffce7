// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// The environment variables that make the test's binary a confined process: the features, and the child's file to try.
const (
	asProcess = "TEST_CONFINE_FEATURES"
	asChild   = "TEST_CONFINE_CHILD"
	// asTaken has what a taken-over program attacks, as JSON.
	asTaken = "TEST_CONFINE_TAKEN"
)

func TestMain(m *testing.M) {
	switch features, isProcess := os.LookupEnv(asProcess); {
	case isProcess:
		exit(process(features))
	case os.Getenv(asChild) != "":
		exit(report(attempts(os.Getenv(asChild))))
	case os.Getenv(asTaken) != "":
		exit(taken(os.Getenv(asTaken)))
	}
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		syscall.Exit(1)
	}
	syscall.Exit(0)
}

// process is a program that confines itself and then tries everything.
func process(features string) error {
	var list []Feature
	for _, f := range strings.Fields(features) {
		list = append(list, Feature(f))
	}
	needs, err := NeedsOf(list...)
	if err != nil {
		return err
	}
	if err := Become(needs, os.Getenv(Marker)); err != nil {
		return err
	}
	if os.Getenv(Marker) != "" {
		return errors.New("children would get the marker")
	}
	return report(attempts("/etc/hostname"))
}

// outcome is what a confined program found.
type outcome struct {
	State State
	// Threads has the states of threads that were started afterwards; they must be the same.
	SameThreads bool
	// Errors are those of the attempts, "" for success.
	Errors map[string]string
}

func report(errs map[string]error) error {
	o := outcome{SameThreads: true, Errors: map[string]string{}}
	var err error
	if o.State, err = ReadState(); err != nil {
		return err
	}
	for range 4 {
		states := make(chan State)
		go func() {
			runtime.LockOSThread()
			s, _ := ReadState()
			states <- s
		}()
		o.SameThreads = o.SameThreads && <-states == o.State
	}
	for name, err := range errs {
		o.Errors[name] = ""
		if err != nil {
			o.Errors[name] = err.Error()
		}
	}
	return json.NewEncoder(os.Stdout).Encode(o)
}

// attempts tries what a confined program has no use for, and some things that it has.
func attempts(file string) map[string]error {
	call := func(number uintptr, args ...uintptr) error {
		var six [6]uintptr
		copy(six[:], args)
		_, _, errno := unix.RawSyscall6(number, six[0], six[1], six[2], six[3], six[4], six[5])
		if errno != 0 {
			return errno
		}
		return nil
	}
	socket := func(family int) error {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Close(fd)
		}
		return err
	}
	fsopen := func() error {
		fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
		if err == nil {
			err = unix.Close(fd)
		}
		return err
	}
	_, read := os.ReadFile(file)
	program := exec.Command("/bin/true")
	program.Env = []string{}
	return map[string]error{
		"module": call(unix.SYS_FINIT_MODULE, ^uintptr(0)), "kexec": call(unix.SYS_KEXEC_LOAD), "bpf": call(unix.SYS_BPF),
		"ptrace": call(unix.SYS_PTRACE, unix.PTRACE_TRACEME), "keyctl": call(unix.SYS_KEYCTL), "perf": call(unix.SYS_PERF_EVENT_OPEN),
		"userfaultfd": call(unix.SYS_USERFAULTFD), "io_uring": call(unix.SYS_IO_URING_SETUP), "handle": call(unix.SYS_OPEN_BY_HANDLE_AT),
		"vm": call(unix.SYS_PROCESS_VM_READV), "setns": call(unix.SYS_SETNS), "swapon": call(unix.SYS_SWAPON),
		"unshare": call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER), "mount": call(unix.SYS_MOUNT), "pivot": call(unix.SYS_PIVOT_ROOT),
		"clone": call(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)), "clone3": call(unix.SYS_CLONE3), "fsopen": fsopen(),
		"chroot": unix.Chroot("/"), "chown": os.Chown("/proc/self", 1, 1), "alg": socket(unix.AF_ALG), "packet": socket(unix.AF_PACKET),
		"vsock": socket(unix.AF_VSOCK), "inet": socket(unix.AF_INET), "unix": socket(unix.AF_UNIX), "read": read,
		"program": program.Run(), "setxattr": unix.Setxattr(file, "user.note", nil, 0),
	}
}

func run(t *testing.T, start func(*exec.Cmd) error, env ...string) outcome {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = env
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var o outcome
	if err := json.Unmarshal([]byte(stdout.String()), &o); err != nil {
		t.Fatal(err)
	}
	if !o.SameThreads {
		t.Error("other threads have other rights")
	}
	return o
}

// refused are the attempts that fail with EPERM in every confined program.
func refused() []string {
	return []string{
		"module", "kexec", "bpf", "ptrace", "keyctl", "perf", "userfaultfd", "io_uring", "handle", "vm", "setns", "swapon", "unshare", "mount",
		"pivot", "clone", "alg", "packet", "vsock",
	}
}

func rootOnly(t *testing.T) State {
	t.Helper()
	s, err := ReadState()
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 || !s.Effective.Has(Set(unix.CAP_SETPCAP, unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT)) {
		if os.Getenv("CI") == "true" {
			t.Fatal("not root with all capabilities")
		}
		t.Skip("not root with all capabilities: what has nothing cannot give it up")
	}
	return s
}

// TestBecome: with each feature and with all, the process has what the table says, in all its threads, and nothing else.
func TestBecome(t *testing.T) {
	rootOnly(t)
	all := strings.Join(featureNames(table()), " ")
	for _, features := range append(featureNames(table()), "", all) {
		t.Run(features, func(t *testing.T) {
			o := run(t, (*exec.Cmd).Start, asProcess+"="+features)
			var list []Feature
			for _, f := range strings.Fields(features) {
				list = append(list, Feature(f))
			}
			needs, err := NeedsOf(list...)
			if err != nil {
				t.Fatal(err)
			}
			want := State{
				Effective: needs.Capabilities, Permitted: needs.Capabilities, Bounding: needs.Capabilities, NoNewPrivileges: true, Seccomp: 2,
			}
			if diff := cmp.Diff(want, o.State); diff != "" {
				t.Errorf("rights (-want +got):\n%s", diff)
			}
			expect := map[string]string{"clone3": unix.ENOSYS.Error(), "inet": "", "unix": "", "program": ""}
			for _, name := range refused() {
				expect[name] = unix.EPERM.Error()
			}
			mounts := strings.Contains(features, "resetMounts") || strings.Contains(features, "kernelCaches") ||
				strings.Contains(features, "mpsMemory")
			for name, may := range map[string]bool{"fsopen": mounts, "chroot": strings.Contains(features, "xrt")} {
				expect[name] = map[bool]string{false: unix.EPERM.Error()}[may]
			}
			for name, want := range expect {
				if o.Errors[name] != want {
					t.Errorf("%s: %q, want %q", name, o.Errors[name], want)
				}
			}
		})
	}
}

// TestMarkerAlone: the marker without the rights given up is an error, not a way around.
func TestMarkerAlone(t *testing.T) {
	rootOnly(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{asProcess + "=", Marker + "=1"}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), ErrRights.Error()) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestChild: a program has what its row says and no more, also if its root directory is changed, and this process keeps what it has.
func TestChild(t *testing.T) {
	before := rootOnly(t)
	dir := t.TempDir()
	secret, open := filepath.Join(dir, "secret"), filepath.Join(dir, "open")
	for _, name := range []string{secret, open} {
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all := Everything(dir)
	paths := &Paths{Read: []string{open, "/proc", os.Args[0], "/nowhere", "/etc/hostname/x", "/lib64", "/lib", "/usr/lib", "/etc/ld.so.cache"}}
	for _, tc := range []struct {
		name string
		Child
		file string
		read string
	}{
		{"NVIDIA's, to make an instance", Child{Keep: MakesNodes(), Memory: 1 << 30, Paths: all, Majors: []uint32{1}}, secret, ""},
		{"NVIDIA's, to set a mode", Child{Keep: Setting(), Memory: 1 << 30, Paths: all}, secret, ""},
		{"none", Child{Memory: 1 << 30, Paths: all}, secret, ""},
		{"chroot", Child{Memory: 1 << 30, Chroot: true, Paths: all}, secret, ""},
		{"paths", Child{Memory: 1 << 30, Paths: paths}, open, ""},
		{"other path", Child{Memory: 1 << 30, Paths: paths}, secret, "open " + secret + ": permission denied"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := run(t, func(cmd *exec.Cmd) error {
				if tc.Chroot {
					cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: "/"}
				}
				if err := tc.Start(cmd); err != nil {
					return err
				}
				return tc.Limit(cmd.Process.Pid)
			}, asChild+"="+tc.file)
			want := State{Effective: tc.Keep, Permitted: tc.Keep, Bounding: tc.Keep, NoNewPrivileges: true, Seccomp: 2}
			if diff := cmp.Diff(want, o.State); diff != "" {
				t.Errorf("rights (-want +got):\n%s", diff)
			}
			if o.Errors["read"] != tc.read {
				t.Errorf("read %s: %q, want %q", tc.file, o.Errors["read"], tc.read)
			}
			for _, name := range append(refused(), "inet", "unix", "chroot", "fsopen", "setxattr") {
				if o.Errors[name] == "" {
					t.Errorf("%s succeeded", name)
				}
			}
			if tc.Paths == all && o.Errors["program"] != "" {
				t.Errorf("it could not start a program: %s", o.Errors["program"])
			}
		})
	}
	after, err := ReadState()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("this process's rights (-before +after):\n%s", diff)
	}
}

func TestLimit(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "read x; ulimit -c; ulimit -d")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd.Stdout = &out
	c := Child{Memory: 64 << 20, Paths: Everything()}
	err = errors.Join(c.Start(cmd))
	if err == nil {
		err = errors.Join(c.Limit(cmd.Process.Pid), stdin.Close(), cmd.Wait())
	}
	if err != nil || out.String() != "0\n65536\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := c.Limit(cmd.Process.Pid); err != nil {
		t.Errorf("a process that has ended: %v", err)
	}
}

func TestParseState(t *testing.T) {
	const good = "Name:\tx\nCapInh:\t0000000000000001\nCapPrm:\t0000000000000002\nCapEff:\t0000000000000003\nCapBnd:\t0000000000000004\n" +
		"CapAmb:\t0000000000000005\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n"
	s, err := ParseState(strings.NewReader(good))
	want := State{Inheritable: 1, Permitted: 2, Effective: 3, Bounding: 4, Ambient: 5, NoNewPrivileges: true, Seccomp: 2}
	if err != nil || s != want {
		t.Errorf("%+v, %v, want %+v", s, err, want)
	}
	const text = "CapEff: CHOWN DAC_OVERRIDE\nCapPrm: DAC_OVERRIDE\nCapInh: CHOWN\nCapBnd: DAC_READ_SEARCH\nCapAmb: CHOWN DAC_READ_SEARCH\n" +
		"NoNewPrivs: true\nSeccomp: 2\n"
	if got := s.String(); got != text {
		t.Errorf("%s, want %s", got, text)
	}
	for _, bad := range []string{
		"", strings.Replace(good, "CapBnd", "Cap", 1), strings.Replace(good, "\t2\nS", "\ttwo\nS", 1), strings.Replace(good, "0005", "zzzz", 1),
	} {
		if s, err := ParseState(strings.NewReader(bad)); err == nil {
			t.Errorf("%q: %+v", bad, s)
		}
	}
}

func TestNeedsOf(t *testing.T) {
	if _, err := NeedsOf("telepathy"); err == nil || !strings.Contains(err.Error(), "kernelCaches") {
		t.Errorf("an unknown feature: %v", err)
	}
	known := capabilityNames()
	for feature, needs := range table() {
		for _, name := range needs.Capabilities.Names() {
			if strings.Trim(name, "0123456789") == "" {
				t.Errorf("%s: capability %s has no name in %v", feature, name, known)
			}
		}
	}
}
