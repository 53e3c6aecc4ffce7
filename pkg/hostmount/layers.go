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

// Layers is a directory that a claim sees as its own: it may write to it, and what it writes is in memory that goes with the claim. What is
// below stays as it is.
type Layers struct {
	// Lower is the directory below, absolute in the plugin's container.
	Lower string
	// Bytes is the most that the claim's memory holds.
	Bytes int64
	// ReadOnly has nobody write; the claim's memory then only has what Fill puts into it.
	ReadOnly bool
	// Fill puts files over those of Lower. Nil: nothing. Names are relative to the directory.
	Fill func(over *os.Root) error
	// Context is the SELinux context of all files. Empty: as the file systems have it.
	Context string
}

// Layer makes such a mount, of a name that Plan could have given: CLAIM/KEY. One that is there is left.
func (d *Dir) Layer(name string, l Layers) error {
	at, err := d.named(name)
	if err != nil {
		return err
	}
	kind, err := typeAt(at)
	if err != nil || kind == unix.OVERLAYFS_SUPER_MAGIC {
		return err
	}
	if err := d.undo(name); err != nil { // the memory of one that was not finished
		return err
	}
	if err := d.ready(at); err != nil {
		return err
	}
	if err := place(at, true); err != nil {
		return err
	}
	if err := d.layer(at, &l); err != nil {
		return errors.Join(err, d.undo(name))
	}
	return nil
}

// named is where a mount of a name is, if it may be one.
func (d *Dir) named(name string) (at string, err error) {
	p := params{Name: name}
	return d.at(name), p.checkName()
}

// layer puts the memory at the place, and over it the mount that is made of it: whoever sees the place sees the upper one, and both go with
// the claim.
func (d *Dir) layer(at string, l *Layers) error {
	own, err := memory(l.Bytes, l.Context)
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
	attributes := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	if l.ReadOnly {
		attributes |= unix.MOUNT_ATTR_RDONLY
	}
	over, err := mountOf("overlay", attributes, withContext(l.Context, [][2]string{
		{"source", "fettle"},
		{"lowerdir", escape(l.Lower)},
		{"upperdir", upper},
		{"workdir", filepath.Join(at, "work")},
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

// Share mounts a directory once more, for reading, nosuid and nodev.
func (d *Dir) Share(name, source string) error {
	at, err := d.named(name)
	if err != nil {
		return err
	}
	return d.put(at, func() (*os.File, bool, error) {
		mount, err := reading(source)
		return mount, true, err
	})
}

// reading makes the mount again that a directory is on, from that directory down.
func reading(source string) (*os.File, error) {
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

// Image mounts an EROFS file system that is in two files, unless it is there already, and returns where.
func (d *Dir) Image(name, index, data, context string) (string, error) {
	at, err := d.named(name)
	if err != nil {
		return "", err
	}
	return at, d.put(at, func() (*os.File, bool, error) {
		mount, err := image(index, data, context)
		return mount, true, err
	})
}

// CanMount says whether the kernel mounts an EROFS file system that is in two files, which it does since Linux 6.12 where it has EROFS.
// It leaves nothing behind.
func CanMount(index, data string) error {
	mount, err := image(index, data, "")
	if err != nil {
		return err
	}
	return mount.Close()
}

func image(index, data, context string) (*os.File, error) {
	return mountOf("erofs", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV,
		withContext(context, [][2]string{{"source", index}, {"device", data}}))
}

// At is where a mount of a name is.
func (d *Dir) At(name string) string { return d.at(name) }

// Has says whether there is a mount of a name.
func (d *Dir) Has(name string) (bool, error) {
	at, err := d.named(name)
	if err != nil {
		return false, err
	}
	return mounted(at)
}

// Detach takes all mounts of a name away, whoever uses them still, and their place.
func (d *Dir) Detach(name string) error {
	if _, err := d.named(name); err != nil {
		return err
	}
	return d.undo(name)
}

// typeAt is the type of the file system that is mounted at a place, 0 where nothing is.
func typeAt(at string) (int64, error) {
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

// mountOf makes a mount that is nowhere yet.
func mountOf(kind string, attributes int, options [][2]string) (*os.File, error) {
	context, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, wrap("make", kind, err)
	}
	defer unix.Close(context) //nolint:errcheck // nothing was written
	for _, option := range options {
		if err := unix.FsconfigSetString(context, option[0], option[1]); err != nil {
			return nil, explained(context, fmt.Errorf("make %s with %s=%s: %w", kind, option[0], option[1], err))
		}
	}
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, explained(context, wrap("make", kind, err))
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return nil, explained(context, wrap("mount", kind, err))
	}
	return os.NewFile(uintptr(fd), kind), nil
}

// explained adds what the kernel says of an error: lines of "e TEXT".
func explained(context int, err error) error {
	var line [512]byte
	n, readErr := unix.Read(context, line[:])
	if readErr != nil || n <= 2 {
		return err
	}
	return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(line[2:n])))
}

// attach puts a mount at a place.
func attach(mount *os.File, at string) error {
	return wrap("attach", at, unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

func withContext(context string, options [][2]string) [][2]string {
	if context == "" {
		return options
	}
	return append(options, [2]string{"context", context})
}

// escape has a path stand for itself in lowerdir, where colons separate.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, ":", `\:`).Replace(path)
}
