// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fettle-dev/fettle/pkg/hostdir"
)

// Root is hostdir.OpenRoot, disturbed. What is done with the files that a root opens is not seen.
func (i *Injector) Root(path string) (hostdir.Root, error) {
	return i.openRoot(path, func() (hostdir.Root, error) { return hostdir.OpenRoot(path) })
}

func (i *Injector) openRoot(path string, open func() (hostdir.Root, error)) (hostdir.Root, error) {
	r := root{in: i, path: filepath.Clean(path)}
	err := r.do(Op{Kind: Open}, ".", func(*Op) (err error) {
		r.under, err = open()
		return err
	})
	if err != nil && r.under != nil {
		err = errors.Join(err, r.under.Close())
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

type root struct {
	in    *Injector
	under hostdir.Root
	path  string
}

func (r root) do(op Op, name string, act func(*Op) error) error {
	op.Path = filepath.Join(r.path, name)
	return r.in.do(context.Background(), op, act)
}

func (r root) Open(name string) (f *os.File, err error) {
	err = r.do(Op{Kind: Open}, name, func(*Op) (err error) {
		f, err = r.under.Open(name)
		return err
	})
	if err != nil && f != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, err
}

func (r root) OpenRoot(name string) (hostdir.Root, error) {
	return r.in.openRoot(filepath.Join(r.path, name), func() (hostdir.Root, error) { return r.under.OpenRoot(name) })
}

func (r root) Stat(name string) (info fs.FileInfo, err error) {
	err = r.do(Op{Kind: Stat}, name, func(*Op) (err error) {
		info, err = r.under.Stat(name)
		return err
	})
	return info, err
}

func (r root) Lstat(name string) (info fs.FileInfo, err error) {
	err = r.do(Op{Kind: Stat}, name, func(*Op) (err error) {
		info, err = r.under.Lstat(name)
		return err
	})
	return info, err
}

func (r root) Mkdir(name string, perm fs.FileMode) error {
	return r.do(Op{Kind: Mkdir, Mode: perm}, name, func(*Op) error { return r.under.Mkdir(name, perm) })
}

func (r root) Rename(from, to string) error {
	op := Op{Kind: Rename, To: filepath.Join(r.path, to)}
	return r.do(op, from, func(*Op) error { return r.under.Rename(from, to) })
}

func (r root) Remove(name string) error {
	return r.do(Op{Kind: Remove}, name, func(*Op) error { return r.under.Remove(name) })
}

func (r root) Chmod(name string, mode fs.FileMode) error {
	return r.do(Op{Kind: Chmod, Mode: mode}, name, func(*Op) error { return r.under.Chmod(name, mode) })
}

func (r root) Chown(name string, uid, gid int) error {
	return r.do(Op{Kind: Chown, UID: uid, GID: gid}, name, func(*Op) error { return r.under.Chown(name, uid, gid) })
}

func (r root) SyncDir(name string) error {
	return r.do(Op{Kind: SyncDir}, name, func(*Op) error {
		if r.in.Quick {
			_, err := r.under.Stat(name)
			return err
		}
		return r.under.SyncDir(name)
	})
}

func (r root) Close() error { return r.under.Close() }
