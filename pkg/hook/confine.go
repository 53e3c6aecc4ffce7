// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Name is the program's, and what it calls itself when it starts itself again.
const Name = "fettle-hook"

// Confined is the argument with which the program starts itself again to become the host's ldconfig.
const Confined = "confined-ldconfig"

// Files in the directory that the program may write to.
const (
	confName  = "conf"
	cacheName = "cache"
)

// The confined program's descriptors.
const (
	rootFD = 3 + iota
	workFD
	programFD
)

// maxOutput bounds what is kept of what the program says.
const maxOutput = 4 << 10

// run has the program read a configuration and a container's root, and returns the cache that it makes. It sees the root, with all that
// is mounted there, through a copy of the mounts in which nothing can be written or executed, and otherwise only a little directory
// in memory.
func (p *Program) run(ctx context.Context, root *os.File, conf []byte) ([]byte, error) {
	view, err := readOnlyView(root)
	if err != nil {
		return nil, err
	}
	defer view.Close()
	work, err := workDir(conf)
	if err != nil {
		return nil, err
	}
	defer work.Close()
	said := &head{}
	child := exec.CommandContext(ctx, "/proc/self/exe")
	child.Args = []string{Name, Confined}
	child.Env = []string{}
	child.Stdout, child.Stderr = said, said
	child.ExtraFiles = []*os.File{view, work, p.file}
	child.WaitDelay = time.Second
	child.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig:  syscall.SIGKILL,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS,
	}
	// The death of the thread that started it, not of the process, ends the child.
	runtime.LockOSThread()
	err = child.Run()
	runtime.UnlockOSThread()
	if cause := context.Cause(ctx); cause != nil {
		return nil, fmt.Errorf("run the host's ldconfig in the container's root: it was ended: %w%s", cause, said)
	}
	if err != nil {
		return nil, fmt.Errorf("run the host's ldconfig in the container's root: %w%s", err, said)
	}
	cache, err := readAt(work, cacheName, maxCache)
	if err != nil {
		return nil, fmt.Errorf("read the cache that the host's ldconfig made: %w%s", err, said)
	}
	return cache, nil
}

// readOnlyView copies the mounts from a directory on. The copy is in no namespace and goes when it is closed.
func readOnlyView(root *os.File) (*os.File, error) {
	fd, err := unix.OpenTree(int(root.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, fmt.Errorf("copy the mounts of the container's root (needs Linux 5.12): %w", err)
	}
	view := os.NewFile(uintptr(fd), root.Name())
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
		Propagation: unix.MS_PRIVATE,
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return nil, errors.Join(fmt.Errorf("make a copy of the container's mounts read-only (needs Linux 5.12): %w", err), view.Close())
	}
	return view, nil
}

// workDir makes a directory in memory with the configuration in it.
func workDir(conf []byte) (*os.File, error) {
	dir, err := memoryDir([][2]string{{"size", strconv.Itoa(maxCache + maxCache/2)}, {"nr_inodes", "8"}, {"mode", "0700"}})
	if err != nil {
		return nil, fmt.Errorf("make a directory in memory: %w", err)
	}
	fd, err := unix.Openat(int(dir.Fd()), confName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o400)
	if err == nil {
		f := os.NewFile(uintptr(fd), confName)
		_, err = f.Write(conf)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write the list of directories: %w", err), dir.Close())
	}
	return dir, nil
}

func memoryDir(options [][2]string) (*os.File, error) {
	context, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(context) }()
	for _, option := range options {
		if err := unix.FsconfigSetString(context, option[0], option[1]); err != nil {
			return nil, err
		}
	}
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, err
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "memory"), nil
}

// head keeps the beginning of what is written to it.
type head struct{ bytes.Buffer }

func (h *head) Write(b []byte) (int, error) {
	_, _ = h.Buffer.Write(b[:min(len(b), maxOutput-h.Len())])
	return len(b), nil
}

// ReadFrom hides the buffer's, which has no bound.
func (h *head) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{h}, r)
}

// String is what was said, as the end of a message. What is not text came from the image.
func (h *head) String() string {
	text := strings.ToValidUTF8(strings.TrimSpace(h.Buffer.String()), "?")
	if text == "" {
		return ""
	}
	return fmt.Sprintf("; it said %q", text)
}
