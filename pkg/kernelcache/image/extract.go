// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
)

// Extraction describes what is extracted, and how.
type Extraction struct {
	Source Source
	Image  *artifact.Image
	Limits unpack.Limits
	// MountPath is the path at which programs will find the cache. Files that contain another path are rewritten. Empty: no file is.
	MountPath string

	// rename replaces os.Root.Rename in tests. It may be nil.
	rename func(root *os.Root, from, to string) error
}

// Extracted is the result of an extraction.
type Extracted struct {
	Cache kernelcache.Cache
	// Rewritten is the number of files that were rewritten.
	Rewritten int
	// Present is true if the cache was there already, and nothing was read.
	Present bool
}

// staging is the prefix of directories in which caches are made.
const staging = ".fettle-tmp-"

// Extract brings the cache to dir, which must be empty or absent. dir gets the content of io.TYPE.cache, and appears after all of it was
// read, verified and synced. Every user that can reach dir can read it.
func (e *Extraction) Extract(ctx context.Context, dir string) (*Extracted, error) {
	dir = filepath.Clean(dir)
	if err := vacant(dir); err != nil {
		return nil, err
	}
	parent, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	work := staging + rand.Text()
	done, root, err := e.stage(ctx, parent, work)
	defer func() { _ = parent.RemoveAll(work) }()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := syncFS(parent); err != nil {
		return nil, err
	}
	if err := vacant(dir); err != nil {
		return nil, err
	}
	base := filepath.Base(dir)
	if err := parent.Remove(base); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := parent.Rename(path.Join(work, done.Cache.Dir), base); err != nil {
		return nil, err
	}
	return done, disk.Root{Root: parent}.SyncDir(".")
}

func vacant(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		return fmt.Errorf("%s holds %q: want an empty directory or none; --into fills one that holds other things", dir, entries[0].Name())
	}
	return nil
}

// stage makes the whole tree in a new directory, which the caller removes after an error.
func (e *Extraction) stage(ctx context.Context, parent *os.Root, work string) (*Extracted, *os.Root, error) {
	if err := parent.Mkdir(work, 0o700); errors.Is(err, fs.ErrPermission) {
		return nil, nil, fmt.Errorf("%w: let user %d or group %d write to %s", err, os.Getuid(), os.Getgid(), parent.Name())
	} else if err != nil {
		return nil, nil, err
	}
	root, err := parent.OpenRoot(work)
	if err != nil {
		return nil, nil, err
	}
	done, err := e.fill(ctx, root)
	if err != nil {
		return nil, nil, errors.Join(err, root.Close())
	}
	return done, root, nil
}

func (e *Extraction) fill(ctx context.Context, root *os.Root) (*Extracted, error) {
	if err := extract(ctx, e.Source, e.Image, &unpack.Directory{Files: readable{root}}, e.Limits); err != nil {
		return nil, err
	}
	cache, err := kernelcache.Inspect(root.FS(), kernelcache.Options{Labels: e.Image.Labels})
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", e.Image.Digest, err)
	}
	if cache.Dir == "." {
		return nil, fmt.Errorf("image %s: %w: there is no cache in it: want one of %s",
			e.Image.Digest, kernelcache.ErrInvalid, strings.Join(kernelcache.ImagePaths(), ", "))
	}
	done := &Extracted{Cache: cache}
	if e.MountPath != "" {
		if done.Rewritten, err = relocate(root, &cache, e.MountPath); err != nil {
			return nil, fmt.Errorf("image %s: %w", e.Image.Digest, err)
		}
	}
	return done, nil
}

// relocate rewrites the files of a cache that contain another path than the mount path, and those of its parts for which a label has a path
// of their own, as a node does for a claim.
func relocate(root *os.Root, cache *kernelcache.Cache, to string) (int, error) {
	plan, err := cache.Plan(to)
	if err != nil {
		return 0, err
	}
	rewritten := 0
	for i := range plan.Mounts {
		if err := rewrite(root, &plan.Mounts[i], &rewritten); err != nil {
			return 0, err
		}
	}
	return rewritten, nil
}

// rewrite rewrites the files of one directory, and counts them.
func rewrite(root *os.Root, m *kernelcache.Mount, rewritten *int) error {
	if m.Relocation == nil {
		return nil
	}
	for _, name := range m.Relocation.Files {
		at := path.Join(m.Source, name)
		data, err := root.ReadFile(at)
		if err != nil {
			return err
		}
		if data, err = m.Rewrite(name, data); err != nil {
			return err
		}
		f, err := root.OpenFile(at, os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	*rewritten += len(m.Relocation.Files)
	return nil
}

// readable makes files that every user can read and only their owner can write.
type readable struct{ root *os.Root }

func (r readable) OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error) {
	f, err := r.root.OpenFile(name, flag, perm&^0o022)
	if err != nil {
		return nil, err
	}
	return readableFile{f}, nil
}

func (r readable) Mkdir(name string, perm fs.FileMode) error { return r.root.Mkdir(name, perm&^0o022) }

func (r readable) Remove(name string) error { return r.root.Remove(name) }

type readableFile struct{ *os.File }

// Chmod sets the mode without group and other write permission. The umask does not count.
func (f readableFile) Chmod(mode fs.FileMode) error { return f.File.Chmod(mode &^ 0o022) }

// Datasync implements disk.File.
func (f readableFile) Datasync() error { return f.Sync() }

// syncFS syncs the whole file system, which is far cheaper than a sync of each file.
func syncFS(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", root.Name(), err)
	}
	return nil
}

// maxOwn bounds a file of this package, which may list as many names as a cache may have.
const maxOwn = 64 << 20

// readOwn reads a file of this package. It returns nil if there is none.
func readOwn(root *os.Root, name string) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxOwn))
	return data, errors.Join(err, f.Close())
}
