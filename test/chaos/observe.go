// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// edits are what a CDI device does to a container, as far as a test of devices and directories is concerned.
type edits struct {
	nodes  []node
	mounts []mount
}

type node struct {
	// path is on the host, kind is the letter of mknod.
	path, kind   string
	major, minor int64
	permissions  string
}

type mount struct {
	hostPath, containerPath string
	readOnly                bool
}

// String is equal for equal edits.
func (e edits) String() string { return fmt.Sprintf("nodes %v mounts %v", e.nodes, e.mounts) }

// specFile is one file of the CDI directory.
type specFile struct {
	// digest is of the whole content.
	digest string
	// fault says why a runtime cannot use the file.
	fault string
	// devices are by qualified name.
	devices map[string]edits
}

// specDir is the CDI directory by file name.
type specDir map[string]specFile

// find returns what a runtime does for a qualified name. Two files that define one name make a runtime refuse both.
func (d specDir) find(id string) (edits, error) {
	var found []string
	var out edits
	for name, file := range d {
		if e, ok := file.devices[id]; ok {
			found, out = append(found, name), e
		}
	}
	switch len(found) {
	case 0:
		return edits{}, fmt.Errorf("CDI device %s is in none of %d specs", id, len(d))
	case 1:
		return out, nil
	}
	slices.Sort(found)
	return edits{}, fmt.Errorf("CDI device %s is in several specs, %s", id, strings.Join(found, " and "))
}

// specReader reads the CDI directory with the runtimes' own library. What did not change since the last time is not read again.
type specReader struct {
	dir  string
	seen map[string]seenSpec
}

type seenSpec struct {
	inode    uint64
	size     int64
	modified time.Time
	file     specFile
}

// read returns the directory's present content. A directory that is not there is empty.
func (r *specReader) read() (specDir, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out, seen := specDir{}, map[string]seenSpec{}
	for _, e := range entries {
		s, err := r.one(e)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since the listing
		}
		if err != nil {
			return nil, err
		}
		seen[e.Name()], out[e.Name()] = s, s.file
	}
	r.seen = seen
	return out, nil
}

func (r *specReader) one(e fs.DirEntry) (seenSpec, error) {
	info, err := e.Info()
	if err != nil {
		return seenSpec{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return seenSpec{}, errors.New("no inodes on this platform")
	}
	now := seenSpec{inode: stat.Ino, size: info.Size(), modified: info.ModTime()}
	if old, ok := r.seen[e.Name()]; ok && old.inode == now.inode && old.size == now.size && old.modified.Equal(now.modified) {
		return old, nil
	}
	path := filepath.Join(r.dir, e.Name())
	data, err := os.ReadFile(path)
	if err != nil {
		return seenSpec{}, err
	}
	sum := sha256.Sum256(data)
	now.file = parseSpec(path)
	now.file.digest = hex.EncodeToString(sum[:])
	return now, nil
}

// parseSpec takes a file as a runtime does, which looks at no other names than these.
func parseSpec(path string) specFile {
	if ext := filepath.Ext(path); ext != ".json" && ext != ".yaml" {
		return specFile{fault: "is no spec"}
	}
	spec, err := cdiapi.ReadSpec(path, 0)
	switch {
	case err != nil:
		return specFile{fault: err.Error()}
	case spec == nil:
		return specFile{fault: "is not there"}
	}
	out := specFile{devices: map[string]edits{}}
	vendor, class := parser.ParseQualifier(spec.Kind)
	for _, d := range spec.Devices {
		e := edits{}
		// What stands beside the devices is for each of them.
		e.add(spec.ContainerEdits)
		e.add(d.ContainerEdits)
		out.devices[parser.QualifiedName(vendor, class, d.Name)] = e
	}
	return out
}

func (e *edits) add(from cdispec.ContainerEdits) {
	for _, n := range from.DeviceNodes {
		path := n.HostPath
		if path == "" {
			path = n.Path
		}
		e.nodes = append(e.nodes, node{path: path, kind: n.Type, major: n.Major, minor: n.Minor, permissions: n.Permissions})
	}
	for _, m := range from.Mounts {
		e.mounts = append(e.mounts, mount{
			hostPath: m.HostPath, containerPath: m.ContainerPath, readOnly: slices.Contains(m.Options, "ro"),
		})
	}
}

// hostNode is a device node of the host's tree.
type hostNode struct {
	kind         string
	major, minor int64
}

// directory is a directory that can be lent.
type directory struct {
	mode     fs.FileMode
	uid, gid int
	// names are of what is directly in it, sorted.
	names []string
}

// hostTree is what the checker looks at of the host.
type hostTree struct {
	nodes map[string]hostNode
	dirs  map[string]directory
}

func readHost(root string) (hostTree, error) {
	out := hostTree{nodes: map[string]hostNode{}, dirs: map[string]directory{}}
	entries, err := os.ReadDir(filepath.Join(root, "dev"))
	if err != nil {
		return out, err
	}
	for _, e := range entries {
		var stat unix.Stat_t
		path := filepath.Join("/dev", e.Name())
		if err := unix.Lstat(filepath.Join(root, path), &stat); err != nil {
			return out, err
		}
		kind := map[uint32]string{unix.S_IFCHR: "c", unix.S_IFBLK: "b"}[stat.Mode&unix.S_IFMT]
		out.nodes[path] = hostNode{kind: kind, major: int64(unix.Major(stat.Rdev)), minor: int64(unix.Minor(stat.Rdev))}
	}
	for i := range dirCount {
		path := filepath.Join(dirParent, dirName(i))
		if out.dirs[path], err = readDirectory(root, path); err != nil {
			return out, err
		}
	}
	return out, nil
}

func readDirectory(root, path string) (directory, error) {
	at := filepath.Join(root, path)
	info, err := os.Lstat(at)
	if err != nil {
		return directory{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return directory{}, errors.New("no owners on this platform")
	}
	out := directory{mode: info.Mode(), uid: int(stat.Uid), gid: int(stat.Gid)}
	entries, err := os.ReadDir(at)
	for _, e := range entries {
		out.names = append(out.names, e.Name())
	}
	return out, err
}

// readTree describes every file below root in a line, but for the boot id, which is another at each boot.
func readTree(root string) (map[string]string, error) {
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil || name == bootIDFile {
			return err
		}
		out[name], err = describe(path)
		return err
	})
	return out, err
}

func describe(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", errors.New("no owners on this platform")
	}
	line := fmt.Sprintf("%s %d:%d", info.Mode(), stat.Uid, stat.Gid)
	switch {
	case info.Mode()&fs.ModeDevice != 0:
		line += fmt.Sprintf(" %d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		return line + " -> " + target, err
	case info.Mode().IsRegular():
		data, err := os.ReadFile(path)
		return fmt.Sprintf("%s %x", line, sha256.Sum256(data)), err
	}
	return line, nil
}
