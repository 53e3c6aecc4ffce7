// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// slowDisk is a directory on a file system of its own. The kernel can freeze it: whoever writes then waits until it is thawed, and
// cannot even be killed, as with a disk that does not answer.
type slowDisk struct {
	path   string
	mu     sync.Mutex
	frozen bool
}

// FIFREEZE and FITHAW of linux/fs.h.
const (
	ioctlFreeze = 0xC0045877
	ioctlThaw   = 0xC0045878
)

// mountSlow makes the file system from an image beside the host's tree.
func mountSlow(ctx context.Context, dir, root string, i int) (*slowDisk, error) {
	return mountSmall(ctx, filepath.Join(dir, dirName(i)+".img"), filepath.Join(root, dirParent, dirName(i)))
}

// mountSmall makes an image with a file system of 8 MiB and 2,048 inodes, and mounts it.
func mountSmall(ctx context.Context, image, path string) (*slowDisk, error) {
	const size = 8 << 20
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size)); err != nil {
		return nil, err
	}
	for _, command := range [][]string{
		{"mkfs.ext4", "-q", "-m", "0", "-N", "2048", "-O", "^has_journal", image},
		{"mount", "-o", "loop", image, path},
	} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", command[0], err, out)
		}
	}
	d := &slowDisk{path: path}
	if err := os.Remove(filepath.Join(path, "lost+found")); err != nil {
		return nil, errors.Join(err, d.unmount())
	}
	return d, nil
}

func (d *slowDisk) freeze() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.ioctl(ioctlFreeze); err != nil {
		return fmt.Errorf("freeze %s: %w", d.path, err)
	}
	d.frozen = true
	return nil
}

// thaw does nothing for a disk that is not frozen.
func (d *slowDisk) thaw() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.frozen {
		return nil
	}
	if err := d.ioctl(ioctlThaw); err != nil {
		return fmt.Errorf("thaw %s: %w", d.path, err)
	}
	d.frozen = false
	return nil
}

func (d *slowDisk) ioctl(request uint) error {
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), request, 0)
}

func (d *slowDisk) unmount() error {
	if err := errors.Join(d.thaw(), unix.Unmount(d.path, unix.MNT_DETACH)); err != nil {
		return fmt.Errorf("unmount %s: %w", d.path, err)
	}
	return nil
}
