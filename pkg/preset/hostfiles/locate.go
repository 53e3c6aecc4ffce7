// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/api/mountpath"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/rootfs"
)

// spot is where a path of the host leads. A runtime looks a path up again each time when it starts a container, so only a path that root
// alone can change may be given to it.
type spot struct {
	// dir is a path without links, and root alone can change what it leads to.
	dir string
	// rest is what follows dir, "." if nothing does. Others can change what it leads to, and why says who they are.
	rest, why string
}

func (s *spot) path() string { return path.Join(s.dir, s.rest) }

// copy is the copy of what is there. It is opened below dir, with no link on the way.
func (s *spot) copy() *hostmount.Copy {
	if s.why == "" {
		return &hostmount.Copy{Below: path.Dir(s.dir), Path: path.Join(".", path.Base(s.dir))}
	}
	return &hostmount.Copy{Below: s.dir, Path: s.rest}
}

// maxLinks is how many links one path may have, as for the kernel.
const maxLinks = 40

// located is the result of a locate.
type located struct {
	spot
	err error
}

// locator says where paths of the host lead, and who can change that.
type locator struct {
	host *rootfs.Root
	// directories are those that the plugin sees by mounts of its own. writable are the trees that containers write to, as patterns.
	directories, writable []string
	// known says who but root can change what a directory of the host holds, "" for nobody. trees are those that containers write to.
	known map[string]string
	trees map[string]file
	// located has where paths of the driver lead.
	located   map[string]located
	rootOwner uint32
}

func newLocator(host *rootfs.Root, f *Finder) *locator {
	return &locator{host: host, directories: f.Directories, writable: f.ContainersWrite()}
}

// locate follows a path as far as root alone can change what it leads to, links too. The files of a driver are located once.
func (l *locator) locate(name string) (spot, error) {
	if known, ok := l.located[name]; ok {
		return known.spot, known.err
	}
	at, left, links := "/", strings.Split(name, "/"), 0
	for len(left) > 0 {
		next := left[0]
		if next == "" || next == "." {
			left = left[1:]
			continue
		}
		why, err := l.changeable(at)
		if err != nil {
			return spot{}, err
		}
		if why != "" {
			return spot{dir: at, rest: path.Join(left...), why: why}, nil
		}
		left = left[1:]
		if next == ".." {
			at = path.Dir(at)
			continue
		}
		full := path.Join(at, next)
		target, err := l.readLink(full)
		switch {
		case err != nil:
			return spot{}, err
		case target == "":
			at = full
			continue
		}
		if links++; links > maxLinks {
			return spot{}, &os.PathError{Op: "follow", Path: full, Err: unix.ELOOP}
		}
		if path.IsAbs(target) {
			at = "/"
		}
		left = append(strings.Split(target, "/"), left...)
	}
	return spot{dir: at, rest: "."}, nil
}

// give mounts a path that a preset of the administrator names. If others than root can change what it leads to, or outside of the node's
// software may do so in a way that the plugin does not know, the claim gets a copy.
func (l *lookup) give(m container.Mount) error {
	s, err := l.paths.locate(m.HostPath)
	if err != nil {
		return err
	}
	m.HostPath = s.path()
	known := preset.IsSoftware(m.HostPath) || m.HostToContainer || !m.ReadOnly || !l.files.Copies
	switch {
	case s.why == "" && known:
		l.add(m)
		return nil
	case s.why == "":
	case m.HostToContainer:
		return fmt.Errorf("%s: %s, so it is mounted as a copy, which sees no later mounts: leave out propagation", m.HostPath, s.why)
	case !l.files.Copies:
		return fmt.Errorf("%s: %s, and could lead a restarted container elsewhere: let root alone write there, or let the chart have "+
			"presets.allowedHostPaths, presets.scratch or kernelCaches.enabled, with which the plugin may mount a copy", m.HostPath, s.why)
	}
	return l.mountCopy("", s.copy(), m)
}

// readLink returns what a link leads to, and "" for anything else. No link leads to the directory that it is in.
func (l *locator) readLink(name string) (string, error) {
	if _, known := l.known[name]; known {
		return "", nil // a directory
	}
	target, err := linkTarget(l.host, name)
	if errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	return target, err
}

// inRoot returns a path relative to the host's root.
func inRoot(name string) string { return path.Join(".", name) }

// changeable says who but root can change what a directory holds, or "". No link leads to the directory.
func (l *locator) changeable(dir string) (why string, err error) {
	if why, known := l.known[dir]; known {
		return why, nil
	}
	stat, err := l.statx(dir)
	if err != nil {
		return "", err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return "", &os.PathError{Op: "look into", Path: dir, Err: unix.ENOTDIR}
	}
	if err := l.findWritable(); err != nil {
		return "", err
	}
	l.known[dir] = l.writers(dir, &stat)
	return l.known[dir], nil
}

// file identifies a file of the host. The zero value is none.
type file struct{ device, inode uint64 }

func fileOf(stat *unix.Statx_t) file {
	return file{unix.Mkdev(stat.Dev_major, stat.Dev_minor), stat.Ino}
}

func (l *locator) statx(name string) (stat unix.Statx_t, err error) {
	const want = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID | unix.STATX_INO
	err = unix.Statx(int(l.host.Dir().Fd()), inRoot(name), unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, want, &stat)
	if err != nil {
		err = &os.PathError{Op: "look at", Path: name, Err: err}
	}
	return stat, err
}

// findWritable finds the trees that containers write to, and who owns the host's root. What a preset gives from / is left out: whoever has
// that has the node. It looks once.
func (l *locator) findWritable() error {
	if l.known != nil {
		return nil
	}
	root, err := l.statx("/")
	if err != nil {
		return err
	}
	l.known, l.rootOwner, l.trees = map[string]string{}, root.Uid, map[string]file{}
	for _, tree := range l.writable {
		if tree != "/" {
			stat, err := l.host.Stat(tree)
			if err != nil {
				stat = unix.Stat_t{}
			}
			l.trees[tree] = file{device: stat.Dev, inode: stat.Ino}
		}
	}
	return nil
}

// ContainersWrite lists trees of the host that containers may write to by the configuration, as patterns.
func (f *Finder) ContainersWrite() []string {
	trees := slices.Clone(f.Writable)
	for _, allowed := range f.Allowed {
		if allowed.Writable {
			trees = append(trees, allowed.Path)
		}
	}
	return trees
}

// treeOf returns the tree that a directory is the top of, and that containers may write to. It may have another path.
func (l *locator) treeOf(dir string, id file) (string, bool) {
	for _, tree := range slices.Sorted(maps.Keys(l.trees)) {
		other := l.trees[tree]
		matches, err := path.Match(tree, dir)
		if other.inode != 0 && other == id || tree == dir || err == nil && matches {
			return tree, true
		}
	}
	return dir, preset.HoldsContainers(dir)
}

// isBelowWritable judges a path by its text.
func (l *locator) isBelowWritable(name string) bool {
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		if _, writable := l.treeOf(dir, file{}); writable {
			return true
		}
	}
	return false
}

// writers says who but root can change what a directory holds, or "".
func (l *locator) writers(dir string, stat *unix.Statx_t) string {
	const byOthers, byGroup = 0o002, 0o020
	tree, writable := l.treeOf(dir, fileOf(stat))
	switch {
	case writable:
		return "containers may write below " + tree
	case l.isAlias(dir, stat):
		return dir + " is a second mount of a file system that containers may write to"
	case stat.Mode&byOthers != 0:
		return "every user may write to " + dir
	case preset.IsSoftware(dir):
		return "" // whoever else writes there is a service of the node
	case stat.Uid != 0 && stat.Uid != l.rootOwner:
		return fmt.Sprintf("user %d owns %s", stat.Uid, dir)
	case stat.Mode&byGroup != 0 && stat.Gid != 0:
		return fmt.Sprintf("group %d may write to %s", stat.Gid, dir)
	}
	return ""
}

// isAlias reports whether a directory is where a file system is mounted once more that containers write to elsewhere. What is mounted may
// be a part that they write to. The plugin's container has each of its directories by such a mount.
func (l *locator) isAlias(dir string, stat *unix.Statx_t) bool {
	if stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 || dir == "/" || slices.Contains(l.directories, dir) {
		return false
	}
	for tree, top := range l.trees {
		if top.inode != 0 && top.device == fileOf(stat).device && !mountpath.Within(tree, dir) {
			return true
		}
	}
	return false
}
