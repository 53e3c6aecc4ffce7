// SPDX-License-Identifier: Apache-2.0

package hostmount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// seeded is memory with a directory, a file and a link to what is elsewhere.
func seeded(to string) Memory {
	return Memory{Bytes: Page, Files: 3, Free: 1 << 20, Fill: func(over *os.Root) error {
		return errors.Join(over.Mkdir("dir", 0o777), over.Chmod("dir", 0o777),
			over.WriteFile("dir/own", []byte("own"), 0o666), over.Symlink(to, "dir/kernel"))
	}}
}

func (n *node) memory(m Memory) string {
	n.Helper()
	for range 2 {
		if err := n.MountMemory(layered, m); err != nil {
			n.Fatal(err)
		}
	}
	return n.Path(layered)
}

func TestMemory(t *testing.T) {
	n := newNode(t)
	kernel := filepath.Join(n.lower(), "dir/kernel")
	at := n.memory(seeded(kernel))
	n.reads(filepath.Join(at, "dir/own"), "own")
	n.reads(filepath.Join(at, "dir/kernel"), "compiled")
	other := filepath.Join(at, "dir/other")
	if err := errors.Join(os.WriteFile(other, []byte("another"), 0o600), os.Rename(other, filepath.Join(at, "dir/kernel"))); err != nil {
		t.Error(err)
	}
	n.memory(seeded(kernel)) // again: what was written stays
	n.reads(filepath.Join(at, "dir/kernel"), "another")
	n.reads(kernel, "compiled")
	n.gone()
}

// TestMemoryBounds: the content takes nothing of what the claim may add, and that is all it may.
func TestMemoryBounds(t *testing.T) {
	n := newNode(t)
	at := n.memory(seeded("/nowhere"))
	var files int
	for ; files < 1000; files++ {
		if err := os.WriteFile(filepath.Join(at, fmt.Sprint(files)), nil, 0o600); err != nil {
			break
		}
	}
	if want := (1 << 20) / Page; files != want {
		t.Errorf("%d files were made, want %d", files, want)
	}
	n.gone()
	at = n.memory(seeded("/nowhere"))
	if err := os.WriteFile(filepath.Join(at, "all"), make([]byte, 1<<20), 0o600); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(at, "more"), make([]byte, Page), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("more than the limit was written: %v", err)
	}
	n.gone()
}

// TestMemoryUnfilled: what could not be filled is nowhere.
func TestMemoryUnfilled(t *testing.T) {
	n := newNode(t)
	broken := errors.New("broken")
	m := seeded("/nowhere")
	m.Fill = func(over *os.Root) error { return errors.Join(over.Mkdir("dir", 0o777), broken) }
	if err := n.MountMemory(layered, m); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if there, err := n.Has(layered); there || err != nil {
		t.Errorf("mounted: %v, %v", there, err)
	}
	m = seeded("/nowhere")
	m.Files = 1 - maxFiles(m.Free) // room for the top and one more
	if err := n.MountMemory(layered, m); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("more files than it has room for: %v", err)
	}
	n.memory(seeded("/nowhere"))
	n.gone()
}

// TestMapped: the users of a pod's namespace can be mapped to memory and to images, and not to a layer, which is why there are seeds.
func TestMapped(t *testing.T) {
	n := newNode(t)
	users := userNamespace(t)
	n.memory(seeded("/nowhere"))
	if err := mapTo(n.Path(layered), users); err != nil {
		t.Errorf("memory: %v", err)
	}
	n.gone()
	index, data := erofs(t)
	if CanMount(index, data) == nil {
		root, err := n.MountImage("trees/one", index, data, "")
		if err := errors.Join(err, n.BindReadOnly(layered, root)); err != nil {
			t.Fatal(err)
		}
		if err := mapTo(n.Path(layered), users); err != nil {
			t.Errorf("an image: %v", err)
		}
		if err := n.Detach("trees/one"); err != nil {
			t.Error(err)
		}
		n.gone()
	}
	n.layer(Overlay{Lower: n.lower(), Bytes: 1 << 20})
	if err := mapTo(n.Path(layered), users); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a layer: %v; if the kernel can do that now, pods with hostUsers: false may have it", err)
	}
	n.gone()
}

// mapTo makes a copy of a mount for the users of a namespace, as a runtime does for a container.
func mapTo(at string, users *os.File) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, at, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())})
}

// userNamespace is one in which root is user 65536 of the machine.
func userNamespace(t *testing.T) *os.File {
	t.Helper()
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65536, Size: 65536}}
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	if err := cmd.Start(); err != nil {
		t.Skipf("this machine has no user namespaces: %v", err)
	}
	users, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	if err := errors.Join(err, cmd.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	t.Cleanup(func() { _ = users.Close() })
	return users
}
