// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/hostlib"
	"github.com/fettle-dev/fettle/test/check"
)

// inUserNamespace is what the test program calls itself where it runs the hook as a container's root user.
const inUserNamespace = "hook-in-user-namespace"

// asContainer is the hook in a process of its own.
func asContainer(state io.Reader) error {
	program, err := OpenProgram(DefaultLdconfig())
	if err != nil {
		return err
	}
	defer program.Close()
	c, err := Open(state)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Links([]Link{{Target: "libfake.so.1", Path: ourDir + "/libfake.so"}}); err != nil {
		return err
	}
	l := Ldconfig{Dirs: []string{ourDir}, Program: program, Timeout: 10 * time.Second, Notes: os.Stderr}
	return l.Apply(context.Background(), c)
}

// TestUserNamespace: the root user of a pod's user namespace is nobody on the host, and has all that the hook needs.
func TestUserNamespace(t *testing.T) {
	needRoot(t)
	const first = 100000
	h := newHost(t)
	check.Must(t, filepath.WalkDir(h.root, func(name string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, first, first))
	}))
	for dir := h.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		check.Must(t, os.Chmod(dir, 0o755))
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: 1 << 16}}
	var stderr bytes.Buffer
	command := exec.Command("/proc/self/exe")
	command.Args = []string{inUserNamespace}
	command.Stdin, command.Stderr = strings.NewReader(h.state), &stderr
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		UidMappings: ids, GidMappings: ids, Credential: &syscall.Credential{},
	}
	if err := command.Start(); err != nil {
		t.Skipf("no user namespaces here: %v", err)
	}
	if err := command.Wait(); err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	if got := h.cached(t)["libfake.so.1"]; got != ourDir+"/libfake.so.1" {
		t.Errorf("libfake.so.1 is cached at %q", got)
	}
	info, err := os.Stat(h.in(hostlib.LoaderCache))
	check.Must(t, err)
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != first || info.Mode() != 0o644 {
		t.Errorf("the cache is of user %d with mode %s, want %d and 0644", owner, info.Mode(), first)
	}
}

// TestRealLoader runs a program in the container that is linked against a library of ours, with the loader of this machine.
func TestRealLoader(t *testing.T) {
	needRoot(t)
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("there is no C compiler here")
	}
	h := newHost(t)
	library, program := h.in(ourDir+"/libfakecuda.so.1.9"), h.in("/bin/program")
	check.Must(t, os.MkdirAll(filepath.Dir(program), 0o755))
	compile(t, "int fake(void) { return 42; }", "-shared", "-fPIC", "-Wl,-soname,libfakecuda.so.1", "-o", library)
	compile(t, "int fake(void); int main(void) { return fake() - 42; }", "-o", program, "-x", "none", library)
	copyLoader(t, h, program)
	start := func() error {
		command := exec.Command("/bin/program")
		command.Env = []string{"LD_LIBRARY_PATH=/of/the/image"}
		command.SysProcAttr = &syscall.SysProcAttr{Chroot: h.root}
		return command.Run()
	}
	if start() == nil {
		t.Fatal("the program runs before the hook did: it shows nothing")
	}
	check.Must(t, h.links(Link{Target: "libfakecuda.so.1.9", Path: ourDir + "/libfakecuda.so.1"}))
	begin := time.Now()
	_, err := h.ldconfig(t, ourDir)
	check.Must(t, err)
	t.Logf("the hook took %s", time.Since(begin).Round(time.Millisecond))
	if err := start(); err != nil {
		t.Errorf("the program does not find its library: %v", err)
	}
}

func compile(t *testing.T, source string, args ...string) {
	t.Helper()
	command := exec.Command("gcc", append([]string{"-x", "c", "-"}, args...)...)
	command.Stdin = strings.NewReader(source)
	if output, err := command.CombinedOutput(); err != nil {
		t.Skipf("the C compiler does not work: %v\n%s", err, output)
	}
}

// copyLoader gives a container the loader that a program asks for, and libc.
func copyLoader(t *testing.T, h *host, program string) {
	t.Helper()
	f, err := os.Open(program)
	check.Must(t, err)
	defer f.Close()
	object, err := hostlib.ReadObject(f)
	check.Must(t, err)
	if object.Interpreter != names().glibc {
		t.Skipf("the loader here is %s, want glibc's", object.Interpreter)
	}
	system, err := hostlib.Open("/", hostlib.Config{})
	check.Must(t, err)
	defer system.Close()
	found, err := system.Libraries([]string{"libc.so.6"})
	check.Must(t, err)
	if len(found.Found) != 1 {
		t.Fatalf("libc: %+v", found)
	}
	for from, to := range map[string]string{object.Interpreter: object.Interpreter, found.Found[0].HostPath: "/usr/lib/libc.so.6"} {
		content, err := os.ReadFile(from)
		check.Must(t, err)
		h.write(t, h.in(to), string(content), 0o755)
		check.Must(t, os.Chmod(h.in(to), 0o755))
	}
}
