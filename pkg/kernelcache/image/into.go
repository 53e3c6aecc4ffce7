// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/filelock"
)

// The files that Into keeps in the directory.
const (
	// Marker has the digest of the cache in its first line. It is there only while the cache is complete.
	Marker = ".fettle-digest"
	// ours lists the names that an extraction put into the directory or was about to, so that the next extraction may remove them.
	ours = ".fettle-entries"
	// ownPrefix begins these names and that of staging. Caches may not have it.
	ownPrefix = ".fettle-"
)

// own says whether a name is one of this package's, or of a write of such a file that was cut off.
func own(name string) bool {
	return strings.HasPrefix(strings.TrimPrefix(name, disk.TemporaryPrefix), ownPrefix)
}

// Into fills an existing directory, such as the root of a volume, with the cache. digest is written to the marker at the end: the digest
// of the image, or of the index that it is in. A directory with this digest is left as it is. In a directory with another digest the cache
// is replaced, and a program that reads it meanwhile finds entries missing. Files that no extraction put there stay.
//
// Into may be interrupted at any point and called again: the marker is removed before anything else changes, and written when all is
// durable.
func (e *Extraction) Into(ctx context.Context, dir string, digest artifact.Digest) (*Extracted, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	unlock, err := lock(ctx, root)
	if err != nil {
		return nil, err
	}
	defer unlock()
	mark := markOf(digest, e.MountPath)
	if has, err := readOwn(root, Marker); err != nil || string(has) == mark {
		return &Extracted{Present: true}, err
	}
	done, err := e.refill(ctx, root, mark)
	if errors.Is(err, fs.ErrPermission) {
		err = notWritable(root, err)
	}
	return done, err
}

// notWritable says whose the directory is that this process may not write to, and the next step.
func notWritable(root *os.Root, err error) error {
	info, fault := root.Stat(".")
	if fault != nil {
		return errors.Join(err, fault)
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return err
	}
	return fmt.Errorf("%w: this is user %d, and %s belongs to %d:%d with mode %04o: let this user write there; if it is a volume, delete its "+
		"PersistentVolumeClaim, and have no pod change the owner", err, os.Geteuid(), root.Name(), owner.Uid, owner.Gid, info.Mode().Perm())
}

// refill does the work of Into in a directory without the wanted cache, which is locked.
func (e *Extraction) refill(ctx context.Context, root *os.Root, mark string) (*Extracted, error) {
	if err := sweep(root); err != nil {
		return nil, err
	}
	work := staging + rand.Text()
	done, staged, err := e.stage(ctx, root, work)
	defer func() { _ = root.RemoveAll(work) }()
	if err != nil {
		return nil, err
	}
	defer staged.Close()
	if err := syncFS(root); err != nil {
		return nil, err
	}
	if err := e.replace(root, work, path.Join(work, done.Cache.Dir)); err != nil {
		return nil, err
	}
	if err := syncFS(root); err != nil {
		return nil, err
	}
	return done, write(root, Marker, []byte(mark))
}

// markOf returns the content of the marker: the digest and, on a second line, the path for which files were rewritten.
func markOf(digest artifact.Digest, mountPath string) string {
	if mountPath != "" {
		mountPath += "\n"
	}
	return digest.String() + "\n" + mountPath
}

// Present reports whether a directory has the complete cache of a digest for a mount path. Empty: for the producer's path.
func Present(dir string, digest artifact.Digest, mountPath string) (bool, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false, err
	}
	defer root.Close()
	has, err := readOwn(root, Marker)
	return err == nil && string(has) == markOf(digest, mountPath), err
}

// lock allows one extraction at a time in a directory, except on file systems without locks.
func lock(ctx context.Context, root *os.Root) (func(), error) {
	d, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	err = filelock.WaitFlock(ctx, d, filelock.Exclusive)
	without := func(e syscall.Errno) bool { return errors.Is(err, e) }
	if err != nil && !slices.ContainsFunc([]syscall.Errno{unix.ENOTSUP, unix.ENOLCK, unix.ENOSYS, unix.EBADF}, without) {
		return nil, fmt.Errorf("wait for another extraction into %s: %w", root.Name(), err)
	}
	return func() { _ = d.Close() }, nil
}

// sweep removes what interrupted extractions left.
func sweep(root *os.Root) error {
	cutOff := []string{staging, disk.TemporaryPrefix + ownPrefix, Marker + ".", ours + "."} // the last two are an older version's
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if slices.ContainsFunc(cutOff, func(p string) bool { return strings.HasPrefix(e.Name(), p) }) {
			if err := root.RemoveAll(e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// replace replaces the entries that an earlier extraction made by those in from. The old entries are moved to work and deleted later, so
// that the directory is without entries for as short as possible.
func (e *Extraction) replace(root *os.Root, work, from string) error {
	rename := e.rename
	if rename == nil {
		rename = (*os.Root).Rename
	}
	earlier, err := listed(root)
	if err != nil {
		return err
	}
	names, err := incoming(root, from, earlier)
	if err != nil {
		return err
	}
	if err := remove(root, Marker); err != nil {
		return err
	}
	all := maps.Clone(names)
	for _, name := range earlier {
		all[name] = true
	}
	if err := list(root, all); err != nil {
		return err
	}
	if err := root.Mkdir(path.Join(work, "old"), 0o700); err != nil {
		return err
	}
	for _, name := range earlier {
		if err := rename(root, name, path.Join(work, "old", name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := rename(root, path.Join(from, name), name); err != nil {
			return err
		}
	}
	return list(root, names)
}

// incoming returns the names in from. A name must not be in the directory already, unless an earlier extraction put it there.
func incoming(root *os.Root, from string, earlier []string) (map[string]bool, error) {
	entries, err := fs.ReadDir(root.FS(), from)
	if err != nil {
		return nil, err
	}
	names, made := map[string]bool{}, map[string]bool{}
	for _, name := range earlier {
		made[name] = true
	}
	for _, e := range entries {
		name := e.Name()
		if own(name) {
			return nil, fmt.Errorf("the cache has an entry %q, which is a name of this program's own", name)
		}
		if _, err := root.Lstat(name); err == nil && !made[name] {
			return nil, fmt.Errorf("%s has %q, which no extraction put there: remove it, or extract into another directory", root.Name(), name)
		}
		names[name] = true
	}
	return names, nil
}

// listed returns the names that earlier extractions put into the directory.
func listed(root *os.Root) ([]string, error) {
	data, err := readOwn(root, ours)
	if err != nil || data == nil {
		return nil, err
	}
	var names []string
	if err := json.Unmarshal(data, &names); err != nil {
		return nil, fmt.Errorf("%s: %w: empty the directory", path.Join(root.Name(), ours), err)
	}
	for _, name := range names {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || own(name) {
			return nil, fmt.Errorf("%s: %q is no name of an entry: empty the directory", path.Join(root.Name(), ours), name)
		}
	}
	return names, nil
}

func list(root *os.Root, names map[string]bool) error {
	data, err := json.Marshal(slices.Sorted(maps.Keys(names)))
	if err != nil {
		return err
	}
	return write(root, ours, append(data, '\n'))
}

// write replaces a small file durably.
func write(root *os.Root, name string, data []byte) error {
	return disk.ReplaceDurably(disk.Root{Root: root}, name, data, 0o644)
}

func remove(root *os.Root, name string) error {
	if err := disk.RemoveIfThere(root, name); err != nil {
		return err
	}
	return disk.Root{Root: root}.SyncDir(".")
}
