// SPDX-License-Identifier: Apache-2.0

package cachemount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/filelock"
)

// lockTrees keeps others, in other processes too, from mounting and unmounting images.
func (m *Mounter) lockTrees() (unlock func(), err error) {
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of caches: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(m.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := filelock.Flock(file, filelock.Exclusive); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// InUse says whether a tree must stay: somebody needs it, or it cannot be unmounted. The mount of one that nobody needs goes first.
func (m *Mounter) InUse(store *artifact.Store, tree artifact.Digest) bool {
	there, err := m.Mounts.Has(treeName(tree))
	if !there && err == nil {
		return false
	}
	return err != nil || m.unmountIdle(store, tree) != nil
}

// errNeeded is about a tree that claims have.
var errNeeded = errors.New("is needed by claims")

// unmountIdle takes the mount of a tree away, unless somebody needs it. Who pins it meanwhile mounts it again: it has to wait for the lock.
func (m *Mounter) unmountIdle(store *artifact.Store, tree artifact.Digest) error {
	unlock, err := m.lockTrees()
	if err != nil {
		return err
	}
	defer unlock()
	pins, err := store.Pins(tree)
	if err != nil {
		return err
	}
	if len(pins) > 0 {
		return fmt.Errorf("image %s %w", tree, errNeeded)
	}
	return m.Mounts.Detach(treeName(tree))
}

// Tidy removes the places of images that are not mounted, as a reboot leaves them.
func (m *Mounter) Tidy() error {
	names, err := m.Mounts.Names(treeMounts)
	if err != nil || len(names) == 0 {
		return err
	}
	unlock, err := m.lockTrees()
	if err != nil {
		return err
	}
	defer unlock()
	for _, name := range names {
		there, looked := m.Mounts.Has(name)
		if looked == nil && !there {
			looked = m.Mounts.Detach(name)
		}
		err = errors.Join(err, looked)
	}
	return err
}

// IsClaim reports whether a name of mounts is that of a claim.
func IsClaim(name string) bool { return name != treeMounts }

// Destroy removes the mounts of images and the mounter's directory. No claim has any.
func (m *Mounter) Destroy() error {
	names, err := m.Mounts.Names(treeMounts)
	for _, name := range names {
		err = errors.Join(err, m.Mounts.Detach(name))
	}
	return errors.Join(err, os.RemoveAll(m.Dir))
}
