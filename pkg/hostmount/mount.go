// SPDX-License-Identifier: Apache-2.0

package hostmount

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/rootfs"
)

// mounted reports whether something is mounted at a path.
func mounted(at string) (bool, error) {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, at, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &stat)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return false, nil
	case err != nil:
		return false, wrap("look at", at, err)
	case stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0:
		return false, fmt.Errorf("look at %s: the kernel does not tell mounts, which it does since Linux 5.8", at)
	}
	return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// checkShared fails unless mounts below a directory are visible outside the plugin's container. The table of mounts is long if many claims
// have mounts, so it is read only once for each mount that the directory is on: only the container runtime makes a mount private, before
// the plugin starts.
func (d *Dir) checkShared(dir string) error {
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &stat); err != nil {
		return wrap("look at", dir, err)
	}
	if d.seen.Load() == stat.Mnt_id {
		return nil
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read the table of mounts: %w", err)
	}
	if !isShared(string(table), stat.Mnt_id) {
		return fmt.Errorf("%s: %w", dir, ErrUnseen)
	}
	d.seen.Store(stat.Mnt_id)
	return nil
}

// isShared looks a mount up in a table as in proc_pid_mountinfo(5), and reports whether one of its optional fields, which come before the
// lone hyphen, is "shared".
func isShared(table string, id uint64) bool {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 7 || fields[0] != strconv.FormatUint(id, 10) {
			continue
		}
		for _, field := range fields[6:] {
			if field == "-" {
				break
			}
			if strings.HasPrefix(field, "shared:") {
				return true
			}
		}
	}
	return false
}

// CheckCopy checks that a copy can be made, and reports whether it is a directory. It changes nothing.
func (d *Dir) CheckCopy(c *Copy) (directory bool, err error) {
	f, directory, err := d.open(c)
	if err != nil {
		return false, err
	}
	return directory, f.Close()
}

// open opens the original of a copy, and refuses every link on the way.
func (d *Dir) open(c *Copy) (f *os.File, directory bool, err error) {
	f, err = rootfs.Beneath(filepath.Join(d.hostRoot, c.Below), c.Path)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return nil, false, fmt.Errorf("%s is a symbolic link, or there is one on the way, which %w", c.HostPath(), ErrOutside)
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, fmt.Errorf("%s: %w", c.HostPath(), fs.ErrNotExist)
	case err != nil:
		return nil, false, fmt.Errorf("%s: %w", c.HostPath(), err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return nil, false, errors.Join(&os.PathError{Op: "look at", Path: c.HostPath(), Err: err}, f.Close())
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return f, true, nil
	case unix.S_IFREG:
		return f, false, nil
	}
	return nil, false, errors.Join(fmt.Errorf("%s is neither a directory nor a regular file", c.HostPath()), f.Close())
}

// cloneCopy clones the mount that a file is on, from that file down. The clone exchanges no mounts with the host, has no devices and no
// set-user-id programs, and is read-only if the host's mount is.
func (d *Dir) cloneCopy(c *Copy) (mount *os.File, directory bool, err error) {
	source, directory, err := d.open(c)
	if err != nil {
		return nil, false, err
	}
	defer source.Close()
	flags, attributes := uint(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH), uint(unix.AT_EMPTY_PATH)
	if c.Recursive && directory {
		flags |= unix.AT_RECURSIVE
		attributes |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(int(source.Fd()), "", flags)
	if err != nil {
		return nil, false, wrap("copy the mount of", c.HostPath(), err)
	}
	mount = os.NewFile(uintptr(fd), c.HostPath())
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if c.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", attributes, &attr); err != nil {
		return nil, false, errors.Join(wrap("set the flags of a copy of", c.HostPath(), err), mount.Close())
	}
	return mount, directory, nil
}

// newMemory makes an empty file system with a limit, which every user may write to, as to an emptyDir. The limit on bytes does not count
// files without content, so the number of files is limited as well, by the pages that they would take.
func newMemory(bytes int64, context string) (*os.File, error) {
	return newMemoryOf(bytes, maxFiles(bytes), 0, context)
}

// maxFiles returns how many files memory of a size may hold.
func maxFiles(bytes int64) int64 {
	const fewest = 64
	return max(bytes/Page, fewest)
}

// NodeBytes is about what the kernel needs for a file, link or directory in memory, beside its content.
const NodeBytes = 1 << 10

// MemoryOf returns the most that the kernel holds for memory with a limit: its content, and as many files as it may have. A limit that is
// no real size counts as the largest number.
func MemoryOf(bytes int64) int64 {
	if bytes > math.MaxInt64/2 {
		return math.MaxInt64
	}
	return bytes + maxFiles(bytes)*NodeBytes
}

func newMemoryOf(bytes, files int64, attributes int, context string) (*os.File, error) {
	return newMount("tmpfs", attributes|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, withContext(context, [][2]string{
		{"source", "fettle"},
		{"mode", "0777"},
		{"size", strconv.FormatInt(bytes, 10)},
		{"nr_inodes", strconv.FormatInt(files, 10)},
	}))
}

// Page is what a file in memory takes at least.
const Page = 4096

// ShortLink is the length up to which the target of a symbolic link in memory takes no page of its own: SHORT_SYMLINK_LEN in the kernel's
// mm/shmem.c, without the byte that ends it.
const ShortLink = 127

// Memory is memory of a claim that may have content before the claim sees it.
type Memory struct {
	// Bytes and Files are the size of the content. Free is how many bytes the claim may add; the number of files that it may add is that of
	// empty memory of this size.
	Bytes, Files, Free int64
	// Fill writes the content. Names are relative to the directory. Nil: there is none.
	Fill func(*os.Root) error
	// NoExec forbids to execute files.
	NoExec bool
	// Context is the SELinux context of all files. If it is empty, they have the default of memory.
	Context string
}

// MountMemory mounts memory, at a name as for MountOverlay. It keeps a mount that exists. It attaches the memory after it is
// filled, so that a mount which exists is complete.
func (d *Dir) MountMemory(name string, m Memory) error {
	return d.mountDirectory(name, func() (*os.File, error) { return newFilledMemory(&m) })
}

// newFilledMemory makes the mount, which is not attached yet.
func newFilledMemory(m *Memory) (*os.File, error) {
	const top = 1 // the directory itself
	attributes := 0
	if m.NoExec {
		attributes = unix.MOUNT_ATTR_NOEXEC
	}
	mount, err := newMemoryOf(m.Bytes+m.Free, m.Files+maxFiles(m.Free)+top, attributes, m.Context)
	if err != nil || m.Fill == nil {
		return mount, err
	}
	if err := fill(short(mount), m.Fill); err != nil {
		return nil, errors.Join(fmt.Errorf("fill the claim's memory: %w", err), mount.Close())
	}
	return mount, nil
}
