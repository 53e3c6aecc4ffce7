// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/step"
)

// Place is what the path of a directory led to when a claim got it. A path alone may lead to something else later: if a disk is not mounted
// after a reboot, to the directory below it.
type Place struct {
	Identity
	// Mounted: something was mounted at the path itself.
	Mounted bool `json:"mounted,omitempty"`
	// Above is the directory above it.
	Above Identity `json:"above"`
}

// Identity tells one directory from another, also after a reboot. It has only what the file system keeps on its disk. What is not known is
// empty.
type Identity struct {
	// Type is f_type of statfs, in hexadecimal.
	Type string `json:"type"`
	// FileSystem is f_fsid of statfs, in hexadecimal.
	FileSystem string `json:"fileSystem,omitempty"`
	// Inode is the number of the directory, and Born the time when it was made, in seconds.
	Inode uint64 `json:"inode,omitempty"`
	Born  string `json:"born,omitempty"`
}

// fileSystem says what a type of file system keeps for good.
type fileSystem struct {
	name string
	// id: f_fsid is made of the file system's UUID. XFS and F2FS make it of the numbers of the block device, which change with a reboot.
	id bool
	// inode: the number and the time of birth of a directory never change. Those of overlayfs, FUSE and FAT may.
	inode bool
}

// fileSystems has the types that keep something. Of all others only the type counts: a tmpfs is another one after a reboot, and its content
// is gone.
func fileSystems() map[int64]fileSystem {
	return map[int64]fileSystem{
		unix.EXT4_SUPER_MAGIC:  {name: "ext4", id: true, inode: true},
		unix.BTRFS_SUPER_MAGIC: {name: "Btrfs", id: true, inode: true},
		zfsSuperMagic:          {name: "ZFS", id: true, inode: true},
		unix.XFS_SUPER_MAGIC:   {name: "XFS", inode: true},
		unix.F2FS_SUPER_MAGIC:  {name: "F2FS", inode: true},
		unix.NFS_SUPER_MAGIC:   {name: "NFS", inode: true},
		unix.TMPFS_MAGIC:       {name: "tmpfs"},
	}
}

// zfsSuperMagic is ZFS_SUPER_MAGIC of OpenZFS.
const zfsSuperMagic = 0x2fc12fc1

// identify reads the identity of an open directory, and whether something is mounted there. above is the directory above it, or nil if only
// the identity is wanted.
func identify(dir, above *os.File) (id Identity, mounted bool, err error) {
	var about unix.Statfs_t
	var stat unix.Statx_t
	if err := unix.Fstatfs(int(dir.Fd()), &about); err != nil {
		return Identity{}, false, &fs.PathError{Op: "statfs", Path: dir.Name(), Err: err}
	}
	if stat, err = statx(dir); err != nil {
		return Identity{}, false, err
	}
	id.Type = strconv.FormatInt(about.Type, 16)
	keeps := fileSystems()[about.Type]
	if keeps.id {
		id.FileSystem = fmt.Sprintf("%08x%08x", uint32(about.Fsid.Val[0]), uint32(about.Fsid.Val[1]))
	}
	if keeps.inode {
		id.Inode = stat.Ino
	}
	if keeps.inode && stat.Mask&unix.STATX_BTIME != 0 {
		id.Born = fmt.Sprintf("%d.%09d", stat.Btime.Sec, stat.Btime.Nsec)
	}
	if stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return id, stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	if above == nil { // and a kernel before 5.8, which does not say it
		return id, false, nil
	}
	around, err := statx(above)
	return id, stat.Dev_major != around.Dev_major || stat.Dev_minor != around.Dev_minor, err
}

func statx(dir *os.File) (stat unix.Statx_t, err error) {
	err = unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &stat)
	if err != nil {
		err = &fs.PathError{Op: "statx", Path: dir.Name(), Err: err}
	}
	return stat, err
}

// place reads what the path of the directory led to when it was opened.
func (d *Dir) place() (p Place, err error) {
	above, err := os.Open(filepath.Dir(d.name))
	if err != nil {
		return Place{}, fmt.Errorf("identify %s: %w", d.name, err)
	}
	defer above.Close()
	dir, err := d.root.Open(".")
	if err != nil {
		return Place{}, fmt.Errorf("identify %s: %w", d.name, err)
	}
	defer dir.Close()
	if p.Identity, p.Mounted, err = identify(dir, above); err == nil {
		p.Above, _, err = identify(above, nil)
	}
	if err != nil {
		return Place{}, fmt.Errorf("identify %s: %w", d.name, err)
	}
	return p, nil
}

// is reports whether two identities are of one directory, as far as both are known.
func (i Identity) is(other Identity) bool {
	return i.Type == other.Type && (i.FileSystem == "" || other.FileSystem == "" || i.FileSystem == other.FileSystem) &&
		(i.Inode == 0 || other.Inode == 0 || i.Inode == other.Inode) && (i.Born == "" || other.Born == "" || i.Born == other.Born)
}

func (i Identity) String() string {
	kind := "file system 0x" + i.Type
	if magic, err := strconv.ParseInt(i.Type, 16, 64); err == nil && fileSystems()[magic].name != "" {
		kind = fileSystems()[magic].name
	}
	words := []string{kind}
	if i.FileSystem != "" {
		words = append(words, "id "+i.FileSystem)
	}
	if i.Inode != 0 {
		words = append(words, fmt.Sprintf("inode %d", i.Inode))
	}
	if i.Born != "" {
		words = append(words, "made at "+i.Born)
	}
	return strings.Join(words, ", ")
}

func (p *Place) String() string {
	if p.Mounted {
		return p.Identity.String() + ", mounted there"
	}
	return p.Identity.String()
}

// replacedError says that a path leads to another directory than the claim got.
type replacedError struct {
	path string
	was  *Place
	// now is what is there, nil if nothing is.
	now *Place
}

func (e *replacedError) Error() string {
	now, next := "nothing", "put it back, or mount again what it is on"
	if e.now != nil {
		now = "a directory of " + e.now.String()
	}
	if e.was.Mounted {
		next = "mount it again"
	}
	return fmt.Sprintf("host directory %s %v: the claim got a directory of %s, and there is %s: %s",
		e.path, step.ErrReplaced, e.was, now, next)
}

func (e *replacedError) Unwrap() error { return step.ErrReplaced }

// check refuses another directory than the claim got. Steps of versions that did not note the place pass.
func (p *Params) check(d *Dir) error {
	if p.Place == nil {
		return nil
	}
	now, err := d.place()
	if err != nil {
		return err
	}
	if !p.Place.is(now.Identity) {
		return &replacedError{path: p.Path, was: p.Place, now: &now}
	}
	return nil
}

// checkGone returns nil if the directory, which is not there, was deleted. If something was mounted at its path, or at one above, it may
// come back with all its content. path is where the plugin sees it.
func (p *Params) checkGone(path string) error {
	if p.Place == nil {
		return nil
	}
	gone := &replacedError{path: p.Path, was: p.Place}
	if p.Place.Mounted {
		return gone
	}
	above, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return gone
	}
	if err != nil {
		return fmt.Errorf("look where %s was: %w", p.Path, err)
	}
	defer above.Close()
	now, _, err := identify(above, nil)
	if err != nil {
		return fmt.Errorf("look where %s was: %w", p.Path, err)
	}
	if !p.Place.Above.is(now) {
		return gone
	}
	return nil
}
