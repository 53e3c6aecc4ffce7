// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	kjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
)

// TreeForm is how a tree lies in the store.
type TreeForm string

// The forms.
const (
	// TreeDirectory is directories and files, which any kernel has.
	TreeDirectory TreeForm = "Directory"
	// TreeImage is an EROFS file system in two files: see unpack.Image. The kernel must be able to mount a file.
	TreeImage TreeForm = "Image"
)

// TreeLayer is a layer of an image: what the manifest says of it, and the digest that the config says its tar has.
type TreeLayer struct {
	Descriptor
	DiffID Digest
}

// TreeSpec is what Unpack is to make.
type TreeSpec struct {
	// Digest is the image's, by which the tree is found. The caller has compared the manifest with it, and the config with the manifest.
	Digest Digest
	// Layers are those that are put on each other, the lowest first.
	Layers []TreeLayer
	// Options bound what they may hold.
	Options unpack.Options
	// Room is how much of the disk is reserved while the tree is made, and the most that its files may have together.
	Room int64
	Form TreeForm
	// Spare: nobody needs it yet, so that nothing that is here has to make room for it.
	Spare bool
	// Labels and Verification are kept in the metadata for the caller, who may say there what the image is and who vouched for it.
	Labels       map[string]string
	Verification string
}

func (t *TreeSpec) check() error {
	if t.Digest.IsZero() || t.Room <= 0 || t.Room > maxSize || len(t.Layers) == 0 || len(t.Layers) > maxDescriptors ||
		t.Form != TreeDirectory && t.Form != TreeImage {
		return fmt.Errorf("the image is %w: digest %s, %d layers, %d bytes of room, form %s: "+
			"expected a digest, 1 to %d layers, some room, and %s or %s",
			ErrInvalid, quote(t.Digest.String()), len(t.Layers), t.Room, quote(string(t.Form)), maxDescriptors, TreeDirectory, TreeImage)
	}
	for i := range t.Layers {
		if err := t.Layers[i].Check(); err != nil {
			return err
		}
		if t.Layers[i].DiffID.IsZero() {
			return fmt.Errorf("layer %d is %w: it has no diffID: expected one in the image's config", i+1, ErrInvalid)
		}
	}
	return nil
}

func (t *TreeSpec) layers() []unpack.Layer {
	layers := make([]unpack.Layer, 0, len(t.Layers))
	for _, l := range t.Layers {
		layers = append(layers, unpack.Layer{MediaType: l.MediaType, Digest: l.Digest, DiffID: l.DiffID, Size: l.Size})
	}
	return layers
}

// TreeMetadata is what is kept beside a tree, as metadata.json.
type TreeMetadata struct {
	// Version is 2. A tree of another is unpacked anew.
	Version int      `json:"version"`
	Digest  Digest   `json:"digest"`
	DiffIDs []Digest `json:"diffIDs"`
	Form    TreeForm `json:"form"`
	// FormerHash holds the image's digest again and is not read. Earlier versions of this program kept a hash of the files there, and take
	// a tree without one for damaged: after a downgrade they would unpack every image anew.
	FormerHash Digest `json:"hash"`
	// Bytes is the sum of the files' sizes, and Size what the tree takes on the disk.
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
	Size    int64 `json:"size"`
	// Labels and Verification are the caller's.
	Labels       map[string]string `json:"labels,omitempty"`
	Verification string            `json:"verification,omitempty"`
	Created      time.Time         `json:"created"`
}

// Tree is a tree in the store. Its paths hold as long as it is pinned.
type Tree struct {
	TreeMetadata
	dir string
}

// Root is the directory with the files, and empty for an image.
func (t *Tree) Root() string {
	if t.Form == TreeDirectory {
		return t.dir + "/" + treeRoot
	}
	return ""
}

// Image is what is mounted and the file that goes with it as its device. Both are empty for a directory.
func (t *Tree) Image() (index, data string) {
	if t.Form == TreeImage {
		return t.dir + "/" + unpack.ImageIndex, t.dir + "/" + unpack.ImageData
	}
	return "", ""
}

const (
	treeRoot     = "root"
	treeMetadata = "metadata.json"
	treeVersion  = 2
	// onDiskBlock is what names and ends of files take at least.
	onDiskBlock = 4096
)

func treeName(d Digest) string { return treesDir + "/" + d.Hex() }

// OpenTree finds a tree that was unpacked, and notes that it is used. One that is not here is fs.ErrNotExist.
func (s *Store) OpenTree(d Digest) (*Tree, error) {
	t, err := s.LookTree(d)
	if err == nil {
		s.touchName(treeName(d))
	}
	return t, err
}

// LookTree is OpenTree for who does not use it.
func (s *Store) LookTree(d Digest) (*Tree, error) {
	t, err := s.readTree(treeName(d))
	if err == nil && t.Digest != d {
		err = fmt.Errorf("its metadata is %w: it is of %s", ErrInvalid, t.Digest)
	}
	if err != nil {
		return nil, fmt.Errorf("open the tree of the image %s: %w: unpack it first", d, err)
	}
	return t, nil
}

func (s *Store) readTree(name string) (*Tree, error) {
	data, err := s.root.ReadFile(name + "/" + treeMetadata)
	if err != nil {
		return nil, onDisk(err)
	}
	t := &Tree{dir: s.path(name)}
	strict, err := kjson.UnmarshalStrict(data, &t.TreeMetadata)
	switch {
	case err != nil || len(strict) > 0:
		return nil, fmt.Errorf("its metadata is %w: %s", ErrInvalid, clip(errors.Join(append(strict, err)...).Error()))
	case t.Version != treeVersion || t.Size < 0 || t.Form != TreeDirectory && t.Form != TreeImage:
		return nil, fmt.Errorf("its metadata is %w: version %d, form %s", ErrInvalid, t.Version, quote(string(t.Form)))
	}
	return t, nil
}

// treeFS is what a tree holds, without mounting it.
func (s *Store) treeFS(t *Tree) (fs.FS, func(), error) {
	name := treeName(t.Digest)
	if t.Form == TreeDirectory {
		root, err := s.root.OpenRoot(name + "/" + treeRoot)
		if err != nil {
			return nil, nil, err
		}
		return root.FS(), func() { _ = root.Close() }, nil
	}
	index, err := s.root.Open(name + "/" + unpack.ImageIndex)
	if err != nil {
		return nil, nil, err
	}
	data, err := s.root.Open(name + "/" + unpack.ImageData)
	if err != nil {
		return nil, nil, errors.Join(err, index.Close())
	}
	fsys, err := unpack.OpenImage(index, data)
	return fsys, func() { _, _ = index.Close(), data.Close() }, err
}

// ReadTree lets use read what a tree holds, without mounting it.
func (s *Store) ReadTree(t *Tree, use func(fs.FS) error) error {
	fsys, closing, err := s.treeFS(t)
	if err != nil {
		return fmt.Errorf("open the tree of the image %s: %w", t.Digest, onDisk(err))
	}
	defer closing()
	return use(fsys)
}

// Form is how trees should lie in this store: as images, where mount says that the kernel takes one from this disk. It makes a small one to
// ask with, and removes it.
func (s *Store) Form(mount func(index, data string) error) (TreeForm, error) {
	dir, err := os.MkdirTemp(s.path(tmpDir), "form-")
	if err != nil {
		return "", onDisk(err)
	}
	below, _, closing, err := s.within(tmpDir + "/" + dir[len(s.path(tmpDir))+1:])
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	image := &unpack.Image{Files: below}
	err = errors.Join(image.Finish(&unpack.Tree{}), image.Close())
	closing()
	form := TreeDirectory
	if err == nil && mount(dir+"/"+unpack.ImageIndex, dir+"/"+unpack.ImageData) == nil {
		form = TreeImage
	}
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		return "", fmt.Errorf("find out how trees are kept: %w", onDisk(err))
	}
	return form, nil
}
