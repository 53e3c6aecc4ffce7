// SPDX-License-Identifier: Apache-2.0

package supervise_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/mps"
	"github.com/fettle-dev/fettle/test/check"
)

// hasMemory gives the node a /run that is memory, and in it the directory of claims' mounts.
func (n *node) hasMemory() {
	n.t.Helper()
	n.memory = true
	run := filepath.Join(n.root, "run")
	check.Must(n.t, os.MkdirAll(run, 0o755))
	check.Mount(n.t, run, check.Tmpfs("size=64m"))
	n.t.Cleanup(func() {
		for _, name := range n.mounts() {
			_ = unix.Unmount(filepath.Join(mps.HostMemoryDir(n.root), name), unix.MNT_DETACH)
		}
	})
	check.Must(n.t, unix.Mount("", run, "", unix.MS_SHARED, ""), os.MkdirAll(mps.HostMemoryDir(n.root), 0o755))
}

// mounts are the names of what is mounted for the claim of the tests.
func (n *node) mounts() (names []string) {
	if n.memory {
		for _, name := range mps.Directories() {
			names = append(names, path.Join(limited().ID, name))
		}
	}
	return names
}

// free are the pages and the files that a file system has left.
func free(t *testing.T, dir string) [2]uint64 {
	t.Helper()
	var s unix.Statfs_t
	check.Must(t, unix.Statfs(dir, &s))
	return [2]uint64{s.Bfree, s.Ffree}
}

// TestContainerFillsItsOwnMemory: a container writes as much as it can into its pipe directory, and makes as many files. It takes nothing
// of the host's /run nor of another claim. Its own daemon still writes logs and is started again, and its claim ends.
func TestContainerFillsItsOwnMemory(t *testing.T) {
	n := newNode(t)
	n.hasMemory()
	kinds := n.runner(n.start()).Kinds()
	other := limited()
	other.ID = "uid-2"
	s, err := n.params(limited()).Step()
	check.Must(t, err)
	second, err := n.params(other).Step()
	check.Must(t, errors.Join(err, kinds.Apply(t.Context(), s), kinds.Apply(t.Context(), s), kinds.Apply(t.Context(), second)))
	if said, _ := n.client(limited().ID, 1000); !strings.Contains(said, toldLimits) {
		t.Errorf("a client was told %q", said)
	}
	pipes, run := n.pipes(limited().ID), filepath.Join(n.root, "run")
	before := free(t, run)
	const most = 8 << 20
	if err := os.WriteFile(filepath.Join(pipes, "much"), make([]byte, most+1), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%d bytes were written: %v", most+1, err)
	}
	var full error
	for i := 0; full == nil && i <= most>>12; i++ {
		full = os.Mkdir(filepath.Join(pipes, fmt.Sprint(i)), 0o700)
	}
	if !errors.Is(full, unix.ENOSPC) {
		t.Errorf("the number of files has no bound: %v", full)
	}
	if after := free(t, run); after != before {
		t.Errorf("the host's /run had %d pages and files left, and has %d", before, after)
	}
	check.Must(t, os.WriteFile(filepath.Join(n.at(limited().ID, mps.LogName), "log"), make([]byte, 4<<20), 0o600),
		os.WriteFile(filepath.Join(n.pipes(other.ID), "file"), make([]byte, 4<<20), 0o600))

	check.Must(t, os.Chmod(pipes, 0o700), syscall.Kill(n.pid(limited().ID), syscall.SIGKILL))
	check.Eventually(t, "the daemon is started again", func() bool {
		s := n.status(limited().ID)
		return s.Restarts > 0 && s.State == mps.Ready
	})
	if _, err := os.Lstat(filepath.Join(pipes, "much")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was not emptied: %v", err)
	}
	if said, _ := n.client(limited().ID, 1000); !strings.Contains(said, toldLimits) {
		t.Errorf("a client of the next daemon was told %q", said)
	}
	check.Must(t, kinds.Undo(t.Context(), s), kinds.Undo(t.Context(), s), kinds.Undo(t.Context(), second))
	checkEmpty(t, n)
}

// TestMountsOfMemory: nothing in a claim's directories is executed, is a device or makes anybody another user.
func TestMountsOfMemory(t *testing.T) {
	n := newNode(t)
	n.hasMemory()
	check.Must(t, n.runner(n.start()).Ensure(t.Context(), n.params(limited())))
	for _, name := range mps.Directories() {
		var s unix.Statfs_t
		check.Must(t, unix.Statfs(n.at(limited().ID, name), &s))
		if want := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC); s.Flags&want != want {
			t.Errorf("%s has the flags %#x, want at least %#x", name, s.Flags, want)
		}
	}
	program := filepath.Join(n.pipes(limited().ID), "program")
	check.Must(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755))
	if err := exec.CommandContext(t.Context(), program).Run(); !errors.Is(err, unix.EACCES) {
		t.Errorf("a program was executed: %v", err)
	}
}

// inPod calls a function in a mount namespace that has the directory of claims' mounts as the pod of the supervisor has it: for reading,
// with what the host mounts there later.
func inPod(t *testing.T, n *node, do func() error) {
	t.Helper()
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		dir := mps.HostMemoryDir(n.root)
		err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""))
		for _, flags := range []uintptr{unix.MS_BIND | unix.MS_REC, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY} {
			if err == nil {
				err = unix.Mount(dir, dir, "", flags, "")
			}
		}
		if err == nil {
			err = do()
		}
		ended <- err
	}()
	check.Must(t, <-ended)
}

// onHost calls a function in the test's own mount namespace.
func onHost(do func() error) error {
	ended := make(chan error)
	go func() { ended <- do() }()
	return <-ended
}

// TestPodOfSupervisor: the pod of the supervisor sees what the plugin mounted before and after its start, may write there and nowhere else,
// so no daemon puts a link in the way of a mount, and sees it go.
func TestPodOfSupervisor(t *testing.T) {
	for _, early := range []bool{true, false} {
		n := newNode(t)
		n.hasMemory()
		plugin, p := n.runner(n.start()), n.params(limited())
		s, err := p.Step()
		check.Must(t, err)
		apply := func() error { return plugin.Kinds().Apply(t.Context(), s) }
		if early {
			check.Must(t, apply())
		}
		inPod(t, n, func() error {
			err := onHost(apply)
			for _, name := range mps.Directories() {
				err = errors.Join(err, os.WriteFile(filepath.Join(n.at(p.ID, name), "file"), nil, 0o600))
			}
			for _, name := range []string{"link", filepath.Join(p.ID, "link")} {
				if linked := os.Symlink("/", filepath.Join(mps.HostMemoryDir(n.root), name)); !errors.Is(linked, unix.EROFS) {
					err = errors.Join(err, fmt.Errorf("link %s: %w", name, linked))
				}
			}
			err = errors.Join(err, onHost(func() error { return plugin.Kinds().Undo(t.Context(), s) }))
			if left, looked := os.ReadDir(mps.HostMemoryDir(n.root)); looked != nil || len(left) > 0 {
				err = errors.Join(err, fmt.Errorf("afterwards there is %v: %w", left, looked))
			}
			return err
		})
	}
}

// TestSupervisorIsReplaced: the next supervisor has the daemon use the same mounts, which containers have.
func TestSupervisorIsReplaced(t *testing.T) {
	n := newNode(t)
	n.hasMemory()
	c := n.start()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(limited())))
	n.stop()
	n.start()
	check.Eventually(t, "the daemon is ready again", func() bool { return n.status(limited().ID).State == mps.Ready })
	if said, _ := n.client(limited().ID, 0); !n.status(limited().ID).Memory || !strings.Contains(said, toldLimits) {
		t.Errorf("the daemon is %+v, and told its client %q", n.status(limited().ID), said)
	}
	n.stop()
	for _, name := range n.mounts() { // a reboot
		check.Must(t, unix.Unmount(filepath.Join(mps.HostMemoryDir(n.root), name), 0))
	}
	n.bootID = "boot-2"
	c = n.start()
	s, err := n.params(limited()).Step()
	check.Must(t, errors.Join(err, n.runner(c).Kinds().Apply(t.Context(), s)))
	if said, _ := n.client(limited().ID, 0); !n.status(limited().ID).Memory || !strings.Contains(said, toldLimits) {
		t.Errorf("after a reboot the daemon is %+v, and told its client %q", n.status(limited().ID), said)
	}
	check.Must(t, n.runner(c).Kinds().Undo(t.Context(), s))
	checkEmpty(t, n)
}

// TestUpgrade: a claim that an earlier version prepared has plain directories, whatever the supervisor could have, and ends with them. A
// claim whose containers have mounts is not served in other directories.
func TestUpgrade(t *testing.T) {
	n := newNode(t)
	c := n.start()
	before := n.params(limited())
	check.Must(t, n.runner(c).Ensure(t.Context(), before))
	memory := func(id string, want bool) {
		t.Helper()
		if got, err := c.Memory(t.Context(), id); err != nil || got != want {
			t.Errorf("daemon %s can have memory: %t, %v, want %t", id, got, err, want)
		}
	}
	memory("uid-2", false)
	n.stop()
	n.hasMemory() // over the directories that are there, as a reboot would have it
	c = n.start()
	memory("uid-2", true)
	check.Must(t, n.runner(c).Ensure(t.Context(), before))
	memory(before.ID, false)
	s, err := before.Step()
	check.Must(t, err)
	if err := n.runner(c).Ensure(t.Context(), n.params(limited())); !errors.Is(err, mps.ErrNoMemory) {
		t.Errorf("mounts of a daemon in plain directories: %v", err)
	}
	check.Must(t, n.runner(c).Kinds().Verify(t.Context(), s), n.runner(c).Kinds().Undo(t.Context(), s))
	checkEmpty(t, n)
}

// TestDowngrade: what the version before reads has no member that it does not know. Its plugin ends a claim with mounts without taking them
// away. They are empty then, keep no supervisor from starting, and this version takes them away.
func TestDowngrade(t *testing.T) {
	n := newNode(t)
	n.hasMemory()
	c := n.start()
	check.Must(t, n.runner(c).Ensure(t.Context(), n.params(limited())))
	listed, err := os.ReadFile(filepath.Join(n.dir, mps.ListName, limited().ID))
	check.Must(t, err)
	if strings.Contains(string(listed), "memory") {
		t.Errorf("the list has %s", listed)
	}
	check.Must(t, os.WriteFile(filepath.Join(n.pipes(limited().ID), "file"), make([]byte, 1<<20), 0o600))
	check.Must(t, c.Stop(context.Background(), limited().ID))
	for _, name := range n.mounts() {
		left, err := os.ReadDir(filepath.Join(mps.HostMemoryDir(n.root), name))
		check.Must(t, err)
		if len(left) > 0 {
			t.Errorf("%s has %v", name, left)
		}
	}
	n.stop()
	c = n.start()
	s, err := mps.Leftover(limited().ID)
	check.Must(t, err, n.runner(c).Kinds().Undo(t.Context(), s))
	checkEmpty(t, n)
}
