// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
)

// Source opens the layers of an image: a layout, or a registry.
type Source interface {
	Open(ctx context.Context, d artifact.Descriptor) (io.ReadCloser, error)
}

// Inspect reads the layers of an image and returns the facts of its cache. Meanwhile it keeps only the metadata files, in memory. limits
// bound what the image may hold.
func Inspect(ctx context.Context, src Source, image *artifact.Image, limits unpack.Limits) (kernelcache.Cache, error) {
	kept := &facts{}
	if err := extract(ctx, src, image, kept, limits); err != nil {
		return kernelcache.Cache{}, err
	}
	return kernelcache.Inspect(kept, kernelcache.Options{Labels: image.Labels})
}

// Check reads an image that was packed with the rules of an extraction.
func Check(ctx context.Context, src Source, image *artifact.Image) error {
	return extract(ctx, src, image, &facts{}, unpack.Limits{})
}

func extract(ctx context.Context, src Source, image *artifact.Image, to unpack.Sink, limits unpack.Limits) error {
	layers := make([]unpack.Layer, 0, len(image.Layers))
	for _, l := range image.Layers {
		layers = append(layers, unpack.Layer{MediaType: l.MediaType, Digest: l.Digest, DiffID: l.DiffID, Size: l.Size})
	}
	open := func(ctx context.Context, i int) (io.ReadCloser, error) {
		return src.Open(ctx, image.Layers[i].Descriptor)
	}
	_, err := unpack.Extract(ctx, layers, open, to, unpack.Options{Limits: limits, Paths: kernelcache.ImagePaths()})
	if err != nil {
		return fmt.Errorf("image %s: %w", image.Digest, err)
	}
	return nil
}

const (
	// maxKept bounds what is kept of one file, to a byte more than the longest valid one. maxFacts bounds what is kept of all files.
	maxKept  = kernelcache.MaxText + 1
	maxFacts = 256 << 20
)

// facts is a sink and a file system of the names and sizes of all files, and the contents of the metadata files.
type facts struct {
	contents map[string][]byte
	kept     int64
	entries  []unpack.Entry // sorted
	children map[string][]fs.DirEntry
}

// isMetadata reports whether the content of a file is read.
func isMetadata(name string) bool {
	return slices.Contains([]string{".json", ".py", ".ptx"}, path.Ext(name))
}

// Mkdir implements unpack.Sink.
func (*facts) Mkdir(string, fs.FileMode) error { return nil }

// Remove implements unpack.Sink.
func (f *facts) Remove(name string, _ bool) error {
	f.kept -= int64(len(f.contents[name]))
	delete(f.contents, name)
	return nil
}

// File implements unpack.Sink.
func (f *facts) File(name string, _ fs.FileMode) (unpack.File, error) {
	return &fact{facts: f, name: name}, nil
}

// Finish implements unpack.Sink.
func (f *facts) Finish(t *unpack.Tree) error {
	f.entries, f.children = t.Entries, map[string][]fs.DirEntry{}
	for _, e := range t.Entries {
		dir := path.Dir(e.Path)
		f.children[dir] = append(f.children[dir], fs.FileInfoToDirEntry(factInfo{e}))
	}
	return nil
}

// fact is a file that is being written.
type fact struct {
	*facts
	name string
	data []byte
}

func (f *fact) Write(p []byte) (int, error) {
	if !isMetadata(f.name) {
		return len(p), nil
	}
	part := p[:min(len(p), maxKept-len(f.data))]
	if f.kept += int64(len(part)); f.kept > maxFacts {
		return 0, fmt.Errorf("%w: more than %d bytes of metadata", kernelcache.ErrInvalid, maxFacts)
	}
	f.data = append(f.data, part...)
	return len(p), nil
}

func (f *fact) Close() (int64, error) {
	if f.contents == nil {
		f.contents = map[string][]byte{}
	}
	if len(f.data) > 0 {
		f.contents[f.name] = f.data
	}
	return 0, nil
}

func (f *facts) find(op, name string) (factInfo, error) {
	if name == "." {
		return factInfo{unpack.Entry{Path: ".", Mode: fs.ModeDir | 0o755}}, nil
	}
	i, ok := slices.BinarySearchFunc(f.entries, name, func(e unpack.Entry, name string) int { return strings.Compare(e.Path, name) })
	if !ok {
		return factInfo{}, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	return factInfo{f.entries[i]}, nil
}

// Open implements fs.FS.
func (f *facts) Open(name string) (fs.File, error) {
	info, err := f.find("open", name)
	if err != nil {
		return nil, err
	}
	return &openFact{info, bytes.NewReader(f.contents[name])}, nil
}

// Stat implements fs.StatFS.
func (f *facts) Stat(name string) (fs.FileInfo, error) { return f.find("stat", name) }

// ReadDir implements fs.ReadDirFS.
func (f *facts) ReadDir(name string) ([]fs.DirEntry, error) {
	if _, err := f.find("read", name); err != nil {
		return nil, err
	}
	return f.children[name], nil
}

type openFact struct {
	info factInfo
	*bytes.Reader
}

func (f *openFact) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *openFact) Close() error               { return nil }

type factInfo struct{ entry unpack.Entry }

func (i factInfo) Name() string       { return path.Base(i.entry.Path) }
func (i factInfo) Size() int64        { return i.entry.Size }
func (i factInfo) Mode() fs.FileMode  { return i.entry.Mode }
func (i factInfo) ModTime() time.Time { return time.Unix(0, 0) }
func (i factInfo) IsDir() bool        { return i.entry.Mode.IsDir() }
func (i factInfo) Sys() any           { return nil }
