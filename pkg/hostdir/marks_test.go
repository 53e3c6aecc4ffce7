// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// acl gives a user everything, beside what the mode 0755 gives: version 2, then tag, permissions and id of each entry.
func acl(user uint32) []byte {
	entry := func(tag, permissions byte, id uint32) []byte {
		return []byte{tag, 0, permissions, 0, byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)}
	}
	const none = 0xffffffff
	return bytes.Join([][]byte{
		{2, 0, 0, 0}, entry(1, 7, none), entry(2, 7, user), entry(4, 5, none), entry(16, 7, none), entry(32, 5, none),
	}, nil)
}

// mark sets an attribute, where the file system has it.
func mark(t *testing.T, name, attribute string, value []byte) {
	t.Helper()
	err := unix.Setxattr(name, attribute, value, 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this file system has no %s", attribute)
	}
	check.Must(t, err)
}

// flag sets flags, where the file system and the test may.
func flag(t *testing.T, name string, flags int) {
	t.Helper()
	f, err := os.Open(name)
	check.Must(t, err)
	defer f.Close()
	if err := setFlags(int(f.Fd()), flags); err != nil {
		t.Logf("nobody sets flags %#x of %s: %v", flags, name, err)
	}
}

// TestErrorsHaveOneOrder: what cannot be put back is told in one order, so that the same failure makes the same Event each time.
func TestErrorsHaveOneOrder(t *testing.T) {
	d, err := Open(t.TempDir())
	check.Must(t, err)
	defer d.Close()
	want := Marks{Attributes: map[string][]byte{}} // of a kind that no file system has
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		want.Attributes["none."+name] = []byte(name)
	}
	first := d.clean(t.Context(), &want)
	for range 8 {
		if again := d.clean(t.Context(), &want); first == nil || again.Error() != first.Error() {
			t.Fatalf("%v, before %v", again, first)
		}
	}
}

const (
	immutable = 0x10
	noDump    = 0x40
	aclOfNew  = "system.posix_acl_default"
	aclOfIt   = "system.posix_acl_access"
)

// TestTenantLeavesNothingOnTheDirectory: a container sets on its directory whatever it can, and on files in it what keeps them from being
// deleted. The next claim finds the directory as the administrator made it.
func TestTenantLeavesNothingOnTheDirectory(t *testing.T) {
	for name, lost := range map[string]bool{"as prepared": false, "without the record": true} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			disk := filepath.Join(root, "disk")
			check.Must(t, os.Mkdir(disk, 0o755))
			if !lost {
				mark(t, disk, "user.owner", []byte("admin"))
				mark(t, disk, aclOfIt, acl(4000))
				flag(t, disk, noDump)
			}
			marks := func() Marks {
				t.Helper()
				d, err := Open(disk)
				check.Must(t, err)
				m, err := d.marks()
				check.Must(t, errors.Join(err, d.Close()))
				return m
			}
			info, err := os.Stat(disk)
			check.Must(t, err)
			before, mode := marks(), info.Mode()

			kinds := step.Kinds{StepKind: Kind(root, OpenRoot)}
			s, err := Plan(root, "/disk", "uid-1")
			check.Must(t, err)
			check.Must(t, kinds.Apply(t.Context(), s))
			check.Must(t, os.WriteFile(filepath.Join(disk, "file"), nil, 0o600))
			check.Must(t, os.WriteFile(filepath.Join(disk, "large"), make([]byte, small+1), 0o600))
			mark(t, disk, "user.note", []byte("for the next"))
			mark(t, disk, aclOfNew, acl(4242))
			mark(t, disk, aclOfIt, acl(4242))
			_ = unix.Removexattr(disk, "user.owner")
			flag(t, filepath.Join(disk, "file"), immutable)
			flag(t, filepath.Join(disk, "large"), immutable)
			flag(t, disk, immutable|noDump|0x80)
			if lost {
				s, err = PlanUndo(root, "/disk", "uid-1")
				check.Must(t, err)
			}
			for range 2 {
				check.Must(t, kinds.Undo(t.Context(), s))
				check.Must(t, kinds.Finish(t.Context(), s))
			}
			if diff := cmp.Diff(before, marks()); diff != "" {
				t.Errorf("marks of the directory (-before +after):\n%s", diff)
			}
			if info, err := os.Stat(disk); err != nil || info.Mode() != mode {
				t.Errorf("mode %v, %v, want %v", info.Mode(), err, mode)
			}
			if names, err := os.ReadDir(disk); err != nil || len(names) > 0 {
				t.Errorf("there is %v, %v", names, err)
			}
		})
	}
}

// inMemory makes a directory on a file system that takes any number of attributes, as XFS does.
func inMemory(t *testing.T) (root, disk string) {
	t.Helper()
	root = t.TempDir()
	disk = filepath.Join(root, "disk")
	mount(t, disk, check.Tmpfs("size=1m"))
	mark(t, disk, "user.owner", []byte("admin"))
	return root, disk
}

// TestLargeAttributes: a container gives its directory many large attributes. They are taken off unread, whatever memory they would need.
func TestLargeAttributes(t *testing.T) {
	const many, size, limit = 512, 64 << 10, 2 << 20
	root, disk := inMemory(t)
	kinds := step.Kinds{StepKind: Kind(root, OpenRoot)}
	s, err := Plan(root, "/disk", "uid-1")
	check.Must(t, err)
	check.Must(t, kinds.Apply(t.Context(), s))
	for i := range many {
		mark(t, disk, fmt.Sprintf("user.%d", i), make([]byte, size))
	}
	_, err = Plan(root, "/disk", "uid-1")
	check.WantErr(t, err, nil, disk, "attributes")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	check.Must(t, kinds.Undo(t.Context(), s))
	if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > limit {
		t.Errorf("%d bytes were allocated for %d of attributes, want at most %d", after.TotalAlloc-before.TotalAlloc, many*size, limit)
	}
	d, err := Open(disk)
	check.Must(t, err)
	m, err := d.marks()
	check.Must(t, errors.Join(err, d.Close()))
	if diff := cmp.Diff(map[string][]byte{"user.owner": []byte("admin")}, m.Attributes); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
}

// TestManyAttributes: the kernel lists no names of more than 64 KiB, so nobody can take such attributes off. The error says what to do.
func TestManyAttributes(t *testing.T) {
	root, disk := inMemory(t)
	kinds := step.Kinds{StepKind: Kind(root, OpenRoot)}
	s, err := Plan(root, "/disk", "uid-1")
	check.Must(t, err)
	check.Must(t, kinds.Apply(t.Context(), s))
	for i := range 300 {
		mark(t, disk, fmt.Sprintf("user.%d%s", i, strings.Repeat("n", 240)), nil)
	}
	check.WantErr(t, kinds.Undo(t.Context(), s), nil, disk, "make it again")
}

// projects is a directory of a file system that has projects, as XFS has them: it renames nothing of another project into a directory whose
// project new entries inherit. Here every directory has a project of its own.
type projects struct{ Root }

func (p projects) open(path string) (root Root, err error) {
	p.Root, err = OpenRoot(path)
	return p, err
}

func (p projects) OpenRoot(name string) (root Root, err error) {
	p.Root, err = p.Root.OpenRoot(name)
	return p, err
}

func (p projects) Rename(from, to string) error {
	f, err := p.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer f.Close()
	var x fsxattr
	if err := x.ioctl(int(f.Fd()), fsGetXattr); err != nil || x.flags&0x200 != 0 {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: unix.EXDEV}
	}
	return p.Root.Rename(from, to)
}

// TestProjects: whatever projects a container gives its files and directories, they go. New entries of the directory inherit one.
func TestProjects(t *testing.T) {
	root := t.TempDir()
	disk := filepath.Join(root, "disk")
	inherit := func(name string) {
		t.Helper()
		f, err := os.Open(name)
		check.Must(t, err)
		defer f.Close()
		if err := setFlags(int(f.Fd()), 0x20000000); err != nil {
			t.Skipf("this file system has no projects: %v", err)
		}
	}
	check.Must(t, os.MkdirAll(disk, 0o755))
	inherit(disk)
	kinds := step.Kinds{StepKind: Kind(root, projects{}.open)}
	s, err := Plan(root, "/disk", "uid-1")
	check.Must(t, err)
	check.Must(t, kinds.Apply(t.Context(), s))
	check.Must(t, os.MkdirAll(filepath.Join(disk, "a", "b", "c"), 0o755))
	check.Must(t, os.MkdirAll(filepath.Join(disk, trashPrefix+"mine", "b", "c"), 0o755))
	for _, name := range []string{"a", "a/b", trashPrefix + "mine", trashPrefix + "mine/b"} {
		inherit(filepath.Join(disk, name))
	}
	check.Must(t, kinds.Undo(t.Context(), s))
	check.Must(t, kinds.Finish(t.Context(), s))
	if names, err := os.ReadDir(disk); err != nil || len(names) > 0 {
		t.Errorf("there is %v, %v", names, err)
	}
}

// onDisk mounts a new disk with a file system that the test's machine may lack the program for.
func onDisk(t *testing.T, program string, size int64) (root string) {
	t.Helper()
	mkfs, err := exec.LookPath(program)
	if err != nil || os.Geteuid() != 0 {
		t.Skipf("needs root and %s: %v", program, err)
	}
	image := filepath.Join(t.TempDir(), "disk.img")
	check.Must(t, os.WriteFile(image, nil, 0o600), os.Truncate(image, size))
	if out, err := exec.CommandContext(t.Context(), mkfs, "-q", image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	root = t.TempDir()
	attach(t, image, root)
	return root
}

// TestFlagsOfXFS: what a container sets on its directory by other calls than for the usual flags goes, too, and the administrator's stays.
func TestFlagsOfXFS(t *testing.T) {
	const noSymlinks, noDefragment = 0x400, 0x2000
	root := onDisk(t, "mkfs.xfs", 320<<20)
	disk := filepath.Join(root, "disk")
	check.Must(t, os.Mkdir(disk, 0o755))
	set := func(to XFlags) {
		t.Helper()
		f, err := os.Open(disk)
		check.Must(t, err)
		check.Must(t, setXFlags(int(f.Fd()), to), f.Close())
	}
	set(XFlags{Flags: noDefragment})
	kinds := step.Kinds{StepKind: Kind(root, OpenRoot)}
	for _, lost := range []bool{false, true} {
		s, err := Plan(root, "/disk", "uid-1")
		check.Must(t, err)
		check.Must(t, kinds.Apply(t.Context(), s))
		set(XFlags{Flags: noSymlinks | 0x1000, ExtentSize: 1 << 20})
		want := XFlags{Flags: noDefragment}
		if lost {
			want = XFlags{}
			s, err = PlanUndo(root, "/disk", "uid-1")
			check.Must(t, err)
		}
		check.Must(t, kinds.Undo(t.Context(), s))
		d, err := Open(disk)
		check.Must(t, err)
		m, err := d.marks()
		check.Must(t, errors.Join(err, d.Close()))
		if *m.XFS != want {
			t.Errorf("record lost %v: %+v, want %+v", lost, *m.XFS, want)
		}
		link := filepath.Join(disk, "link")
		check.Must(t, os.Symlink("target", link), os.Remove(link))
	}
}

// TestSubvolumes: a container may make subvolumes of Btrfs in its directory, and make them and the directory itself read-only. They go.
func TestSubvolumes(t *testing.T) {
	root := onDisk(t, "mkfs.btrfs", 200<<20)
	subvolume := func(name string) {
		t.Helper()
		parent, err := os.Open(filepath.Dir(filepath.Join(root, name)))
		check.Must(t, err)
		defer parent.Close()
		var args [4096]byte // btrfs_ioctl_vol_args
		copy(args[8:], filepath.Base(name))
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, parent.Fd(), 0x5000940e, uintptr(unsafe.Pointer(&args)))
		if errno != 0 {
			t.Fatal(errno)
		}
	}
	readOnly := func(name string) {
		t.Helper()
		f, err := os.Open(filepath.Join(root, name))
		check.Must(t, err)
		defer f.Close()
		flags := uint64(readOnlySubvolume)
		check.Must(t, subvolumeFlags(int(f.Fd()), setSubvolumeFlags, &flags))
	}
	subvolume("disk")
	kinds := step.Kinds{StepKind: Kind(root, OpenRoot)}
	s, err := Plan(root, "/disk", "uid-1")
	check.Must(t, err)
	check.Must(t, kinds.Apply(t.Context(), s))
	check.Must(t, os.MkdirAll(filepath.Join(root, "disk/d/e"), 0o755))
	for _, name := range []string{"disk/top", "disk/d/e/below", "disk/writable"} {
		subvolume(name)
		check.Must(t, os.MkdirAll(filepath.Join(root, name, "a", "b", "c"), 0o755))
	}
	for _, name := range []string{"disk/top", "disk/d/e/below", "disk"} {
		readOnly(name)
	}
	check.Must(t, kinds.Undo(t.Context(), s))
	check.Must(t, kinds.Finish(t.Context(), s))
	if names, err := os.ReadDir(filepath.Join(root, "disk")); err != nil || len(names) > 0 {
		t.Errorf("there is %v, %v", names, err)
	}
}
