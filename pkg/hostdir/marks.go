// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Marks are what a directory has beside owner, mode and content, and what its owner in a container can change.
type Marks struct {
	// Attributes are the extended attributes, access control lists among them.
	Attributes map[string][]byte `json:"attributes,omitempty"`
	// Flags are those of FS_IOC_GETFLAGS that somebody may set, and Project is the id that quotas count for.
	Flags   int    `json:"flags,omitempty"`
	Project uint32 `json:"project,omitempty"`
	// XFS are flags that XFS alone has. It is nil where they are not known: versions that did not note them leave what claims set.
	XFS *XFlags `json:"xfs,omitempty"`
	// Encrypted: files in it are encrypted by a policy of the directory, which nobody can take off.
	Encrypted bool `json:"encrypted,omitempty"`
}

// XFlags are flags of FS_IOC_FSGETXATTR which FS_IOC_GETFLAGS lacks, such as the one by which nobody makes symbolic links, and the sizes of
// extents that belong to two of them.
type XFlags struct {
	Flags          uint32 `json:"flags,omitempty"`
	ExtentSize     uint32 `json:"extentSize,omitempty"`
	CopyExtentSize uint32 `json:"copyExtentSize,omitempty"`
}

// xfsOnly are FS_XFLAG_RTINHERIT, NOSYMLINKS, EXTSZINHERIT, NODEFRAG, FILESTREAM and COWEXTSIZE of linux/fs.h.
const xfsOnly = 0x100 | 0x400 | 0x1000 | 0x2000 | 0x4000 | 0x10000

// changeable are the flags of linux/fs.h that whoever owns a directory may set, or root. The others are the file system's own, and change
// by themselves.
const changeable = 0x1 | 0x2 | 0x4 | 0x8 | // SECRM, UNRM, COMPR, SYNC
	0x10 | 0x20 | 0x40 | 0x80 | // IMMUTABLE, APPEND, NODUMP, NOATIME
	0x400 | 0x4000 | 0x8000 | // NOCOMP, JOURNAL_DATA, NOTAIL
	0x10000 | 0x20000 | 0x800000 | // DIRSYNC, TOPDIR, NOCOW
	0x2000000 | 0x20000000 | 0x40000000 // DAX, PROJINHERIT, CASEFOLD

// errEncrypted says that a container gave a directory a policy of encryption.
var errEncrypted = errors.New("its claim had its files encrypted, which is for good: delete the directory and make it again")

// maxAttributes bounds the attributes that a record has. A file system such as XFS keeps some hundred MiB of them for one directory.
const maxAttributes = 256 << 10

var (
	errLargeAttributes = fmt.Errorf("it has extended attributes of more than %d KiB: remove those that nobody needs", maxAttributes>>10)
	// errManyAttributes says that the kernel lists no names, so that nobody knows what to take off.
	errManyAttributes = errors.New("it has so many extended attributes that they cannot be listed: delete the directory and make it again")
)

// marks reads the marks. What the file system does not have is empty.
func (d *Dir) marks() (m Marks, err error) {
	err = d.withDescriptor(func(fd int) (err error) {
		if m, err = otherMarks(fd); err == nil {
			m.Attributes, err = attributes(fd)
		}
		return err
	})
	if err != nil {
		return Marks{}, fmt.Errorf("read what %s is marked with: %w", d.name, err)
	}
	return m, nil
}

// otherMarks reads the marks but the attributes.
func otherMarks(fd int) (m Marks, err error) {
	if m.Flags, err = unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS); err != nil {
		if !isUnknown(err) {
			return m, err
		}
		m.Flags = 0
	}
	var x fsxattr
	if err := x.ioctl(fd, fsGetXattr); err != nil && !isUnknown(err) {
		return m, err
	}
	m.Flags &= changeable
	m.Project = x.project
	m.XFS = &XFlags{Flags: x.flags & xfsOnly, ExtentSize: x.extentSize, CopyExtentSize: x.copyExtentSize}
	var stat unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, 0, &stat); err != nil {
		return m, err
	}
	m.Encrypted = stat.Attributes&unix.STATX_ATTR_ENCRYPTED != 0
	return m, nil
}

// isUnknown reports that a file system does not have something.
func isUnknown(err error) bool {
	return errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS)
}

// attributes reads all extended attributes. It refuses those that are too much for a record.
func attributes(fd int) (map[string][]byte, error) {
	names, err := attributeNames(fd)
	if err != nil {
		return nil, err
	}
	out, size := map[string][]byte{}, 0
	for _, name := range names {
		value, err := attribute(fd, name)
		switch {
		case errors.Is(err, unix.ENODATA):
			continue
		case err != nil:
			return nil, ofAttribute(name, err)
		}
		if size += len(name) + len(value); size > maxAttributes {
			return nil, errLargeAttributes
		}
		out[name] = value
	}
	return out, nil
}

// attributeNames returns the names of all extended attributes, sorted, but of those of security modules, which no container sets and
// runtimes set anew, and of the mark of scratch space, which ends last.
func attributeNames(fd int) ([]string, error) {
	list, err := grown(func(buffer []byte) (int, error) { return unix.Flistxattr(fd, buffer) })
	switch {
	case errors.Is(err, unix.E2BIG):
		return nil, errManyAttributes
	case err != nil && !isUnknown(err):
		return nil, err
	}
	var names []string
	for name := range strings.SplitSeq(string(list), "\x00") {
		if name != "" && name != scratchMark && !strings.HasPrefix(name, "security.") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func attribute(fd int, name string) ([]byte, error) {
	return grown(func(buffer []byte) (int, error) { return unix.Fgetxattr(fd, name, buffer) })
}

// grown reads what an attribute may be at most.
func grown(read func([]byte) (int, error)) ([]byte, error) {
	buffer := make([]byte, 64<<10)
	n, err := read(buffer)
	if err != nil {
		return nil, err
	}
	return bytes.Clone(buffer[:n]), nil
}

// clean gives the directory the marks that it had, and none that a claim gave it. What a claim gave it is not read: it may be far more than
// fits into memory.
func (d *Dir) clean(ctx context.Context, want *Marks) error {
	if err := d.withDescriptor(func(fd int) error { return d.cleanOpen(ctx, fd, want) }); err != nil {
		return fmt.Errorf("take off %s what its claim marked it with: %w", d.name, err)
	}
	return nil
}

func (d *Dir) cleanOpen(ctx context.Context, fd int, want *Marks) error {
	now, err := otherMarks(fd)
	if err != nil {
		return err
	}
	if now.Encrypted && !want.Encrypted {
		return errEncrypted
	}
	names, err := attributeNames(fd)
	if err != nil {
		return err
	}
	change := func(do func() error) error { return withRoom(ctx, d.root, "", do) }
	var errs []error
	for _, name := range names {
		if _, had := want.Attributes[name]; !had {
			errs = append(errs, change(func() error { return ofAttribute(name, ignoreGone(unix.Fremovexattr(fd, name))) }))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want.Attributes)) {
		value := want.Attributes[name]
		if has, err := attribute(fd, name); err != nil || !bytes.Equal(has, value) {
			errs = append(errs, change(func() error { return ofAttribute(name, unix.Fsetxattr(fd, name, value, 0)) }))
		}
	}
	if now.Project != want.Project {
		errs = append(errs, change(func() error { return setProject(fd, want.Project) }))
	}
	if want.XFS != nil && *now.XFS != *want.XFS {
		errs = append(errs, change(func() error { return setXFlags(fd, *want.XFS) }))
	}
	if now.Flags != want.Flags {
		set := func() error { return setFlags(fd, want.Flags) }
		err := change(set)
		if errors.Is(err, unix.ENOTEMPTY) { // a flag that only an empty directory can have or lose
			err = errors.Join(d.Purge(ctx), change(set))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func ofAttribute(name string, err error) error {
	if err != nil {
		err = fmt.Errorf("attribute %s: %w", name, err)
	}
	return err
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ENODATA) {
		return nil
	}
	return err
}

// fsxattr is the kernel's struct of this name, of linux/fs.h.
type fsxattr struct {
	flags, extentSize, extents, project, copyExtentSize uint32
	_                                                   [8]byte
}

// FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR of linux/fs.h.
const (
	fsGetXattr = 0x801c581f
	fsSetXattr = 0x401c5820
)

func (x *fsxattr) ioctl(fd int, request uintptr) error {
	//nolint:gosec // the kernel's own struct
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(x))); errno != 0 {
		return errno
	}
	return nil
}

func setFlags(fd, flags int) error {
	now, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, now&^changeable|flags)
}

func setProject(fd int, id uint32) error { return changeXattr(fd, func(x *fsxattr) { x.project = id }) }

func setXFlags(fd int, to XFlags) error {
	return changeXattr(fd, func(x *fsxattr) {
		x.flags, x.extentSize, x.copyExtentSize = x.flags&^xfsOnly|to.Flags, to.ExtentSize, to.CopyExtentSize
	})
}

func changeXattr(fd int, change func(*fsxattr)) error {
	var x fsxattr
	if err := x.ioctl(fd, fsGetXattr); err != nil {
		return err
	}
	change(&x)
	return x.ioctl(fd, fsSetXattr)
}

// scratchMark is the attribute of a directory that a claim has as scratch space. A container cannot change it, unless it may administrate
// the machine. If the claim's record is lost, only the mark tells the directory from one that is kept.
const scratchMark = "trusted.fettle.scratch"

// isUnmarkable reports that a file system does not have such marks, or that this process may not set them.
func isUnmarkable(err error) bool { return isUnknown(err) || errors.Is(err, unix.EPERM) }

// markScratch marks the directory as scratch space of a claim.
func (d *Dir) markScratch(claim string) error {
	err := d.withDescriptor(func(fd int) error { return unix.Fsetxattr(fd, scratchMark, []byte(claim), 0) })
	if err != nil && !isUnmarkable(err) {
		return fmt.Errorf("mark %s as scratch space: %w", d.name, err)
	}
	return nil
}

// unmarkScratch ends the mark.
func (d *Dir) unmarkScratch() error {
	err := d.withDescriptor(func(fd int) error { return ignoreGone(unix.Fremovexattr(fd, scratchMark)) })
	if err != nil && !isUnmarkable(err) {
		return fmt.Errorf("take the mark of scratch space off %s: %w", d.name, err)
	}
	return nil
}

// scratchOf returns the claim as whose scratch space the directory is marked, "" for none.
func (d *Dir) scratchOf() (claim string, err error) {
	err = d.withDescriptor(func(fd int) error {
		value, err := attribute(fd, scratchMark)
		claim = string(value)
		return err
	})
	if err != nil && !errors.Is(err, unix.ENODATA) && !isUnmarkable(err) {
		return "", fmt.Errorf("find out whose scratch space %s is: %w", d.name, err)
	}
	return claim, nil
}

// isScratch reports whether a claim has the directory as scratch space. Where there are no marks, that is a directory with the mode of
// scratch space.
func (d *Dir) isScratch() (bool, error) {
	info, err := d.root.Stat(".")
	if err != nil {
		return false, fmt.Errorf("find out whether %s is scratch space: %w", d.name, err)
	}
	err = d.withDescriptor(func(fd int) error {
		_, err := unix.Fgetxattr(fd, scratchMark, nil)
		return err
	})
	switch {
	case err == nil:
		return true, nil
	case !errors.Is(err, unix.ENODATA) && !isUnmarkable(err):
		return false, fmt.Errorf("find out whether %s is scratch space: %w", d.name, err)
	case info.Mode()&(os.ModePerm|os.ModeSticky) != scratchMode:
		return false, nil
	}
	// Without the right to see such marks the kernel says that there is none. So one is set, which then cannot be.
	err = d.withDescriptor(func(fd int) error { return unix.Fsetxattr(fd, scratchMark, nil, 0) })
	if err == nil {
		return false, d.unmarkScratch()
	}
	return isUnmarkable(err), nil
}

// withDescriptor calls do with a descriptor of the directory.
func (d *Dir) withDescriptor(do func(fd int) error) error {
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(do(int(f.Fd())), f.Close())
}
