// SPDX-License-Identifier: Apache-2.0

package hostmount

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// Kind returns the step kind. Apply keeps a mount that exists.
func (d *Dir) Kind() step.Kind {
	return step.Kind{
		Apply: step.Do(func(ctx context.Context, p *params) error {
			if err := p.check(); err != nil {
				return err
			}
			return d.mountAt(d.at(p.Name), func() (*os.File, bool, error) { return d.newDetached(ctx, p) })
		}),
		Undo: step.Do(func(_ context.Context, p *params) error { return d.Detach(p.Name) }),
		Needs: func(raw json.RawMessage) ([]budget.Need, error) {
			p, err := step.Decode[params](raw)
			if err != nil {
				return nil, err
			}
			needs := []budget.Need{{Resource: budget.Mounts, Amount: 1}}
			if p.Scratch != nil {
				needs = append(needs, budget.Need{Resource: budget.Memory, Amount: MemoryOf(p.Scratch.Bytes)})
			}
			return needs, nil
		},
	}
}

// mountAt makes a mount and its mount point, a directory or a file, and attaches it. It does nothing if something is mounted there.
func (d *Dir) mountAt(at string, made func() (mount *os.File, directory bool, err error)) error {
	if there, err := mounted(at); err != nil || there {
		return err
	}
	if err := d.prepareParent(at); err != nil {
		return err
	}
	mount, directory, err := made()
	if err != nil {
		return err
	}
	defer mount.Close()
	if err := makeMountPoint(at, directory); err != nil {
		return err
	}
	return attach(mount, at)
}

// mountDirectory is mountAt for a directory at a name, CLAIM/KEY.
func (d *Dir) mountDirectory(name string, made func() (*os.File, error)) error {
	at, err := d.checkedPath(name)
	if err != nil {
		return err
	}
	return d.mountAt(at, func() (*os.File, bool, error) {
		mount, err := made()
		return mount, true, err
	})
}

// prepareParent makes the parent directory of a mount point, and checks that mounts in it are visible outside.
func (d *Dir) prepareParent(at string) error {
	dir := filepath.Dir(at)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of mounts: %w", err)
	}
	return d.checkShared(dir)
}

// newDetached makes a mount that is not attached yet, and reports whether it is a directory. A copy may be of a file system that does not
// answer, such as NFS.
func (d *Dir) newDetached(ctx context.Context, p *params) (mount *os.File, directory bool, err error) {
	if p.Scratch != nil {
		mount, err = newMemory(p.Scratch.Bytes, "")
		return mount, true, err
	}
	type copied struct {
		mount     *os.File
		directory bool
	}
	got, err := sysfs.Call(ctx, d.copies, p.Name, func() (c copied, err error) {
		c.mount, c.directory, err = d.cloneCopy(p.Copy)
		return c, err
	}, func(late copied) { _ = late.mount.Close() }) // nothing was written
	if errors.Is(err, sysfs.ErrNoAnswer) {
		err = fmt.Errorf("copy the mount of %s: %w", p.Copy.HostPath(), err)
	}
	return got.mount, got.directory, err
}

// makeMountPoint makes an empty directory or file to mount on. A reboot leaves one, which may be of the other kind.
func makeMountPoint(at string, directory bool) error {
	there, err := os.Lstat(at)
	if err == nil && there.IsDir() != directory {
		if err := removeMountPoint(at); err != nil {
			return err
		}
	}
	if directory {
		err = os.Mkdir(at, 0o700)
	} else {
		err = os.WriteFile(at, nil, 0o600)
	}
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return wrap("make", at, err)
}

// maxUnmounts is far above the number of mounts that can lie on one another at a path: one, or two after a race that locks prevent.
const maxUnmounts = 8

// undo removes the mount, even if it is in use, and its mount point. It never deletes anything with content.
func (d *Dir) undo(name string) error {
	at := d.at(name)
	for range maxUnmounts {
		there, err := mounted(at)
		if err != nil {
			return err
		}
		if !there {
			break
		}
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return wrap("unmount", at, err)
		}
	}
	if err := removeMountPoint(at); err != nil {
		return err
	}
	err := unix.Rmdir(filepath.Dir(at))
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOENT) {
		return nil // the claim has other mounts, or the directory is gone
	}
	return wrap("remove", filepath.Dir(at), err)
}

// removeMountPoint removes an empty directory, or the file that is mounted on.
func removeMountPoint(at string) error {
	err := unix.Rmdir(at)
	if errors.Is(err, unix.ENOTDIR) {
		err = unix.Unlink(at)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return wrap("remove", at, err)
}

func wrap(verb, path string, err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s %s: %w: the plugin may not mount, let the chart have presets.allowedHostPaths, presets.scratch, "+
			"kernelCaches.enabled or mps.enabled", verb, path, err)
	case err != nil:
		return &os.PathError{Op: verb, Path: path, Err: err}
	}
	return nil
}
