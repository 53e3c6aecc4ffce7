// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// SweepCopies removes copies of images from a directory below root. Their names are PREFIX, the digits of a digest, and SUFFIX. The caller
// must hold the lock of the device that the copies are for.
func SweepCopies(root *os.Root, directory, prefix, suffix string) error {
	dir, err := root.OpenFile(directory, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("list the directory of images: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("list the directory of images: %w", err)
	}
	var errs []error
	for _, name := range names {
		digits, ok := strings.CutPrefix(strings.TrimSuffix(name, suffix), prefix)
		if _, err := HexDigest("sha256:" + digits); !ok || err != nil || !strings.HasSuffix(name, suffix) {
			continue
		}
		if err := root.Remove(path.Join(directory, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove the copy of an image: %w", err))
		}
	}
	return errors.Join(errs...)
}
