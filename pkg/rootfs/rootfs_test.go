// SPDX-License-Identifier: Apache-2.0

package rootfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/rootfs"
	"github.com/fettle-dev/fettle/test/check"
)

// open makes a root with a file, beside a secret that no path below the root may reach.
func open(t *testing.T) (*rootfs.Root, string) {
	t.Helper()
	dir := t.TempDir()
	check.Must(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("outside"), 0o600))
	root := filepath.Join(dir, "root")
	check.Must(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
	check.Must(t, os.WriteFile(filepath.Join(root, "a/b/file"), []byte("inside"), 0o600))
	check.Must(t, os.WriteFile(filepath.Join(root, "secret"), []byte("inside too"), 0o600))
	r, err := rootfs.Open(root)
	check.Must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r, root
}

// TestPaths: links and dots lead to where they would lead a chrooted process.
func TestPaths(t *testing.T) {
	r, root := open(t)
	for link, target := range map[string]string{
		"absolute": "/a/b/file", "up": "../../../secret", "relative": "a/b/../b/file", "loop": "loop", "dangling": "/nowhere",
		"magic": "/proc/self/root", "dir": "/a",
	} {
		check.Must(t, os.Symlink(target, filepath.Join(root, link)))
	}
	for _, test := range []struct {
		name, want, resolved string
		wantErr              error
	}{
		{name: "/a/b/file", want: "inside", resolved: "/a/b/file"},
		{name: "a/b/file", want: "inside", resolved: "/a/b/file"},
		{name: "/../../secret", want: "inside too", resolved: "/secret"},
		{name: "absolute", want: "inside", resolved: "/a/b/file"},
		{name: "relative", want: "inside", resolved: "/a/b/file"},
		{name: "up", want: "inside too", resolved: "/secret"},
		{name: "dir/b/file", want: "inside", resolved: "/a/b/file"},
		{name: "loop", wantErr: unix.ELOOP},
		{name: "dangling", wantErr: unix.ENOENT},
		{name: "magic", wantErr: unix.ENOENT},
		{name: "a", wantErr: rootfs.ErrNotRegular},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := r.ReadFile(test.name, 100)
			if !errors.Is(err, test.wantErr) || string(got) != test.want {
				t.Errorf("ReadFile: %q, %v, want %q, %v", got, err, test.want, test.wantErr)
			}
			if test.resolved == "" {
				return
			}
			resolved, stat, err := r.Resolve(test.name)
			if err != nil || resolved != test.resolved || stat.Size != int64(len(test.want)) {
				t.Errorf("Resolve: %q of %d bytes, %v, want %q", resolved, stat.Size, err, test.resolved)
			}
		})
	}
}

// TestMagic: proc's links lead out of any root, so they are refused even in the root of the system.
func TestMagic(t *testing.T) {
	r, err := rootfs.Open("/")
	check.Must(t, err)
	defer r.Close()
	if _, err := r.Stat("/proc/self/root/etc"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("through /proc/self/root: %v, want %v", err, unix.ELOOP)
	}
	if resolved, _, err := r.Resolve("/etc/../etc"); err != nil || resolved != "/etc" {
		t.Errorf("Resolve: %q, %v, want /etc", resolved, err)
	}
}

// TestNotRegular: nothing but a regular file is opened, so nothing blocks.
func TestNotRegular(t *testing.T) {
	r, root := open(t)
	check.Must(t, unix.Mkfifo(filepath.Join(root, "pipe"), 0o600))
	_, err := r.ReadFile("pipe", 1)
	if !errors.Is(err, rootfs.ErrNotRegular) {
		t.Errorf("a pipe: %v, want %v", err, rootfs.ErrNotRegular)
	}
	if _, err := r.ReadFile("secret", 3); !errors.Is(err, rootfs.ErrTooLarge) {
		t.Errorf("a large file: %v, want %v", err, rootfs.ErrTooLarge)
	}
	names, err := r.ReadDir("/")
	if diff := cmp.Diff([]string{"a", "pipe", "secret"}, names); diff != "" || err != nil {
		t.Errorf("ReadDir: %v (-want +got):\n%s", err, diff)
	}
}

// TestOneMount: a mount below the root belongs to it only where that was asked for.
func TestOneMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	_, root := open(t)
	check.Must(t, unix.Mount(filepath.Join(root, "a"), filepath.Join(root, "a"), "", unix.MS_BIND, ""))
	t.Cleanup(func() { check.Must(t, unix.Unmount(filepath.Join(root, "a"), unix.MNT_DETACH)) })
	all, err := rootfs.Open(root)
	check.Must(t, err)
	defer all.Close()
	one, err := rootfs.OpenOneMount(root)
	check.Must(t, err)
	defer one.Close()
	if resolved, _, err := all.Resolve("/a/b/file"); err != nil || resolved != "/a/b/file" {
		t.Errorf("Open: %q, %v", resolved, err)
	}
	if _, err := one.Stat("/a/b/file"); !errors.Is(err, unix.EXDEV) {
		t.Errorf("OpenOneMount: %v, want %v", err, unix.EXDEV)
	}
	if _, err := one.Stat("/secret"); err != nil {
		t.Errorf("OpenOneMount: %v", err)
	}
}
