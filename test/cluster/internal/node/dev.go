// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// privateDev gives the node a /dev of its own with the nodes that the host has now. A runtime that starts a container in a user
// namespace cannot make device nodes and binds the node's own instead, so simulated devices must be able to have theirs there
// without the host or another node seeing them.
func privateDev(staging string) error {
	if err := os.MkdirAll(staging, 0o755); err != nil {
		return fmt.Errorf("make the node's /dev: %w", err)
	}
	if err := unix.Mount("tmpfs", staging, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mount the node's /dev: %w", err)
	}
	if err := copyNodes("/dev", staging); err != nil {
		return fmt.Errorf("fill the node's /dev: %w", err)
	}
	for _, dir := range []string{"pts", "shm"} {
		if err := os.MkdirAll(filepath.Join(staging, dir), 0o755); err != nil {
			return fmt.Errorf("fill the node's /dev: %w", err)
		}
		if err := bind(filepath.Join("/dev", dir), filepath.Join(staging, dir), unix.MS_PRIVATE); err != nil {
			return err
		}
	}
	return bind(staging, "/dev", unix.MS_PRIVATE)
}

// copyNodes makes the devices, links and directories of one file system again; what is mounted below it is left out.
func copyNodes(from, to string) error {
	return filepath.WalkDir(from, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path, from), "/")
		var stat unix.Stat_t
		if err := unix.Lstat(path, &stat); err != nil {
			return ignoreGone(err)
		}
		target := filepath.Join(to, name)
		switch stat.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if name == "pts" || name == "shm" || name == "mqueue" || name == "hugepages" {
				return fs.SkipDir
			}
			return os.MkdirAll(target, 0o755)
		case unix.S_IFCHR, unix.S_IFBLK:
			if err := unix.Mknod(target, stat.Mode, int(stat.Rdev)); err != nil {
				return fmt.Errorf("make %s: %w", target, err)
			}
			return os.Chmod(target, fs.FileMode(stat.Mode&0o777))
		case unix.S_IFLNK:
			link, err := os.Readlink(path)
			if err != nil {
				return ignoreGone(err)
			}
			return os.Symlink(link, target)
		default:
			return nil
		}
	})
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
