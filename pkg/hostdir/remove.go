// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// batch limits how many names are read at once, so that a directory with millions of files costs no memory.
const batch = 1024

// Remove deletes one entry of root and everything below it. It stops between entries when ctx ends. os.Root.RemoveAll holds a file
// descriptor for each level of a tree, and a workload can make a tree deeper than the process may have descriptors. So Remove first moves a
// directory that is not empty up beside its parent; depth then costs nothing.
func Remove(ctx context.Context, root Root, name string) error {
	err := removeOne(root, name)
	if !notEmpty(err) {
		return err
	}
	dir, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	err = Empty(ctx, dir)
	if err = errors.Join(err, dir.Close()); err != nil {
		return err
	}
	return removeOne(root, name)
}

// Empty deletes everything in dir. It takes at most as many passes as dir has levels, unless nothing can be moved up, as out of a directory
// that a workload encrypted with a key which is gone. Then it deletes what lies deepest first, where it is.
func Empty(ctx context.Context, dir Root) error {
	lifted := 0
	for {
		left, removed := 0, 0
		var first error
		err := eachName(ctx, dir, ".", func(name string) bool {
			left++
			if err := removeOrLift(ctx, dir, name, &lifted); err == nil {
				removed++
			} else if first == nil {
				first = err
			}
			return true
		})
		switch {
		case err != nil:
			return err
		case left == 0:
			return nil
		case removed == 0:
			freed, err := free(ctx, dir, "")
			for more := freed; more && err == nil; {
				more, err = free(ctx, dir, "")
			}
			if !freed {
				return fmt.Errorf("%d entries cannot be deleted, the first: %w", left, first)
			}
		}
	}
}

// removeOrLift deletes an entry of dir. If that is a directory, it first deletes its entries or moves them up into dir.
func removeOrLift(ctx context.Context, dir Root, name string, lifted *int) error {
	err := removeOne(dir, name)
	if !notEmpty(err) {
		return err
	}
	var first error
	err = eachName(ctx, dir, name, func(child string) bool {
		err := removeOne(dir, name+"/"+child)
		if notEmpty(err) {
			err = lift(ctx, dir, name+"/"+child, lifted)
		}
		if first == nil {
			first = err
		}
		return true
	})
	if err := errors.Join(err, first); err != nil {
		return err
	}
	return removeOne(dir, name)
}

// lift moves a directory into dir under a new name. The workload chose the names in dir, so any name may be taken.
func lift(ctx context.Context, dir Root, name string, lifted *int) error {
	const attempts = 1 << 20
	for range attempts {
		*lifted++
		err := rename(dir, name, strconv.Itoa(*lifted), func(rename func() error) error { return withRoom(ctx, dir, "", rename) })
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted to make room
		}
		if !taken(err) {
			return err
		}
	}
	return fmt.Errorf("move %s up: no free name", name)
}

// rename renames an entry, and takes off the two directories what a workload marked them with against it. try calls a function, and again
// if that may help.
func rename(root Root, from, to string, try func(func() error) error) error {
	do := func() error { return try(func() error { return root.Rename(from, to) }) }
	err := do()
	if forbidden(err) && errors.Join(allowRemoval(root, path.Dir(from)), allowRemoval(root, from)) == nil {
		err = do()
	}
	if errors.Is(err, syscall.EXDEV) && allowProjects(root, path.Dir(to)) == nil {
		err = do()
	}
	return err
}

// eachName calls do for the names in a directory below root until do returns false or ctx ends.
func eachName(ctx context.Context, root Root, dirPath string, do func(name string) (more bool)) error {
	var ended error
	err := inBatches(root, dirPath, func(name string) bool {
		ended = ctx.Err()
		return ended == nil && do(name)
	})
	return errors.Join(ended, err)
}

// inBatches calls do for the names in a directory below root, one batch at a time, until do returns false.
func inBatches(root Root, dirPath string, do func(name string) (more bool)) error {
	dir, err := root.Open(dirPath)
	if err != nil {
		return err
	}
	for err == nil {
		var names []string
		names, err = dir.Readdirnames(batch)
		for _, name := range names {
			if !do(name) {
				return dir.Close()
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, dir.Close())
}

// withRoom does something in dir that may need space, though a workload may have used up the disk's. All in dir is to be deleted, and to
// delete needs no space. So withRoom deletes a little of it, and tries again, until there is room or nothing is left but the entry keep.
func withRoom(ctx context.Context, dir Root, keep string, do func() error) error {
	for {
		err := do()
		if !disk.NoRoom(err) {
			return err
		}
		if freed, freeErr := free(ctx, dir, keep); !freed {
			return errors.Join(err, freeErr)
		}
	}
}

// free deletes a few entries of dir, or of a directory somewhere below, and reports whether it deleted any. It needs no space and a handful
// of file descriptors, however deep it has to go.
func free(ctx context.Context, dir Root, keep string) (bool, error) {
	freed, inner, err := removeSome(dir, keep)
	for _, name := range inner {
		if freed || ctx.Err() != nil {
			break
		}
		freed, err = freeBelow(ctx, dir, name)
	}
	return freed, errors.Join(err, ctx.Err())
}

// freeBelow does the work of free in one directory of dir.
func freeBelow(ctx context.Context, dir Root, name string) (bool, error) {
	at, err := dir.OpenRoot(name)
	if err != nil {
		return false, err
	}
	for {
		freed, inner, err := removeSome(at, "")
		if freed || len(inner) == 0 || ctx.Err() != nil {
			return freed, errors.Join(err, ctx.Err(), at.Close())
		}
		next, err := at.OpenRoot(inner[0])
		if err = errors.Join(err, at.Close()); err != nil {
			return false, err
		}
		at = next
	}
}

// removeSome deletes a few entries of dir. inner are directories that it could not delete, because they are not empty.
func removeSome(dir Root, keep string) (removed bool, inner []string, err error) {
	f, err := dir.Open(".")
	if err != nil {
		return false, nil, err
	}
	names, err := f.Readdirnames(batch)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	err = errors.Join(err, f.Close())
	count := 0
	for _, name := range names {
		if name == keep {
			continue
		}
		switch removeErr := removeOne(dir, name); {
		case notEmpty(removeErr):
			inner = append(inner, name)
		case removeErr != nil:
			err = removeErr
		default:
			if count++; count == few {
				return true, inner, nil
			}
		}
	}
	return count > 0, inner, err
}

func removeOne(root Root, name string) error {
	err := root.Remove(name)
	if forbidden(err) && errors.Join(allowRemoval(root, path.Dir(name)), allowRemoval(root, name)) == nil {
		err = root.Remove(name)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// forbidden reports whether flags of a file or directory may be why root cannot delete or move it.
func forbidden(err error) bool { return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EROFS) }

// allowRemoval takes the flags off a file or directory that keep root from deleting it, or from deleting something in it.
func allowRemoval(root Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil || !info.IsDir() && !info.Mode().IsRegular() {
		return err // other files have no flags, and to open them may do something
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := allowWriting(int(f.Fd())); err != nil {
		return err
	}
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	const keep = 0x10 | 0x20 // FS_IMMUTABLE_FL and FS_APPEND_FL of the kernel's linux/fs.h
	if err != nil || flags&keep == 0 {
		return err
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags&^keep)
}

// BTRFS_IOC_SUBVOL_GETFLAGS and BTRFS_IOC_SUBVOL_SETFLAGS of the kernel's linux/btrfs.h, and the one flag.
const (
	getSubvolumeFlags = 0x80089419
	setSubvolumeFlags = 0x4008941a
	readOnlySubvolume = 2
)

// allowWriting makes a subvolume of Btrfs writable: whoever owns it may make it read-only. Anything else it leaves alone.
func allowWriting(fd int) error {
	var flags uint64
	if err := subvolumeFlags(fd, getSubvolumeFlags, &flags); err != nil || flags&readOnlySubvolume == 0 {
		if isUnknown(err) {
			err = nil
		}
		return err
	}
	flags &^= readOnlySubvolume
	return subvolumeFlags(fd, setSubvolumeFlags, &flags)
}

func subvolumeFlags(fd int, request uintptr, flags *uint64) error {
	//nolint:gosec // the kernel's own type
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(flags))); errno != 0 {
		return errno
	}
	return nil
}

// allowProjects lets entries of any project into a directory. The kernel takes none of another where new entries inherit the project.
func allowProjects(root Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	var x fsxattr
	const inherit = 0x200 // FS_XFLAG_PROJINHERIT of the kernel's linux/fs.h
	if err := x.ioctl(int(f.Fd()), fsGetXattr); err != nil || x.flags&inherit == 0 {
		return err
	}
	x.flags &^= inherit
	return x.ioctl(int(f.Fd()), fsSetXattr)
}

func notEmpty(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST)
}

func taken(err error) bool { return notEmpty(err) || errors.Is(err, syscall.ENOTDIR) }
