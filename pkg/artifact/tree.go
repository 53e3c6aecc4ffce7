// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
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

// Unpack makes the tree of an image, unless it is there already; then nothing is opened. When it returns nil, the tree is complete, every
// layer was what its digests say to the last byte, and all is durable. Calls for one digest, in this process and others, unpack it once,
// as Fetch does.
//
// What the image holds is refused as unpack has it: the error is ErrInvalid, ErrMismatch or ErrTooLarge, and is an *unpack.Error.
func (s *Store) Unpack(ctx context.Context, spec TreeSpec, open unpack.Opener) (*Tree, error) {
	err := spec.check()
	var t *Tree
	if err == nil {
		t, err = s.unpack(ctx, spec, open)
	}
	if err != nil {
		return nil, fmt.Errorf("unpack the image %s: %w", spec.Digest, err)
	}
	return t, nil
}

func (s *Store) unpack(ctx context.Context, spec TreeSpec, open unpack.Opener) (*Tree, error) {
	if t, err := s.OpenTree(spec.Digest); !missing(err) {
		return t, err
	}
	unlock, err := s.lockDigest(ctx, spec.Digest)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if t, err := s.OpenTree(spec.Digest); !missing(err) { // while we waited
		return t, err
	}
	dir, err := s.reserveTree(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err = s.fillTree(ctx, &spec, dir, open); err == nil {
		err = s.completeTree(ctx, spec.Digest, dir)
	}
	if err != nil {
		return nil, errors.Join(err, s.discardName(dir, spec.Digest))
	}
	return s.OpenTree(spec.Digest)
}

// missing: it is not there, or of no use.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrInvalid) }

func partialTree(d Digest, room int64) string {
	return fmt.Sprintf("%s/%s.%d.tree", tmpDir, d.Hex(), room)
}

// reserveTree makes room, and the directory whose name says so to everybody. The caller holds the digest.
func (s *Store) reserveTree(ctx context.Context, spec TreeSpec) (dir string, err error) {
	var leftovers []string // of whoever was at it before, and a tree that cannot be read
	err = s.each(tmpDir, func(name string, _ fs.FileInfo) {
		if d, _, ok := parsePartialTree(name); ok && d == spec.Digest {
			leftovers = append(leftovers, tmpDir+"/"+name)
		}
	})
	for _, name := range append(leftovers, treeName(spec.Digest)) {
		err = errors.Join(err, s.discardName(name, spec.Digest))
	}
	if err != nil {
		return "", err
	}
	dir = partialTree(spec.Digest, spec.Room)
	return dir, s.reserving(ctx, Descriptor{Digest: spec.Digest, Size: spec.Room}, spec.Spare, func() error {
		return onDisk(s.fs.Mkdir(s.path(dir), 0o700))
	})
}

// fillTree unpacks into a directory of tmp, and makes what is there durable.
func (s *Store) fillTree(ctx context.Context, spec *TreeSpec, dir string, open unpack.Opener) error {
	options := spec.Options
	if options.Limits.Total == 0 || options.Limits.Total > spec.Room {
		options.Limits.Total = spec.Room
	}
	made, err := s.extract(ctx, spec, dir, func(sink unpack.Sink) (*unpack.Tree, error) {
		return unpack.Extract(ctx, spec.layers(), open, sink, options)
	})
	if err != nil {
		return judged(err)
	}
	m := TreeMetadata{
		Version: treeVersion, Digest: spec.Digest, Form: spec.Form, FormerHash: spec.Digest, Entries: len(made.Entries),
		Bytes: made.Bytes, Size: s.sizeOf(spec.Form, dir, made),
		Labels: spec.Labels, Verification: spec.Verification, Created: s.config.Clock.Now().UTC(),
	}
	for _, l := range spec.Layers {
		m.DiffIDs = append(m.DiffIDs, l.DiffID)
	}
	return onDisk(s.sealTree(dir, m))
}

// extract runs do with a sink below the directory. Files are opened relative to the sink's own directory, which nothing leads out of.
func (s *Store) extract(ctx context.Context, spec *TreeSpec, dir string, do func(unpack.Sink) (*unpack.Tree, error)) (*unpack.Tree, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if spec.Form == TreeDirectory {
		dir += "/" + treeRoot
		if err := s.openMkdir(dir); err != nil {
			return nil, err
		}
	}
	below, root, closing, err := s.within(dir)
	if err != nil {
		return nil, err
	}
	defer closing()
	if spec.Form == TreeDirectory {
		epoch := time.Unix(0, 0)
		return do(&unpack.Directory{Files: below, Times: func(name string) error { return root.Chtimes(name, epoch, epoch) }})
	}
	image := &unpack.Image{Files: below}
	t, err := do(image)
	return t, errors.Join(err, image.Close())
}

// openMkdir makes the root of a directory: anybody may copy it up.
func (s *Store) openMkdir(dir string) error {
	if err := s.fs.Mkdir(s.path(dir), 0o777); err != nil {
		return err
	}
	f, err := s.fs.OpenFile(s.path(dir), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o777), f.Close())
}

// sizeOf is what a tree takes on the disk, about.
func (s *Store) sizeOf(form TreeForm, dir string, made *unpack.Tree) (size int64) {
	if form == TreeDirectory {
		for i := range made.Entries {
			size += (made.Entries[i].Size/onDiskBlock + 1) * onDiskBlock
		}
		return size
	}
	for _, name := range []string{unpack.ImageIndex, unpack.ImageData} {
		if info, err := s.root.Lstat(dir + "/" + name); err == nil {
			size += info.Size()
		}
	}
	return size
}

// sealTree writes the metadata and makes all of the directory durable: of a directory by one sync of the file system, since one for each
// of some thousand files takes many times as long.
func (s *Store) sealTree(dir string, m TreeMetadata) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	f, err := s.fs.OpenFile(s.path(dir+"/"+treeMetadata), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err == nil && m.Form == TreeImage {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if m.Form == TreeImage {
		return s.fs.SyncDir(s.path(dir))
	}
	return s.fs.SyncFS(s.path(dir))
}

// completeTree makes it one of the store's. Its name comes after its content, on disk too.
func (s *Store) completeTree(ctx context.Context, d Digest, dir string) error {
	unlock, err := s.lockNames(ctx)
	if err != nil {
		return err
	}
	err = s.fs.Rename(s.path(dir), s.path(treeName(d)))
	unlock()
	if err != nil {
		return onDisk(err)
	}
	return onDisk(s.fs.SyncDir(s.path(treesDir)))
}

// judged gives what unpack says the kind that it has in this package.
func judged(err error) error {
	var path *fs.PathError
	switch {
	case errors.Is(err, unpack.ErrRefused):
		return fmt.Errorf("it is %w: %w", ErrInvalid, err)
	case errors.Is(err, unpack.ErrMismatch):
		return fmt.Errorf("it is %w: %w", ErrMismatch, err)
	case errors.Is(err, unpack.ErrLimit):
		return fmt.Errorf("it is %w: %w", ErrTooLarge, err)
	case errors.As(err, &path):
		return onDisk(err)
	}
	return err
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
