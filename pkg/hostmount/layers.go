// SPDX-License-Identifier: Apache-2.0

package hostmount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Overlay is a directory that a claim sees as its own. The claim may write to it. What it writes is in memory that belongs to the claim.
// The directory below does not change.
type Overlay struct {
	// Lower is the absolute path of the directory below, in the plugin's container.
	Lower string
	// Bytes limits the claim's memory.
	Bytes int64
	// ReadOnly forbids writing. The claim's memory then holds only what Fill writes.
	ReadOnly bool
	// Fill writes files over those of Lower, with names relative to the directory. It may be nil. Files is how many files and directories it
	// makes, beside those that the claim may make.
	Fill  func(over *os.Root) error
	Files int64
	// Context is the SELinux context of all files. If it is empty, they keep that of their file systems.
	Context string
}

// MountOverlay mounts an overlay at CLAIM/KEY, a name as Plan gives it. It keeps a mount that exists.
func (d *Dir) MountOverlay(name string, l Overlay) error {
	at, err := d.checkedPath(name)
	if err != nil {
		return err
	}
	kind, err := fsTypeAt(at)
	if err != nil || kind == unix.OVERLAYFS_SUPER_MAGIC {
		return err
	}
	if err := d.undo(name); err != nil { // memory that was not finished
		return err
	}
	if err := d.prepareParent(at); err != nil {
		return err
	}
	if err := makeMountPoint(at, true); err != nil {
		return err
	}
	if err := d.mountOverlay(at, &l); err != nil {
		return errors.Join(err, d.undo(name))
	}
	return nil
}

// checkedPath returns the path of a mount, and refuses names that are not CLAIM/KEY.
func (d *Dir) checkedPath(name string) (at string, err error) {
	p := params{Name: name}
	return d.at(name), p.checkName()
}

// mountOverlay mounts the memory at the path, and the overlay over it. Users of the path see the overlay, and both disappear with the
// claim.
func (d *Dir) mountOverlay(at string, l *Overlay) error {
	own, err := newMemoryOf(l.Bytes, l.Files+maxFiles(l.Bytes), 0, l.Context)
	if err != nil {
		return err
	}
	defer own.Close()
	if err := attach(own, at); err != nil {
		return err
	}
	for _, dir := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(at, dir), 0o700); err != nil {
			return fmt.Errorf("make a directory in the claim's memory: %w", err)
		}
	}
	upper := filepath.Join(at, "upper")
	if err := os.Chmod(upper, 0o777); err != nil { // the claim's containers run as any user
		return fmt.Errorf("open the claim's memory to its users: %w", err)
	}
	if l.Fill != nil {
		if err := fill(upper, l.Fill); err != nil {
			return err
		}
	}
	paths, err := openPaths(unix.O_DIRECTORY, l.Lower, upper, filepath.Join(at, "work"))
	if err != nil {
		return err
	}
	defer paths.close()
	attributes := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	if l.ReadOnly {
		attributes |= unix.MOUNT_ATTR_RDONLY
	}
	over, err := newMount("overlay", attributes, withContext(l.Context, [][2]string{
		{"source", "fettle"},
		{"lowerdir", short(paths[0])},
		{"upperdir", short(paths[1])},
		{"workdir", short(paths[2])},
	}))
	if err != nil {
		return err
	}
	defer over.Close()
	return attach(over, at)
}

func fill(dir string, with func(*os.Root) error) (err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return with(root)
}

// BindReadOnly mounts a directory once more, read-only, nosuid and nodev.
func (d *Dir) BindReadOnly(name, source string) error {
	return d.mountDirectory(name, func() (*os.File, error) { return cloneReadOnly(source) })
}

// cloneReadOnly clones the mount of a directory, from that directory down.
func cloneReadOnly(source string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, wrap("copy the mount of", source, err)
	}
	mount := os.NewFile(uintptr(fd), source)
	attr := unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE,
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return nil, errors.Join(wrap("set the flags of a copy of", source, err), mount.Close())
	}
	return mount, nil
}

// MountImage mounts an EROFS file system in two files, unless it is mounted already, and returns the path.
func (d *Dir) MountImage(name, index, data, context string) (string, error) {
	return d.at(name), d.mountDirectory(name, func() (*os.File, error) { return image(index, data, context) })
}

// CanMount reports whether the kernel mounts an EROFS file system in two files. Kernels with EROFS do since Linux 6.12. It leaves nothing
// behind.
func CanMount(index, data string) error {
	mount, err := image(index, data, "")
	if err != nil {
		return err
	}
	return mount.Close()
}

func image(index, data, context string) (*os.File, error) {
	paths, err := openPaths(0, index, data)
	if err != nil {
		return nil, err
	}
	defer paths.close()
	return newMount("erofs", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV,
		withContext(context, [][2]string{{"source", short(paths[0])}, {"device", short(paths[1])}}))
}

// Path returns the path of a mount.
func (d *Dir) Path(name string) string { return d.at(name) }

// Has reports whether a mount exists.
func (d *Dir) Has(name string) (bool, error) {
	at, err := d.checkedPath(name)
	if err != nil {
		return false, err
	}
	return mounted(at)
}

// Detach removes all mounts of a name, even if they are in use, and their mount point.
func (d *Dir) Detach(name string) error {
	if _, err := d.checkedPath(name); err != nil {
		return err
	}
	return d.undo(name)
}

// fsTypeAt returns the type of the file system that is mounted at a path, or 0 if none is.
func fsTypeAt(at string) (int64, error) {
	there, err := mounted(at)
	if err != nil || !there {
		return 0, err
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(at, &stat); err != nil {
		return 0, wrap("look at", at, err)
	}
	return stat.Type, nil
}

// newMount makes a mount that is not attached.
func newMount(kind string, attributes int, options [][2]string) (*os.File, error) {
	context, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, wrap("make", kind, err)
	}
	defer unix.Close(context) //nolint:errcheck // nothing was written
	for _, option := range options {
		if err := unix.FsconfigSetString(context, option[0], option[1]); err != nil {
			return nil, withKernelMessages(context, fmt.Errorf("make %s with %s=%s: %w", kind, option[0], option[1], err))
		}
	}
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, withKernelMessages(context, wrap("make", kind, err))
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return nil, withKernelMessages(context, wrap("mount", kind, err))
	}
	return os.NewFile(uintptr(fd), kind), nil
}

// withKernelMessages adds the kernel's messages to an error, lines "e TEXT".
func withKernelMessages(context int, err error) error {
	var line [512]byte
	n, readErr := unix.Read(context, line[:])
	if readErr != nil || n <= 2 {
		return err
	}
	return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(line[2:n])))
}

// attach attaches a mount at a path.
func attach(mount *os.File, at string) error {
	return wrap("attach", at, unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

func withContext(context string, options [][2]string) [][2]string {
	if context == "" {
		return options
	}
	return append(options, [2]string{"context", context})
}

// paths are open files and directories, so that short can name them.
type paths []*os.File

// openPaths opens paths without a link at their ends.
func openPaths(flags int, names ...string) (out paths, err error) {
	for _, name := range names {
		fd, err := unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
		if err != nil {
			out.close()
			return nil, wrap("open", name, err)
		}
		out = append(out, os.NewFile(uintptr(fd), name))
	}
	return out, nil
}

func (p paths) close() {
	for _, f := range p {
		_ = f.Close() // nothing was read or written
	}
}

// short names an open file for this process: the kernel takes 255 bytes as an option of a mount, and a colon in it separates.
func short(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
