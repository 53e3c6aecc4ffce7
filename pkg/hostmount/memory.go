// SPDX-License-Identifier: Apache-2.0

package hostmount

import (
	"errors"
	"fmt"
	"os"
)

// Page is what a file in memory takes at least.
const Page = 4096

// ShortLink is the length up to which the target of a symbolic link in memory takes no page of its own: SHORT_SYMLINK_LEN in the kernel's
// mm/shmem.c, without the byte that ends it.
const ShortLink = 127

// Memory is memory of a claim that has content before the claim sees it.
type Memory struct {
	// Bytes and Files are the size of the content. Free is how many bytes the claim may add; the number of files that it may add is that of
	// empty memory of this size.
	Bytes, Files, Free int64
	// Fill writes the content. Names are relative to the directory.
	Fill func(*os.Root) error
	// Context is the SELinux context of all files. If it is empty, they have the default of memory.
	Context string
}

// MountMemory mounts memory with content, at a name as for MountOverlay. It keeps a mount that exists. It attaches the memory after it is
// filled, so that a mount which exists is complete.
func (d *Dir) MountMemory(name string, m Memory) error {
	at, err := d.checkedPath(name)
	if err != nil {
		return err
	}
	return d.mountAt(at, func() (*os.File, bool, error) {
		mount, err := newFilledMemory(&m)
		return mount, true, err
	})
}

// newFilledMemory makes the mount, which is not attached yet.
func newFilledMemory(m *Memory) (*os.File, error) {
	const top = 1 // the directory itself
	mount, err := newMemoryOf(m.Bytes+m.Free, m.Files+maxFiles(m.Free)+top, m.Context)
	if err != nil {
		return nil, err
	}
	if err := fill(fmt.Sprintf("/proc/self/fd/%d", mount.Fd()), m.Fill); err != nil {
		return nil, errors.Join(fmt.Errorf("fill the claim's memory: %w", err), mount.Close())
	}
	return mount, nil
}
