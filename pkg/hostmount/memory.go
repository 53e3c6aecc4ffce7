// SPDX-License-Identifier: Apache-2.0

package hostmount

import (
	"errors"
	"fmt"
	"os"
)

// Page is what a file in memory takes, however small it is.
const Page = 4096

// ShortLink is the longest that a symbolic link in memory leads to without a page of its own, as of SHORT_SYMLINK_LEN in the kernel's
// mm/shmem.c, which counts the byte that ends it.
const ShortLink = 127

// Memory is memory of a claim that has content before the claim sees it.
type Memory struct {
	// Bytes and Files are what the content takes. Free is how many bytes the claim may add, with as many files as empty memory of that
	// size holds.
	Bytes, Files, Free int64
	// Fill makes the content. Names are relative to the directory.
	Fill func(*os.Root) error
	// Context is the SELinux context of all files. Empty: as memory has it.
	Context string
}

// Memory mounts such memory, at a name as Layer's. One that is there is left. It is put there when it is filled, and not before, so that
// whatever is there is whole.
func (d *Dir) Memory(name string, m Memory) error {
	at, err := d.named(name)
	if err != nil {
		return err
	}
	return d.put(at, func() (*os.File, bool, error) {
		mount, err := filled(&m)
		return mount, true, err
	})
}

// filled makes the mount, which is nowhere yet.
func filled(m *Memory) (*os.File, error) {
	const top = 1 // the directory itself
	mount, err := memoryOf(m.Bytes+m.Free, m.Files+mostFiles(m.Free)+top, m.Context)
	if err != nil {
		return nil, err
	}
	if err := fill(fmt.Sprintf("/proc/self/fd/%d", mount.Fd()), m.Fill); err != nil {
		return nil, errors.Join(fmt.Errorf("fill the claim's memory: %w", err), mount.Close())
	}
	return mount, nil
}
