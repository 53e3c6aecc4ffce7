// SPDX-License-Identifier: Apache-2.0

// Package rootfs reads below another root directory, that of a container or of a driver's installation, as a process would that is
// chrooted there: absolute links and ".." stay inside, whoever made them, and magic links (those in proc that lead anywhere) are
// refused. Only regular files are opened for reading, so no pipe blocks and no device wakes up. It needs openat2, of Linux 5.6.
package rootfs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxNames bounds a directory that is listed.
const maxNames = 1 << 16

var (
	// ErrUnsupported is of a kernel that cannot keep a path below a root.
	ErrUnsupported = errors.New("the kernel has no openat2, which came with Linux 5.6")
	// ErrNotRegular marks something else in the place of a regular file.
	ErrNotRegular = errors.New("is not a regular file")
	// ErrTooLarge marks a file or a directory that is larger than the caller reads.
	ErrTooLarge = errors.New("is too large")
)

// Root is an open root directory. Names are absolute paths, or relative to the root; both mean the same. It is safe for concurrent
// use.
type Root struct {
	dir     *os.File
	name    string
	resolve uint64
}

// Open opens a root; what is mounted below it belongs to it.
func Open(name string) (*Root, error) { return open(name, 0) }

// OpenOneMount opens a root of which only the mount belongs to it that the directory itself is on: a path that crosses into another
// one is refused with EXDEV.
func OpenOneMount(name string) (*Root, error) { return open(name, unix.RESOLVE_NO_XDEV) }

func open(name string, resolve uint64) (*Root, error) {
	fd, err := OpenAt(unix.AT_FDCWD, name, unix.O_PATH|unix.O_DIRECTORY, unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return nil, &os.PathError{Op: "open root", Path: name, Err: err}
	}
	return &Root{dir: os.NewFile(uintptr(fd), name), name: name, resolve: resolve}, nil
}

// OpenAt is openat2(2) with O_CLOEXEC: it opens a name from an open directory and keeps the rules of resolve (unix.RESOLVE_*). It tries
// again where the kernel could not tell whether a path stayed inside, because something was renamed meanwhile. The error is the kernel's,
// or ErrUnsupported.
func OpenAt(dir int, name string, flags int, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve}
	const tries = 32
	for try := 1; ; try++ {
		fd, err := unix.Openat2(dir, name, &how)
		switch {
		case errors.Is(err, unix.ENOSYS):
			return -1, ErrUnsupported
		case try < tries && (errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)):
			continue
		}
		return fd, err
	}
}

// OpenIn is OpenAt for a directory that another goroutine may close meanwhile: its number may then be that of another one already.
func OpenIn(dir *os.File, name string, flags int, resolve uint64) (int, error) {
	conn, err := dir.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, err := -1, error(nil)
	if closed := conn.Control(func(dir uintptr) { fd, err = OpenAt(int(dir), name, flags, resolve) }); closed != nil {
		return -1, closed
	}
	return fd, err
}

// Beneath opens with O_PATH what a clean relative name leads to from a directory, "." for itself, by a way with no symbolic link and
// nothing outside: whoever may write below the directory leads nobody elsewhere. It fails with ELOOP or EXDEV otherwise.
func Beneath(dir, name string) (*os.File, error) {
	below, err := OpenAt(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY, unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(below) //nolint:errcheck // nothing was written
	const inside = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	at := path.Join(dir, name)
	fd, err := OpenAt(below, name, unix.O_PATH, inside)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: at, Err: err}
	}
	return os.NewFile(uintptr(fd), at), nil
}

// Close releases the root. It cannot be used afterwards.
func (r *Root) Close() error { return r.dir.Close() }

// Dir is the root directory itself, opened with O_PATH. It is closed with the root.
func (r *Root) Dir() *os.File { return r.dir }

// Path is the path of a name as seen from outside the root, no link resolved.
func (r *Root) Path(name string) string { return path.Join(r.name, path.Join("/", name)) }

func (r *Root) failed(verb, name string, err error) error {
	return &os.PathError{Op: verb, Path: r.Path(name), Err: err}
}

// openFlags opens a name below the root, whatever it is: the caller's flags keep that harmless.
func (r *Root) openFlags(verb, name string, flags int) (*os.File, error) {
	fd, err := r.descriptor(verb, name, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), r.Path(name)), nil
}

func (r *Root) descriptor(verb, name string, flags int) (int, error) {
	inside := strings.TrimPrefix(path.Join("/", name), "/")
	inside = cmp.Or(inside, ".")
	fd, err := OpenIn(r.dir, inside, flags, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS|r.resolve)
	if err != nil {
		return -1, r.failed(verb, name, err)
	}
	return fd, nil
}

// Stat describes a name, links followed.
func (r *Root) Stat(name string) (unix.Stat_t, error) { return r.stat(name, 0) }

// Lstat describes a name itself, which may be a link.
func (r *Root) Lstat(name string) (unix.Stat_t, error) { return r.stat(name, unix.O_NOFOLLOW) }

func (r *Root) stat(name string, flags int) (unix.Stat_t, error) {
	fd, err := r.descriptor("look at", name, unix.O_PATH|flags)
	if err != nil {
		return unix.Stat_t{}, err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return stat, r.failed("look at", name, err)
	}
	return stat, nil
}

func (r *Root) fstat(f *os.File, name string) (unix.Stat_t, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return stat, r.failed("look at", name, err)
	}
	return stat, nil
}

// Open opens a regular file for reading, links followed. Anything else is ErrNotRegular, and was not opened.
func (r *Root) Open(name string) (*os.File, unix.Stat_t, error) {
	before, err := r.Stat(name)
	if err != nil {
		return nil, before, err
	}
	if before.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, before, r.failed("open", name, fmt.Errorf("%w but %s", ErrNotRegular, TypeName(before.Mode)))
	}
	f, err := r.openFlags("open", name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, before, err
	}
	stat, err := r.fstat(f, name)
	if err == nil && (stat.Dev != before.Dev || stat.Ino != before.Ino) {
		err = r.failed("open", name, errors.New("it was replaced meanwhile"))
	}
	if err != nil {
		return nil, stat, errors.Join(err, f.Close())
	}
	return f, stat, nil
}

// ReadFile reads a regular file of at most limit bytes; a larger one is ErrTooLarge.
func (r *Root) ReadFile(name string, limit int64) ([]byte, error) {
	f, _, err := r.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, r.failed("read", name, err)
	}
	if int64(len(data)) > limit {
		return nil, r.failed("read", name, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit))
	}
	return data, nil
}

// OpenDir opens a directory for calls that take names in it, with O_PATH.
func (r *Root) OpenDir(name string) (*os.File, error) {
	return r.openFlags("open directory", name, unix.O_PATH|unix.O_DIRECTORY)
}

// ReadDir lists a directory's names, sorted.
func (r *Root) ReadDir(name string) ([]string, error) {
	f, err := r.openFlags("list", name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(maxNames + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, r.failed("list", name, err)
	}
	if len(names) > maxNames {
		return nil, r.failed("list", name, fmt.Errorf("%w: more than %d names", ErrTooLarge, maxNames))
	}
	slices.Sort(names)
	return names, nil
}

// Resolve is the path below the root that a name leads to when all links are followed, and what is there. Following no link, the path
// leads to the same.
func (r *Root) Resolve(name string) (string, unix.Stat_t, error) {
	f, err := r.openFlags("resolve", name, unix.O_PATH)
	if err != nil {
		return "", unix.Stat_t{}, err
	}
	defer f.Close()
	stat, err := r.fstat(f, name)
	if err != nil {
		return "", stat, err
	}
	root, err := descriptorPath(r.dir)
	if err != nil {
		return "", stat, r.failed("resolve", name, err)
	}
	full, err := descriptorPath(f)
	if err != nil {
		return "", stat, r.failed("resolve", name, err)
	}
	resolved, err := below(root, full)
	if err != nil {
		return "", stat, r.failed("resolve", name, err)
	}
	return resolved, stat, r.same(resolved, stat)
}

// same makes sure that a path still leads to a file, without any link.
func (r *Root) same(resolved string, want unix.Stat_t) error {
	strict := Root{dir: r.dir, name: r.name, resolve: r.resolve | unix.RESOLVE_NO_SYMLINKS}
	got, err := strict.Stat(resolved)
	if err == nil && (got.Dev != want.Dev || got.Ino != want.Ino) {
		err = r.failed("resolve", resolved, errors.New("it was replaced meanwhile"))
	}
	return err
}

// below takes a root's path off another.
func below(root, full string) (string, error) {
	if root == "/" {
		return full, nil
	}
	rest, ok := strings.CutPrefix(full, root)
	if !ok || rest != "" && rest[0] != '/' {
		return "", fmt.Errorf("it is at %s, want a path below %s", full, root)
	}
	return path.Join("/", rest), nil
}

// descriptorPath is the path of an open file as the kernel knows it.
func descriptorPath(f *os.File) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// TypeName is what a mode says of a file's type, for people.
func TypeName(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "a regular file"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFLNK:
		return "a symbolic link"
	case unix.S_IFIFO:
		return "a pipe"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "a device node"
	default:
		return "something unknown"
	}
}
