// SPDX-License-Identifier: Apache-2.0

package tool_test

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/hostlib"
	"github.com/fettle-dev/fettle/pkg/tool"
	"github.com/fettle-dev/fettle/test/check"
)

// copied copies a file of this machine, links followed, into a root under some name.
func copied(t *testing.T, from, root, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	check.Must(t, err)
	check.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, to)), 0o755))
	check.Must(t, os.WriteFile(filepath.Join(root, to), data, 0o755))
}

// driverRoot is a root with a program of this machine, which is linked dynamically, and all that it needs. It is found by an absolute link,
// as Debian's alternatives make them.
func driverRoot(t *testing.T) (root, loader string) {
	t.Helper()
	cat, err := exec.LookPath("cat")
	check.Must(t, err)
	file, err := elf.Open(cat)
	check.Must(t, err)
	defer file.Close()
	needed, err := file.ImportedLibraries()
	check.Must(t, err)
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			name := make([]byte, p.Filesz)
			_, err := p.ReadAt(name, 0)
			check.Must(t, err)
			loader = strings.TrimRight(string(name), "\x00")
		}
	}
	if loader == "" {
		t.Skip("cat is linked statically here")
	}
	host, err := hostlib.Open("/", hostlib.Config{})
	check.Must(t, err)
	defer host.Close()
	libraries, err := host.Libraries(needed)
	check.Must(t, err)
	root = t.TempDir()
	copied(t, cat, root, "usr/lib/vendor/current/tool")
	copied(t, loader, root, loader)
	for _, one := range libraries.Found {
		copied(t, one.HostPath, root, filepath.Join("usr/lib", one.Soname))
	}
	check.Must(t, os.Mkdir(filepath.Join(root, "usr/bin"), 0o755))
	check.Must(t, os.Symlink("/usr/lib/vendor/current/tool", filepath.Join(root, "usr/bin/tool")))
	return root, loader
}

// TestLoader: a program of a foreign root runs with that root's loader and libraries, and with none of this system's.
func TestLoader(t *testing.T) {
	root, loader := driverRoot(t)
	r := tool.Root{Dir: root, Loader: true, Reach: everything}
	p, err := r.Find("usr/local/bin/tool", "usr/bin/tool")
	check.Must(t, err)
	if want := filepath.Join(root, "usr/lib/vendor/current/tool"); p.Path() != want {
		t.Errorf("found %s, want %s", p.Path(), want)
	}
	maps, err := p.Run(t.Context(), tool.Run{Args: []string{"/proc/self/maps"}, Timeout: time.Minute})
	check.Must(t, err)
	for _, file := range regexp.MustCompile(`(?m)/\S*(\.so\S*|/tool)$`).FindAllString(maps, -1) {
		if !strings.HasPrefix(file, root) {
			t.Errorf("it has %s, want files below %s only", file, root)
		}
	}
	if !strings.Contains(maps, filepath.Base(loader)) || !strings.Contains(maps, root+"/usr/lib/libc.so") {
		t.Errorf("want the root's %s and C library in\n%s", loader, maps)
	}
	// What the program returns is its own.
	_, err = p.Run(t.Context(), tool.Run{Args: []string{"/nowhere"}, Timeout: time.Minute})
	if failure, ok := errors.AsType[*tool.Error](err); !ok || failure.Exit != 1 || !strings.Contains(failure.Output, "/nowhere") {
		t.Errorf("%v, %+v", err, failure)
	}
	// Without a loader below the root, this system's starts it, and finds libraries below the root first.
	check.Must(t, os.Remove(filepath.Join(root, loader)))
	p, err = r.Find("usr/bin/tool")
	check.Must(t, err)
	maps, err = p.Run(t.Context(), tool.Run{Args: []string{"/proc/self/maps"}, Timeout: time.Minute})
	if err != nil || !strings.Contains(maps, root+"/usr/lib/libc.so") {
		t.Errorf("without a loader in the root: %v\n%s", err, maps)
	}
}

// TestFindForLoader: what is no program of this machine is named with the reason, and links do not lead out.
func TestFindForLoader(t *testing.T) {
	outside := t.TempDir()
	copied(t, "/proc/self/exe", outside, "x")
	for name, tc := range map[string]struct {
		make func(root, file string) error
		want string // in the error; empty: found
		none bool
	}{
		"script": {make: func(_, f string) error { return os.WriteFile(f, []byte("#!/bin/sh\n"), 0o755) }, want: "ELF"},
		"others may write it": {
			make: func(_, f string) error { return errors.Join(os.WriteFile(f, nil, 0o755), os.Chmod(f, 0o777)) }, want: "0777",
		},
		"no execute permission": {make: func(_, f string) error { return os.WriteFile(f, nil, 0o644) }, want: "0644"},
		"directory":             {make: func(_, f string) error { return os.Mkdir(f, 0o755) }, want: "a directory"},
		"nothing":               {make: func(string, string) error { return nil }, want: "none of usr/bin/x", none: true},
		"link out of the root":  {make: func(_, f string) error { return os.Symlink(outside+"/x", f) }, want: "none of", none: true},
		"climbing out": {
			make: func(_, f string) error { return os.Symlink("../../../../../../../.."+outside+"/x", f) }, want: "none of", none: true,
		},
		"a pipe is not opened":   {make: func(_, f string) error { return unix.Mkfifo(f, 0o755) }, want: "a pipe"},
		"program for others":     {make: func(_, f string) error { return os.WriteFile(f, foreign(), 0o755) }, want: "EM_RISCV"},
		"absolute link in there": {make: inside},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			check.Must(t, os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755))
			check.Must(t, tc.make(root, filepath.Join(root, "usr/bin/x")))
			p, err := tool.Root{Dir: root, Loader: true, Reach: everything}.Find("usr/bin/x")
			if (err == nil) != (tc.want == "") || errors.Is(err, tool.ErrNotInstalled) != tc.none {
				t.Fatalf("found %q, %v", p.Path(), err)
			}
			if err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q in it", err, tc.want)
			}
		})
	}
}

// inside makes a link of the root to a static program in it.
func inside(root, file string) error {
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(root, "program"), data, 0o755), os.Symlink("/program", file))
}

// foreign is the header of a 64-bit ELF program of another machine.
func foreign() []byte {
	header := make([]byte, 64)
	copy(header, elf.ELFMAG)
	header[elf.EI_CLASS], header[elf.EI_DATA], header[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	header[16], header[18] = byte(elf.ET_EXEC), byte(elf.EM_RISCV)
	return header
}

// TestKeep: a program has the capabilities that its root says, of those that this process has, and still no socket.
func TestKeep(t *testing.T) {
	p := install(t, false)
	now, err := confine.ReadState()
	check.Must(t, err)
	keep := confine.Setting()
	if !now.Permitted.Has(keep) {
		t.Skip("this process has no right to give")
	}
	r := tool.Root{Dir: filepath.Dir(p.Path()), Keep: keep, Reach: everything}
	p, err = r.Find(filepath.Base(p.Path()))
	check.Must(t, err)
	got, err := p.Run(t.Context(), tool.Run{Args: []string{"rights"}, Timeout: time.Minute})
	check.Must(t, err)
	for _, want := range []string{
		"CapEff: SYS_ADMIN\n", "CapBnd: SYS_ADMIN\n", "CapInh: none\n", "Seccomp: 2\n", "socket: operation not permitted",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}
