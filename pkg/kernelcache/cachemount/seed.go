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
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
)

const (
	// maxWritten is the largest file that a seed has a copy of because programs write to it where it is.
	maxWritten = 1 << 20
	// maxFilled is the most memory that what the plugin makes of a cache for one claim may take. The kernel counts it for the plugin, whose
	// limit all claims of the node share.
	maxFilled = 64 << 20
)

// filesName is that of the mount of what the links of a seed lead to.
func (u *Use) filesName(i int) string { return u.name(i) + "-files" }

// filesPlace is where containers have it. A link in memory that leads further than hostmount.ShortLink takes a page: the place is short.
func (u *Use) filesPlace(i int) string {
	return path.Join(mountpath.FettleDir, u.Key+"-"+strconv.Itoa(i))
}

// seed makes what a claim's memory has before the claim sees it: the directories of a cache, and for each file a link to it or one of its
// own. It looks at one entry of the cache after the other and keeps none, however many there are.
type seed struct {
	found *kernelcache.Cache
	mount *kernelcache.Mount
	place string
	// rewritten are the files that have to be written anew for their place.
	rewritten map[string]bool
}

// seedNode is a directory, a link or a file of a seed, with a name relative to the mount's source. bytes is what its content takes.
type seedNode struct {
	name  string
	form  seedForm
	bytes int64
}

type seedForm int

const (
	seedDir seedForm = iota
	// seedLink leads to the file, seedCopy has what it has, and seedRewritten what it has to have at another place.
	seedLink
	seedCopy
	seedRewritten
)

// newSeed returns the seed for a mount of a cache, with links that lead below place.
func newSeed(found *kernelcache.Cache, m *kernelcache.Mount, place string) *seed {
	s := &seed{found: found, mount: m, place: place, rewritten: map[string]bool{}}
	if m.Relocation != nil {
		for _, name := range m.Relocation.Files {
			s.rewritten[name] = true
		}
	}
	return s
}

// each calls do for each node, directories before what is in them.
func (s *seed) each(fsys fs.FS, do func(seedNode) error) error {
	return fs.WalkDir(fsys, s.mount.Source, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == s.mount.Source {
			return err
		}
		node, err := s.node(below(name, s.mount.Source), entry)
		if err != nil {
			return err
		}
		return do(node)
	})
}

func (s *seed) node(name string, entry fs.DirEntry) (seedNode, error) {
	node := seedNode{name: name, form: seedLink}
	switch {
	case entry.IsDir():
		node.form = seedDir
	case s.rewritten[name]:
		node.form = seedRewritten
	case s.found.WritesInPlace(name):
		info, err := entry.Info()
		if err != nil {
			return node, err
		}
		if info.Size() <= maxWritten {
			node.form = seedCopy
			node.bytes = (info.Size() + hostmount.Page - 1) / hostmount.Page * hostmount.Page
		}
	}
	if node.form == seedLink && len(s.target(name)) > hostmount.ShortLink {
		node.bytes = hostmount.Page
	}
	return node, nil
}

// measure adds up the nodes. It ends with errTooMany at the first that exceeds the limit.
func (s *seed) measure(fsys fs.FS, limit int64) (Fill, error) {
	var out Fill
	if s.mount.Relocation != nil {
		out.Bytes = ownBytes(s.mount.Relocation)
	}
	err := s.each(fsys, func(n seedNode) error {
		out.Bytes += n.bytes
		if out.Entries++; limit > 0 && out.Entries > limit {
			return errTooMany
		}
		return nil
	})
	if err != nil && !errors.Is(err, errTooMany) {
		err = fmt.Errorf("look through the cache: %w", err)
	}
	return out, err
}

// errTooMany ends the look through a cache with more entries than any claim may have.
var errTooMany = errors.New("more entries than a claim may have")

// below is a name relative to a directory, "." for the whole.
func below(name, dir string) string {
	if dir == "." {
		return name
	}
	return strings.TrimPrefix(name, dir+"/")
}

func (s *seed) target(name string) string { return s.place + "/" + name }

// write makes it, for any user to write to.
func (s *seed) write(fsys fs.FS, over *os.Root) (err error) {
	at := parent{root: over, dir: "."}
	defer func() { err = errors.Join(err, at.close()) }()
	return s.each(fsys, func(node seedNode) error {
		if err := s.writeOne(fsys, over, &at, node); err != nil {
			return fmt.Errorf("make %s: %w", node.name, err)
		}
		return nil
	})
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
func (m *Mounter) fillSeeds(stored *Stored, u *Use, plan *kernelcache.Plan) error {
	for i := range plan.Mounts {
		if there, err := m.Mounts.Has(u.name(i)); there || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		err := stored.read(func(fsys fs.FS) error {
			s := newSeed(stored.Cache, &plan.Mounts[i], u.filesPlace(i))
			fill, err := s.measure(fsys, 0)
			if err != nil {
				return err
			}
			return m.Mounts.MountMemory(u.name(i), hostmount.Memory{
				Bytes: fill.Bytes, Files: fill.Entries, Free: u.Bytes, Context: m.Context,
				Fill: func(over *os.Root) error { return s.write(fsys, over) },
			})
		})
		if err != nil {
			return fmt.Errorf("%s: make what is to be at %s: %w", u, u.Mounts[i].Target, err)
		}
	}
	return nil
}
