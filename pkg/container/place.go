// SPDX-License-Identifier: Apache-2.0

package container

import (
	"fmt"

	"github.com/fettle-dev/fettle/api/mountpath"
)

// Place is where a directory or a character device of the host is, whatever path leads to it. It holds until the node's next boot. What is
// not known is empty.
type Place struct {
	// FileSystem is the number of the file system's device, such as "253:0".
	FileSystem string `json:"fileSystem,omitempty"`
	// Path is that of the directory within its file system: a directory that is mounted at a second path has the same one there.
	Path string `json:"path,omitempty"`
	// Directory has the numbers of the device and of the inode, as stat(2) has them: a directory that is renamed keeps them.
	Directory string `json:"directory,omitempty"`
	// Device is where in sysfs the kernel has a character device, as its link in /sys/dev/char says: names and numbers may be another device's
	// later.
	Device string `json:"device,omitempty"`
}

func (p Place) String() string {
	if p.Device != "" {
		return p.Device
	}
	return fmt.Sprintf("%s of file system %s (inode %s)", p.Path, p.FileSystem, p.Directory)
}

// Overlaps reports whether two places are known to be one directory, or one of them is inside the other.
func (p Place) Overlaps(other Place) bool {
	return p.Directory != "" && p.Directory == other.Directory ||
		p.FileSystem != "" && p.FileSystem == other.FileSystem && mountpath.Overlap(p.Path, other.Path)
}

// Moved reports whether two places are known to be different directories or devices.
func (p Place) Moved(to Place) bool {
	return p.Directory != "" && to.Directory != "" && p.Directory != to.Directory ||
		p.Device != "" && to.Device != "" && p.Device != to.Device
}
