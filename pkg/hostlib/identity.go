// SPDX-License-Identifier: Apache-2.0

package hostlib

import (
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/rootfs"
)

// Identity tells whether a file or a directory is still the one that was looked at. Two are compared with ==. An upgrade replaces
// files, which changes the inode; who writes into one changes size or time; a device node that was made anew has other numbers.
type Identity struct {
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
	Rdev  uint64 `json:"rdev,omitempty"`
	// Mtime is the time of the last change of the content, in nanoseconds since 1970.
	Mtime int64 `json:"mtime"`
	Size  int64 `json:"size"`
}

func identityOf(s *unix.Stat_t) Identity {
	return Identity{Dev: s.Dev, Inode: s.Ino, Rdev: s.Rdev, Mtime: s.Mtim.Nano(), Size: s.Size}
}

// Place is a path below the root that leads through no link, what is there, and which one.
type Place struct {
	// HostPath is below the root.
	HostPath string
	// Type is for people: "a directory".
	Type     string
	Dir      bool
	Identity Identity
}

// Identity finds what a mount of a path would show, links followed. Nothing is opened.
func (h *Host) Identity(name string) (Place, error) {
	resolved, stat, err := h.root.Resolve(name)
	if err != nil {
		return Place{}, err
	}
	return Place{
		HostPath: resolved, Type: rootfs.TypeName(stat.Mode), Dir: stat.Mode&unix.S_IFMT == unix.S_IFDIR, Identity: identityOf(&stat),
	}, nil
}
