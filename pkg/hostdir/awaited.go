// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"errors"
	"io/fs"
	"os"
	"sync/atomic"
)

// awaited is a Root that changes nothing, and opens nothing that could be changed, once nobody waits for it any more: the directory may be
// another claim's by then, whom another process gave it. A sync that comes late does no harm.
type awaited struct {
	Root
	over *atomic.Bool
}

var errOver = errors.New("nobody waits for it any more")

func (a awaited) unlessOver(do func() error) error {
	if a.over.Load() {
		return errOver
	}
	return do()
}

func (a awaited) Open(name string) (f *os.File, err error) {
	err = a.unlessOver(func() error {
		f, err = a.Root.Open(name)
		return err
	})
	return f, err
}

func (a awaited) OpenRoot(name string) (Root, error) {
	if a.over.Load() {
		return nil, errOver
	}
	below, err := a.Root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return awaited{below, a.over}, nil
}

func (a awaited) Chmod(name string, mode fs.FileMode) error {
	return a.unlessOver(func() error { return a.Root.Chmod(name, mode) })
}

func (a awaited) Chown(name string, uid, gid int) error {
	return a.unlessOver(func() error { return a.Root.Chown(name, uid, gid) })
}

func (a awaited) Mkdir(name string, perm fs.FileMode) error {
	return a.unlessOver(func() error { return a.Root.Mkdir(name, perm) })
}

func (a awaited) Rename(from, to string) error {
	return a.unlessOver(func() error { return a.Root.Rename(from, to) })
}

func (a awaited) Remove(name string) error {
	return a.unlessOver(func() error { return a.Root.Remove(name) })
}
