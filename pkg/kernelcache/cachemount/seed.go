// SPDX-License-Identifier: Apache-2.0

package cachemount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/api/mountpath"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
)

const (
	// maxWritten is the largest file that a seed has a copy of because programs write to it where it is.
	maxWritten = 1 << 20
	// maxSeed is the most memory that what is made of a cache for one of its mounts may take. It is charged to the plugin, whose limit
	// all claims of the node share.
	maxSeed = 64 << 20
	// nodeBytes is what the kernel needs for a link or a directory in memory, about.
	nodeBytes = 1 << 10
)

// filesName is that of the mount of what the links of a seed lead to.
func (u *Use) filesName(i int) string { return u.name(i) + "-files" }

// filesPlace is where containers have it. A link in memory that leads further than hostmount.ShortLink takes a page: the place is short.
func (u *Use) filesPlace(i int) string {
	return path.Join(mountpath.FettleDir, u.Key+"-"+strconv.Itoa(i))
}

// seed is what a claim's memory has before the claim sees it: the directories of a cache, and for each file a link to it or one of its own.
type seed struct {
	mount *kernelcache.Mount
	place string
	nodes []seedNode
	// bytes are what files and long links take, files how many nodes there are.
	bytes, files int64
}

// seedNode is one of them, relative to the mount's source.
type seedNode struct {
	name string
	form seedForm
}

type seedForm int

const (
	seedDir seedForm = iota
	// seedLink leads to the file, seedCopy has what it has, and seedRewritten what it has to have at another place.
	seedLink
	seedCopy
	seedRewritten
)

// planSeed says what memory has to have for a mount of a cache, with links that lead below place.
func planSeed(fsys fs.FS, found *kernelcache.Cache, m *kernelcache.Mount, place string) (*seed, error) {
	s := &seed{mount: m, place: place}
	rewritten := map[string]bool{}
	if m.Relocation != nil {
		for _, name := range m.Relocation.Files {
			rewritten[name] = true
		}
		s.bytes = ownBytes(m.Relocation)
	}
	err := fs.WalkDir(fsys, m.Source, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == m.Source {
			return err
		}
		name = below(name, m.Source)
		node := seedNode{name: name, form: seedLink}
		switch {
		case entry.IsDir():
			node.form = seedDir
		case rewritten[name]:
			node.form = seedRewritten
		case found.WritesInPlace(name):
			info, err := entry.Info()
			if err != nil {
				return err
			}
			if info.Size() <= maxWritten {
				node.form = seedCopy
				s.bytes += (info.Size() + hostmount.Page - 1) / hostmount.Page * hostmount.Page
			}
		}
		if node.form == seedLink && len(s.target(name)) > hostmount.ShortLink {
			s.bytes += hostmount.Page
		}
		s.nodes = append(s.nodes, node)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look through the cache: %w", err)
	}
	s.files = int64(len(s.nodes))
	return s, nil
}

// below is a name relative to a directory, "." for the whole.
func below(name, dir string) string {
	if dir == "." {
		return name
	}
	return strings.TrimPrefix(name, dir+"/")
}

func (s *seed) target(name string) string { return s.place + "/" + name }

// check says why it is too much for the plugin's memory.
func (s *seed) check() error {
	needed := s.bytes + s.files*nodeBytes
	if needed <= maxSeed {
		return nil
	}
	return fmt.Errorf("%w: access Seed: directories of its own with links to %d files would take %d MiB of the kubelet plugin's memory, want "+
		"at most %d MiB: use ReadOnly, or Overlay in a pod without hostUsers: false", ErrRefused, s.files, needed>>20, maxSeed>>20)
}

// write makes it, for any user to write to.
func (s *seed) write(fsys fs.FS, over *os.Root) (err error) {
	at := parent{root: over, dir: "."}
	defer func() { err = errors.Join(err, at.close()) }()
	for _, node := range s.nodes {
		if err := s.writeOne(fsys, over, &at, node); err != nil {
			return fmt.Errorf("make %s: %w", node.name, err)
		}
	}
	return nil
}

func (s *seed) writeOne(fsys fs.FS, over *os.Root, at *parent, node seedNode) error {
	if node.form == seedRewritten {
		return rewrite(fsys, over, s.mount, node.name)
	}
	dir, err := at.in(over, path.Dir(node.name))
	if err != nil {
		return err
	}
	base := path.Base(node.name)
	switch node.form {
	case seedDir:
		err = dir.Mkdir(base, 0o777)
	case seedCopy:
		var data []byte
		if data, err = fs.ReadFile(fsys, path.Join(s.mount.Source, node.name)); err == nil {
			err = dir.WriteFile(base, data, 0o666)
		}
	case seedLink, seedRewritten:
		return dir.Symlink(s.target(node.name), base)
	}
	if err != nil {
		return err
	}
	mode := map[seedForm]fs.FileMode{seedDir: 0o777, seedCopy: 0o666}[node.form]
	return dir.Chmod(base, mode) // whatever the umask
}

// parent is the directory in which nodes are being made: that of one is nearly always that of the one before.
type parent struct {
	root *os.Root
	dir  string
	own  bool
}

func (p *parent) in(over *os.Root, dir string) (*os.Root, error) {
	if p.dir == dir {
		return p.root, nil
	}
	root, err := over.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	err = p.close()
	p.root, p.dir, p.own = root, dir, true
	return root, err
}

func (p *parent) close() error {
	if !p.own {
		return nil
	}
	p.own = false
	return p.root.Close()
}

// fillSeeds makes the claim's directories of links, those that are not there. What the links lead to is mounted with the others.
func (m *Mounter) fillSeeds(store *artifact.Store, tree *artifact.Tree, found *kernelcache.Cache, u *Use, plan *kernelcache.Plan) error {
	for i := range plan.Mounts {
		if there, err := m.Mounts.Has(u.name(i)); there || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		err := store.ReadTree(tree, func(fsys fs.FS) error {
			s, err := planSeed(fsys, found, &plan.Mounts[i], u.filesPlace(i))
			if err != nil {
				return err
			}
			return m.Mounts.MountMemory(u.name(i), hostmount.Memory{
				Bytes: s.bytes, Files: s.files, Free: u.Bytes, Context: m.Context,
				Fill: func(over *os.Root) error { return s.write(fsys, over) },
			})
		})
		if err != nil {
			return fmt.Errorf("%s: make what is to be at %s: %w", u, u.Mounts[i].Target, err)
		}
	}
	return nil
}

// CheckSeed says why a cache has too many files for a seed.
func (m *Mounter) CheckSeed(store *artifact.Store, tree *artifact.Tree, found *kernelcache.Cache, u *Use, plan *kernelcache.Plan) error {
	return store.ReadTree(tree, func(fsys fs.FS) error {
		for i := range plan.Mounts {
			s, err := planSeed(fsys, found, &plan.Mounts[i], u.filesPlace(i))
			if err != nil {
				return err
			}
			if err := s.check(); err != nil {
				return err
			}
		}
		return nil
	})
}
