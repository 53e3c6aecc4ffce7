// SPDX-License-Identifier: Apache-2.0

package hostmount

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
	"github.com/fettle-dev/fettle/pkg/disk"
)

const layered = "claim-1/cache"

// lower is the directory below, with one file.
func (n *node) lower() string {
	n.Helper()
	n.write("store/dir/kernel", "compiled")
	lower := filepath.Join(n.host, "store")
	for name, mode := range map[string]fs.FileMode{"": 0o777, "dir": 0o777, "dir/kernel": 0o666} {
		if err := os.Chmod(filepath.Join(lower, name), mode); err != nil {
			n.Fatal(err)
		}
	}
	return lower
}

func (n *node) layer(l Overlay) string {
	n.Helper()
	for range 2 {
		if err := n.MountOverlay(layered, l); err != nil {
			n.Fatal(err)
		}
	}
	return n.Path(layered)
}

func (n *node) gone() {
	n.Helper()
	for range 2 {
		if err := n.Detach(layered); err != nil {
			n.Fatal(err)
		}
	}
	if left, err := os.ReadDir(n.path); err != nil || len(left) > 0 {
		n.Errorf("after it was detached there is %v, %v", left, err)
	}
}

func TestLayer(t *testing.T) {
	n := newNode(t)
	lower := n.lower()
	at := n.layer(Overlay{Lower: lower, Bytes: 1 << 20})
	n.reads(filepath.Join(at, "dir/kernel"), "compiled")
	for name, content := range map[string]string{"dir/kernel": "another", "dir/missed": "new", "top": "new"} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(content), 0o600); err != nil {
			t.Error(err)
		}
	}
	n.reads(filepath.Join(at, "dir/kernel"), "another")
	n.reads(filepath.Join(lower, "dir/kernel"), "compiled")
	for _, name := range []string{"dir/missed", "top"} {
		if _, err := os.Stat(filepath.Join(lower, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("what the claim wrote is in what is below: %s, %v", name, err)
		}
	}
	n.layer(Overlay{Lower: lower, Bytes: 1 << 20}) // again: what was written stays
	n.reads(filepath.Join(at, "top"), "new")
	if err := os.WriteFile(filepath.Join(at, "large"), make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("more than the limit was written: %v", err)
	}
	n.gone()
	n.reads(filepath.Join(lower, "dir/kernel"), "compiled")
}

// TestLayerOverLongPath: the kernel takes 255 bytes as an option of a mount, and a directory of a cache may have a longer path.
func TestLayerOverLongPath(t *testing.T) {
	n := newNode(t)
	long := strings.Repeat("d", 250) + "/with:colon,and\\backslash"
	n.write("store/"+long+"/kernel", "compiled")
	at := n.layer(Overlay{Lower: filepath.Join(n.host, "store", long), Bytes: 1 << 20})
	n.reads(filepath.Join(at, "kernel"), "compiled")
	n.gone()
}

// TestLayerInLongDirectory: the directories of the claim's memory, too, are named to the kernel by more than it takes as an option.
func TestLayerInLongDirectory(t *testing.T) {
	n := newNode(t)
	long := strings.Repeat("d", 250) + "/with:colon,and\\backslash"
	n.Dir = In(filepath.Join(filepath.Dir(n.host), long), n.host)
	at := n.layer(Overlay{Lower: n.lower(), Bytes: 1 << 20})
	n.reads(filepath.Join(at, "dir/kernel"), "compiled")
	if err := os.WriteFile(filepath.Join(at, "dir/kernel"), []byte("another"), 0o600); err != nil {
		t.Error(err)
	}
	n.reads(filepath.Join(at, "dir/kernel"), "another")
	n.gone()
}

// TestLayerUsers: containers run as any user.
func TestLayerUsers(t *testing.T) {
	n := newNode(t)
	at := n.layer(Overlay{Lower: n.lower(), Bytes: 1 << 20})
	dir, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	done := make(chan error)
	go func() { // its thread ends with it, as another user's
		done <- asUser(1000, func() error {
			kernel, err := unix.Openat(int(dir.Fd()), "dir/kernel", unix.O_WRONLY, 0)
			if err != nil {
				return err
			}
			missed, err := unix.Openat(int(dir.Fd()), "dir/missed", unix.O_WRONLY|unix.O_CREAT, 0o600)
			return errors.Join(err, unix.Close(kernel), unix.Close(missed), unix.Mkdirat(int(dir.Fd()), "new", 0o700))
		})
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
	n.gone()
}

func TestLayerReadOnlyFilled(t *testing.T) {
	n := newNode(t)
	lower := n.lower()
	at := n.layer(Overlay{Lower: lower, Bytes: 1 << 20, ReadOnly: true, Fill: func(over *os.Root) error {
		return errors.Join(over.Mkdir("dir", 0o777), over.WriteFile("dir/kernel", []byte("rewritten"), 0o666))
	}})
	n.reads(filepath.Join(at, "dir/kernel"), "rewritten")
	if err := os.WriteFile(filepath.Join(at, "dir/kernel"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("written to what is for reading: %v", err)
	}
	n.gone()
}

// TestLayerInterrupted: memory without the layer over it, as a killed process leaves it, is made anew.
func TestLayerInterrupted(t *testing.T) {
	n := newNode(t)
	lower, broken := n.lower(), errors.New("broken")
	failing := Overlay{Lower: lower, Bytes: 1 << 20, Fill: func(*os.Root) error { return broken }}
	if err := n.MountOverlay(layered, failing); !errors.Is(err, broken) {
		t.Fatalf("got %v, want %v", err, broken)
	}
	if there, err := n.Has(layered); there || err != nil {
		t.Errorf("after it failed something is mounted: %v, %v", there, err)
	}
	at := n.Path(layered)
	own, err := newMemory(1<<20, "")
	if err := errors.Join(err, n.prepareParent(at), makeMountPoint(at, true), attach(own, at), own.Close()); err != nil {
		t.Fatal(err)
	}
	n.layer(Overlay{Lower: lower, Bytes: 1 << 20})
	n.reads(filepath.Join(at, "dir/kernel"), "compiled")
	n.gone()
}

func TestShare(t *testing.T) {
	n := newNode(t)
	lower := n.lower()
	for range 2 {
		if err := n.BindReadOnly(layered, lower); err != nil {
			t.Fatal(err)
		}
	}
	n.reads(filepath.Join(n.Path(layered), "dir/kernel"), "compiled")
	if err := os.WriteFile(filepath.Join(n.Path(layered), "dir/kernel"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("written to what is for reading: %v", err)
	}
	n.gone()
}

// TestImage: a layer over an EROFS file system outlives the mount that it was made of.
func TestImage(t *testing.T) {
	n := newNode(t)
	index, data := erofs(t)
	if err := CanMount(index, data); err != nil {
		t.Skipf("this kernel mounts no EROFS image from a file: %v", err)
	}
	root, err := n.MountImage("trees/one", index, data, "")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := n.MountImage("trees/one", index, data, ""); again != root || err != nil {
		t.Errorf("mounted again at %s, %v, want %s", again, err, root)
	}
	at := n.layer(Overlay{Lower: filepath.Join(root, "dir"), Bytes: 1 << 20})
	if err := n.Detach("trees/one"); err != nil {
		t.Fatal(err)
	}
	n.reads(filepath.Join(at, "kernel"), "compiled")
	if err := os.WriteFile(filepath.Join(at, "kernel"), []byte("another"), 0o600); err != nil {
		t.Error(err)
	}
	n.gone()
}

// TestImageInLongDirectory: a store decides by a small image with a short name that the kernel mounts images, and has them at longer ones.
func TestImageInLongDirectory(t *testing.T) {
	n := newNode(t)
	index, data := erofs(t)
	if err := CanMount(index, data); err != nil {
		t.Skipf("this kernel mounts no EROFS image from a file: %v", err)
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("d", 250), "with:colon,and\\backslash")
	names := []string{filepath.Join(long, "index"), filepath.Join(long, "data")}
	if err := errors.Join(os.MkdirAll(long, 0o755), os.Rename(index, names[0]), os.Rename(data, names[1])); err != nil {
		t.Fatal(err)
	}
	root, err := n.MountImage("trees/one", names[0], names[1], "")
	if err != nil {
		t.Fatal(err)
	}
	n.reads(filepath.Join(root, "dir/kernel"), "compiled")
	if err := n.Detach("trees/one"); err != nil {
		t.Error(err)
	}
}

// filesIn makes the files of a sink in a directory.
type filesIn string

func (d filesIn) OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error) {
	return disk.OS{}.OpenFile(filepath.Join(string(d), name), flag, perm)
}

func (d filesIn) Mkdir(name string, perm fs.FileMode) error {
	return os.Mkdir(filepath.Join(string(d), name), perm)
}

func (d filesIn) Remove(name string) error { return os.Remove(filepath.Join(string(d), name)) }

// erofs is an image with the file dir/kernel.
func erofs(t *testing.T) (index, data string) {
	t.Helper()
	dir := t.TempDir()
	sink := &unpack.Image{Files: filesIn(dir)}
	content := []byte("compiled")
	if err := sink.Mkdir("dir", fs.ModeDir|0o777); err != nil {
		t.Fatal(err)
	}
	f, err := sink.File("dir/kernel", 0o666)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(f, bytes.NewReader(content))
	at, closed := f.Close()
	tree := &unpack.Tree{Bytes: int64(len(content)), Entries: []unpack.Entry{
		{Path: "dir", Mode: fs.ModeDir | 0o777},
		{Path: "dir/kernel", Mode: 0o666, Size: int64(len(content)), At: at},
	}}
	if err := errors.Join(err, closed, sink.Finish(tree)); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, unpack.ImageIndex), filepath.Join(dir, unpack.ImageData)
}

// asUser runs something as a user without any rights but its own. The thread is of no use afterwards.
func asUser(uid int, do func() error) error {
	runtime.LockOSThread()
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return errno
	}
	return do()
}

func TestLayerNames(t *testing.T) {
	d := In(t.TempDir(), "/")
	for _, name := range []string{"", "a", "../a", "a/..", "/a", "a/b/c"} {
		if d.MountOverlay(name, Overlay{}) == nil || d.BindReadOnly(name, "/") == nil || d.Detach(name) == nil {
			t.Errorf("%q was taken", name)
		}
		if _, err := d.MountImage(name, "", "", ""); err == nil {
			t.Errorf("%q was taken", name)
		}
	}
}
