// SPDX-License-Identifier: Apache-2.0

package cachemount

import (
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
)

// layers returns a claim's view of a cache. Files that name the place where their producer had them are written anew for the place where
// they are now; what that takes is not the claim's own.
func (m *Mounter) layers(s *Stored, u *Use, lower string, dir *kernelcache.Mount) hostmount.Overlay {
	out := hostmount.Overlay{Lower: lower, Bytes: u.Bytes, ReadOnly: u.Access == ReadOnly, Context: m.Context}
	if dir.Relocation == nil {
		return out
	}
	own := ownBytes(dir.Relocation)
	out.Files = ownEntries(dir.Relocation)
	if out.Bytes += own; out.ReadOnly {
		out.Bytes = own
	}
	out.Fill = func(over *os.Root) error {
		return s.read(func(fsys fs.FS) error {
			for _, name := range dir.Relocation.Files {
				if err := rewrite(fsys, over, dir, name); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return out
}

// ownBytes is what files that are written anew take: an end of a file and a directory for each.
func ownBytes(r *kernelcache.Relocation) int64 {
	return r.Bytes + int64(len(r.Files))*2*hostmount.Page
}

// ownEntries counts the files that are written anew and the directories that they are in.
func ownEntries(r *kernelcache.Relocation) int64 {
	dirs := map[string]bool{}
	for _, name := range r.Files {
		for dir := path.Dir(name); dir != "." && !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	return int64(len(r.Files) + len(dirs))
}

// rewrite puts one file over that of the cache, as anybody may write it.
func rewrite(fsys fs.FS, over *os.Root, m *kernelcache.Mount, name string) error {
	data, err := fs.ReadFile(fsys, path.Join(m.Source, name))
	if err != nil {
		return fmt.Errorf("read %s of the cache: %w", name, err)
	}
	if data, err = m.Rewrite(name, data); err != nil {
		return err
	}
	if err := parents(over, path.Dir(name)); err != nil {
		return err
	}
	if err := over.WriteFile(name, data, 0o666); err != nil {
		return fmt.Errorf("write %s anew: %w", name, err)
	}
	return over.Chmod(name, 0o666) // whatever the umask
}

// parents makes directories that are merged with those of the cache.
func parents(over *os.Root, dir string) error {
	if dir == "." {
		return nil
	}
	if _, err := over.Lstat(dir); err == nil {
		return nil
	}
	if err := parents(over, path.Dir(dir)); err != nil {
		return err
	}
	if err := over.Mkdir(dir, 0o777); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	return over.Chmod(dir, 0o777)
}
