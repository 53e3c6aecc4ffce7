// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
)

// TreeForm is the form in which the store keeps a tree.
type TreeForm string

// The forms.
const (
	// TreeDirectory is directories and files. Every kernel supports it.
	TreeDirectory TreeForm = "Directory"
	// TreeImage is an EROFS file system in two files: see unpack.Image. The kernel must be able to mount it from a file.
	TreeImage TreeForm = "Image"
)

// TreeLayer is a layer of an image: its descriptor from the manifest, and the digest of its tar from the config.
type TreeLayer struct {
	Descriptor
	DiffID Digest
}

// TreeSpec describes a tree for Unpack.
type TreeSpec struct {
	// Digest is the image's. The tree is found by it. The caller has compared the manifest with it, and the config with the manifest.
	Digest Digest
	// Layers are merged in this order, the lowest first.
	Layers []TreeLayer
	// Options restrict what the layers may hold.
	Options unpack.Options
	// Room is the space that is reserved while the tree is made, and the largest size of all its files together.
	Room int64
	Form TreeForm
	// Opportunistic: no claim needs the tree yet, so nothing is evicted for it.
	Opportunistic bool
	// Labels are kept in the metadata for the caller.
	Labels map[string]string
	// Origin is the repository that the layers are read from.
	Origin string
	// Namespace is that of the object for which the tree is made. Its trees share a part of the store. Empty: the cluster's.
	Namespace string
}

// namespaceLabel has the namespace in the metadata of a tree. It is a label since earlier versions refuse keys that they do not know.
const namespaceLabel = "dev.fettle.namespace"

// labels returns the labels to keep. What an image says for the namespace does not count.
func (t *TreeSpec) labels() map[string]string {
	out := maps.Clone(t.Labels)
	delete(out, namespaceLabel)
	if t.Namespace == "" {
		return out
	}
	if out == nil {
		out = map[string]string{}
	}
	out[namespaceLabel] = t.Namespace
	return out
}

func (t *TreeSpec) check() error {
	if t.Digest.IsZero() || t.Room <= 0 || t.Room > maxSize || len(t.Layers) == 0 || len(t.Layers) > maxDescriptors ||
		t.Form != TreeDirectory && t.Form != TreeImage {
		return fmt.Errorf("the image is %w: digest %s, %d layers, %d bytes of room, form %s: "+
			"expected a digest, 1 to %d layers, some room, and %s or %s",
			ErrInvalid, quote(t.Digest.String()), len(t.Layers), t.Room, quote(string(t.Form)), maxDescriptors, TreeDirectory, TreeImage)
	}
	if t.Namespace != "" && !validNamespace(t.Namespace) {
		return fmt.Errorf("the image's namespace %s is %w: expected the name of a namespace", quote(t.Namespace), ErrInvalid)
	}
	for i := range t.Layers {
		if err := t.Layers[i].Check(); err != nil {
			return err
		}
		if t.Layers[i].DiffID.IsZero() {
			return fmt.Errorf("layer %d is %w: it has no diffID: expected one in the image's config", i+1, ErrInvalid)
		}
		if err := t.Layers[i].runsHere(); err != nil {
			return err
		}
	}
	return nil
}

// runsHere refuses a layer for another CPU. A tree is used on the machine that unpacks it, and its libraries would fail in the container.
// A layer for which the image names no CPU is accepted: not every builder writes it.
func (l *TreeLayer) runsHere() error {
	_, architecture, _ := strings.Cut(l.Platform, "/")
	architecture, _, _ = strings.Cut(architecture, "/")
	if architecture == "" || architecture == runtime.GOARCH {
		return nil
	}
	return fmt.Errorf("the image is for another CPU and %w here: its config says %s: expected %s: name an image that was made for "+
		"this node's CPU", ErrInvalid, quote(architecture), runtime.GOARCH)
}

// validNamespace reports whether a text can be the name of a namespace. Such a name can be part of a file's name.
func validNamespace(name string) bool { return len(validation.IsDNS1123Label(name)) == 0 }

func (t *TreeSpec) layers() []unpack.Layer {
	layers := make([]unpack.Layer, 0, len(t.Layers))
	for _, l := range t.Layers {
		layers = append(layers, unpack.Layer{MediaType: l.MediaType, Digest: l.Digest, DiffID: l.DiffID, Size: l.Size})
	}
	return layers
}

// TreeMetadata is kept beside a tree as metadata.json.
type TreeMetadata struct {
	// Version is 2. A tree with another version is unpacked again.
	Version int      `json:"version"`
	Digest  Digest   `json:"digest"`
	DiffIDs []Digest `json:"diffIDs"`
	Form    TreeForm `json:"form"`
	// FormerHash holds the image's digest and is not read. Earlier versions of this program kept a hash of the files in this field, and take
	// a tree without one for damaged: after a downgrade they would unpack every image again.
	FormerHash Digest `json:"hash"`
	// Bytes is the sum of the files' sizes, and Size what the tree takes on the disk.
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
	Size    int64 `json:"size"`
	// Labels are the caller's.
	Labels map[string]string `json:"labels,omitempty"`
	// Origin is the repository that the layers were read from. Its key is one that earlier versions know and never set: they refuse
	// metadata with a key that they do not know. Empty: such a version made the tree.
	Origin  string    `json:"verification,omitempty"`
	Created time.Time `json:"created"`
}

// Tree is a tree in the store. Its paths are valid as long as it is pinned.
type Tree struct {
	TreeMetadata
	dir string
}

// Root returns the directory with the files, or nothing for an image.
func (t *Tree) Root() string {
	if t.Form == TreeDirectory {
		return t.dir + "/" + treeRoot
	}
	return ""
}

// Image returns the file to mount and the file that is its device, or nothing for a directory.
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
	// onDiskBlock is the smallest space that a name or the end of a file takes.
	onDiskBlock = 4096
)

func treeName(d Digest) string { return treesDir + "/" + d.Hex() }

// OpenTree returns the tree of an image and updates its last use. If it is not there, the error is fs.ErrNotExist.
func (s *Store) OpenTree(d Digest) (*Tree, error) {
	t, err := s.PeekTree(d)
	if err == nil {
		s.touchName(treeName(d))
	}
	return t, err
}

// PeekTree returns the tree of an image without updating its last use.
func (s *Store) PeekTree(d Digest) (*Tree, error) {
	t, err := s.readTree(treeName(d))
	if err == nil && t.Digest != d {
		err = fmt.Errorf("its metadata is %w: it is of %s", ErrInvalid, t.Digest)
	}
	if err != nil {
		return nil, fmt.Errorf("open the tree of the image %s: %w: unpack it first", d, err)
	}
	return t, nil
}

func (s *directory) readTree(name string) (*Tree, error) {
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

// treeFS opens a tree as a file system without mounting it.
func (s *directory) treeFS(t *Tree) (fs.FS, func(), error) {
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

// ReadTree calls use with the files of a tree, without mounting it.
func (s *Store) ReadTree(t *Tree, use func(fs.FS) error) error {
	fsys, closing, err := s.treeFS(t)
	if err != nil {
		return fmt.Errorf("open the tree of the image %s: %w", t.Digest, onDisk(err))
	}
	defer closing()
	return use(fsys)
}

// Form returns the form for the trees of this store: images if mount succeeds with a small one that Form makes for this and removes.
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
