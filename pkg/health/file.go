// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/filelock"
)

const (
	fileName = "health.json"
	// asideName is where a file goes that cannot be read; a newer one takes the place of an older.
	asideName = fileName + ".unreadable"
	fileMode  = 0o600
	// lockPatience is how long another process may hold the lock; it does for the time of one durable write.
	lockPatience = 2 * time.Second
)

// errSetAside marks that the ledger started empty.
var errSetAside = errors.New("the health ledger could not be read and was set aside as " + asideName +
	": what only it knew is forgotten until it is seen again")

// file is the ledger's file and what this process knows of it.
type file struct {
	fs  disk.FS
	dir string
	// known is the file that content was read from or written to, nil for none; dirty: the last write failed.
	known   *fileID
	written []byte
	dirty   bool
	// destroyed: the file was removed for good, as far as was known.
	destroyed bool
	// swept: leftovers were looked for.
	swept bool
	// shown is the known file at the time when readers were last shown what is in it.
	shown atomic.Pointer[fileID]
}

// fileID tells one file of a name from the next: every write makes a new one.
type fileID struct{ info fs.FileInfo }

func (id *fileID) same(info fs.FileInfo) bool {
	if id == nil || info == nil {
		return id == nil && info == nil
	}
	return os.SameFile(id.info, info) && id.info.ModTime().Equal(info.ModTime()) && id.info.Size() == info.Size()
}

func (f *file) path(name string) string { return filepath.Join(f.dir, name) }

// look is the file as it is now, nil if there is none.
func (f *file) look() (fs.FileInfo, error) {
	info, err := f.fs.Lstat(f.path(fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented above
	}
	return info, err
}

// stale says whether the file is another one than readers were shown.
func (f *file) stale() bool {
	info, err := f.look()
	return err == nil && info != nil && !f.shown.Load().same(info)
}

// read returns the bytes of a file that this process does not know yet, else nil.
func (f *file) read() ([]byte, error) {
	info, err := f.look()
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", f.path(fileName), err)
	}
	if f.known.same(info) {
		return nil, nil
	}
	if info == nil { // somebody removed it: it is written again
		f.known = nil
		f.written = nil
		return nil, nil
	}
	data, err := f.fs.ReadFile(f.path(fileName))
	if err != nil {
		return nil, f.setAside(err)
	}
	f.known = &fileID{info}
	f.written = data
	return data, nil
}

// setAside renames a file that is of no use, for people to look at.
func (f *file) setAside(cause error) error {
	f.known = nil
	f.written = nil
	err := fmt.Errorf("%w: %w", errSetAside, cause)
	if renameErr := f.fs.Rename(f.path(fileName), f.path(asideName)); renameErr != nil {
		return fmt.Errorf("%w (and it could not be renamed, so that it is overwritten: %w)", err, renameErr)
	}
	return err
}

// write makes the file hold data, durably, if it does not yet.
func (f *file) write(data []byte) error {
	if bytes.Equal(data, f.written) && !f.dirty {
		return nil
	}
	f.dirty = true
	if err := disk.MkdirAll(f.fs, f.dir, 0o750); err != nil {
		return err
	}
	if err := disk.ReplaceDurably(f.fs, f.path(fileName), data, fileMode); err != nil {
		return err
	}
	info, err := f.look()
	if err != nil || info == nil {
		return err
	}
	f.known = &fileID{info}
	f.written, f.dirty = data, false
	return nil
}

// sweep removes what writes that were cut off left behind. The caller holds the lock, so that none is under way.
func (f *file) sweep() error {
	entries, err := f.fs.ReadDir(f.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), disk.TemporaryPrefix+fileName) {
			errs = append(errs, disk.RemoveIfThere(f.fs, f.path(e.Name())))
		}
	}
	return errors.Join(errs...)
}

// destroy removes everything. What was written is remembered, so that nothing is written again before it changed.
func (f *file) destroy() error {
	unlock, err := f.lock()
	if err != nil {
		return err
	}
	defer unlock()
	f.known, f.destroyed = nil, true
	errs := []error{f.sweep()}
	for _, name := range []string{fileName, asideName} {
		errs = append(errs, disk.RemoveIfThere(f.fs, f.path(name)))
	}
	return errors.Join(errs...)
}

// needed has the next write make a file that was destroyed.
func (f *file) needed() {
	if f.destroyed {
		f.destroyed, f.written = false, nil
	}
}

// lock keeps other processes out until unlock is called. It is on the directory itself, so that it leaves no file behind.
//
//nolint:contextcheck,nolintlint // contextcheck heeds it, nolintlint cannot see that: what is noted must not be lost because a call ended
func (f *file) lock() (unlock func(), err error) {
	if err := disk.MkdirAll(f.fs, f.dir, 0o750); err != nil {
		return nil, fmt.Errorf("make the directory of the health ledger: %w", err)
	}
	dir, err := os.Open(f.dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory of the health ledger: %w", err)
	}
	// The kernel queues who waits, so that a process that comes often does not keep the others out.
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	err = filelock.WaitFlock(ctx, dir, filelock.Exclusive)
	if errors.Is(err, filelock.ErrHeld) {
		return nil, fmt.Errorf("lock %s: another process has held it for %s: %w", f.dir, lockPatience, err)
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = dir.Close() }, nil
}
