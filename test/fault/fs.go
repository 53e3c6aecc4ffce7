// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// FS disturbs a file system.
func (i *Injector) FS(under disk.FS) disk.FS { return fsys{in: i, under: under} }

type fsys struct {
	in    *Injector
	under disk.FS
}

func (f fsys) do(op Op, act func(*Op) error) error {
	op.Path = filepath.Clean(op.Path)
	return f.in.do(context.Background(), op, act)
}

func (f fsys) OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error) {
	op := Op{Kind: Open, Path: name, Flag: flag, Mode: perm}
	if flag&(os.O_CREATE|os.O_TRUNC) != 0 {
		op.Kind = Create
	}
	opened := &file{fsys: f, name: name}
	err := f.do(op, func(op *Op) (err error) {
		opened.under, err = f.under.OpenFile(name, flag, perm)
		opened.handle = f.in.handle()
		op.Handle = opened.handle
		return err
	})
	if err != nil && opened.under != nil {
		err = errors.Join(err, opened.Close())
	}
	if err != nil {
		return nil, err
	}
	return opened, nil
}

func (f fsys) ReadFile(name string) (data []byte, err error) {
	err = f.do(Op{Kind: ReadFile, Path: name}, func(*Op) (err error) {
		data, err = f.under.ReadFile(name)
		return err
	})
	return data, err
}

func (f fsys) ReadDir(name string) (entries []fs.DirEntry, err error) {
	err = f.do(Op{Kind: ReadDir, Path: name}, func(*Op) (err error) {
		entries, err = f.under.ReadDir(name)
		return err
	})
	return entries, err
}

func (f fsys) Lstat(name string) (info fs.FileInfo, err error) {
	err = f.do(Op{Kind: Stat, Path: name}, func(*Op) (err error) {
		info, err = f.under.Lstat(name)
		return err
	})
	return info, err
}

func (f fsys) Readlink(name string) (target string, err error) {
	err = f.do(Op{Kind: Readlink, Path: name}, func(*Op) (err error) {
		target, err = f.under.Readlink(name)
		return err
	})
	return target, err
}

func (f fsys) Mkdir(name string, perm fs.FileMode) error {
	return f.do(Op{Kind: Mkdir, Path: name, Mode: perm}, func(*Op) error { return f.under.Mkdir(name, perm) })
}

func (f fsys) Symlink(target, name string) error {
	return f.do(Op{Kind: Symlink, Path: name, To: target}, func(*Op) error { return f.under.Symlink(target, name) })
}

func (f fsys) Rename(from, to string) error {
	return f.do(Op{Kind: Rename, Path: from, To: filepath.Clean(to)}, func(*Op) error { return f.under.Rename(from, to) })
}

func (f fsys) Remove(name string) error {
	return f.do(Op{Kind: Remove, Path: name}, func(*Op) error { return f.under.Remove(name) })
}

func (f fsys) SyncDir(name string) error {
	return f.do(Op{Kind: SyncDir, Path: name}, func(*Op) error {
		if f.in.Quick {
			_, err := f.under.Lstat(name)
			return err
		}
		return f.under.SyncDir(name)
	})
}

// SyncFS is there for file systems that sync as a whole, though disk.FS does not.
func (f fsys) SyncFS(name string) error {
	under, ok := f.under.(interface{ SyncFS(name string) error })
	if !ok {
		return &fs.PathError{Op: string(SyncFS), Path: name, Err: errors.ErrUnsupported}
	}
	return f.do(Op{Kind: SyncFS, Path: name}, func(*Op) error {
		if f.in.Quick {
			_, err := f.under.Lstat(name)
			return err
		}
		return under.SyncFS(name)
	})
}

// file is an open file of the file system.
type file struct {
	fsys
	under  disk.File
	name   string
	handle int
}

func (f *file) change(op Op, act func(*Op) error) error {
	op.Path, op.Handle = f.name, f.handle
	return f.do(op, act)
}

func (f *file) Write(p []byte) (n int, err error) {
	err = f.change(Op{Kind: Write, Data: bytes.Clone(p)}, func(op *Op) error {
		var err error
		n, err = f.under.Write(op.Data)
		op.Data = op.Data[:n]
		return err
	})
	return n, err
}

func (f *file) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.change(Op{Kind: Write, Data: bytes.Clone(p), Off: &off}, func(op *Op) error {
		var err error
		n, err = f.under.WriteAt(op.Data, off)
		op.Data = op.Data[:n]
		return err
	})
	return n, err
}

func (f *file) Truncate(size int64) error {
	return f.change(Op{Kind: Truncate, Size: size}, func(*Op) error { return f.under.Truncate(size) })
}

func (f *file) Chmod(mode fs.FileMode) error {
	return f.change(Op{Kind: Chmod, Mode: mode}, func(*Op) error { return f.under.Chmod(mode) })
}

func (f *file) Sync() error {
	return f.sync(Sync, f.under.Sync)
}

func (f *file) Datasync() error {
	return f.sync(Datasync, f.under.Datasync)
}

func (f *file) sync(kind Kind, sync func() error) error {
	return f.change(Op{Kind: kind}, func(*Op) error {
		if f.in.Quick {
			return nil
		}
		return sync()
	})
}

func (f *file) Close() error { return f.under.Close() }
