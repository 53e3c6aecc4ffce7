// SPDX-License-Identifier: Apache-2.0

// Package filelock locks files against other processes and against other callers of the same process. A lock is advisory and belongs to
// the open file: it ends when the last process that has the file open closes it, however that process ends. It keeps out every other open
// file of the same name, also one that the same process opened.
//
// There are two kinds, and the kernel does not let one see the other. During a rolling update the plugin of the version before runs beside
// the new one, so the kind of a lock, its file and its offset stay what they are:
//
//   - Range locks bytes (fcntl(2), F_OFD_SETLK). One file holds a lock for each claim, device or digest, and costs no file each. The
//     records, the artifact store and the chips of FPGAs are locked like this. The kernel does not queue the waiters with a deadline, so
//     they try again: see Backoff.
//   - Flock and WaitFlock lock a whole file (flock(2)). It needs no permission to write, so it locks directories, which leaves no file
//     behind, and programs that are run. Waiters queue in the kernel. The health ledger, the images of kernel caches, OCI layouts,
//     the volumes of kernel caches and the installed hooks are locked like this.
package filelock

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Mode says which other locks a lock goes along with.
type Mode int

const (
	// Exclusive goes along with none.
	Exclusive Mode = iota
	// Shared goes along with other shared ones. A Range needs a file that is open for reading.
	Shared
)

// Range is a range of bytes of a file. They need not exist. The zero Range is the whole file, however long it gets.
type Range struct{ Start, Len int64 }

// Try locks the range of an open file. It returns false where another holds a part of it.
func (r Range) Try(f *os.File, m Mode) (bool, error) {
	kind := int16(unix.F_WRLCK)
	if m == Shared {
		kind = unix.F_RDLCK
	}
	return r.set(f, kind)
}

// Unlock gives the range up. Closing the file does the same for all of its ranges.
func (r Range) Unlock(f *os.File) error {
	_, err := r.set(f, unix.F_UNLCK)
	return err
}

func (r Range) set(f *os.File, kind int16) (bool, error) {
	lock := unix.Flock_t{Type: kind, Start: r.Start, Len: r.Len}
	for {
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
			return false, nil
		default:
			return false, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
	}
}

// TryAt opens the file at path, which it makes if it is missing, and locks the range. It returns nil without an error where another holds a
// part of it. A file that was removed or replaced meanwhile keeps no other caller out, so that counts as held, too. A symbolic link is
// refused.
func (r Range) TryAt(path string, m Mode) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	locked, err := r.Try(f, m)
	if err == nil && locked {
		locked, err = isAt(f, path)
	}
	if err != nil || !locked {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// isAt says whether path still names the open file.
func isAt(f *os.File, path string) (bool, error) {
	held, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(held, named), err
}
