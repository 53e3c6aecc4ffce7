// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/treesum"
)

const (
	ociTar    = "application/vnd.oci.image.layer.v1.tar"
	ociGzip   = ociTar + "+gzip"
	ociZstd   = ociTar + "+zstd"
	cacheDir  = "io.triton.cache/"
	tritonDoc = "io.triton.manifest/manifest.json"
)

var cachePaths = []string{cacheDir, tritonDoc} //nolint:gochecknoglobals // a constant

// packed is a layer and its bytes.
type packed struct {
	Layer
	data []byte
}

func pack(t testing.TB, mediaType string, plain []byte) packed {
	t.Helper()
	data := plain
	switch mediaType {
	case ociGzip:
		data = gzipOf(t, plain)
	case ociZstd:
		data = zstdOf(t, plain)
	}
	return declare(mediaType, data, plain)
}

func declare(mediaType string, data, plain []byte) packed {
	return packed{
		Layer: Layer{MediaType: mediaType, Digest: sha256.Sum256(data), DiffID: sha256.Sum256(plain), Size: int64(len(data))}, data: data,
	}
}

func gzipOf(t testing.TB, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(plain)
	check.Must(t, errors.Join(err, w.Close()))
	return b.Bytes()
}

func zstdOf(t testing.TB, plain []byte, o ...zstd.EOption) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, o...)
	check.Must(t, err)
	_, err = w.Write(plain)
	check.Must(t, errors.Join(err, w.Close()))
	return b.Bytes()
}

// in is one entry of a tar; a content that is nil is a directory where the name ends so.
type in struct {
	name, content string
	edit          func(*tar.Header)
}

func header(e in) *tar.Header {
	h := &tar.Header{
		Name: e.name, Size: int64(len(e.content)), Mode: 0o644, Typeflag: tar.TypeReg, ModTime: time.Unix(1e9, 0), Uid: 1000, Gid: 1000,
	}
	if len(e.name) > 0 && e.name[len(e.name)-1] == '/' {
		h.Typeflag, h.Mode = tar.TypeDir, 0o755
	}
	if e.edit != nil {
		e.edit(h)
	}
	return h
}

func tarOf(t testing.TB, entries ...in) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		check.Must(t, w.WriteHeader(header(e)))
		if e.content != "" {
			_, err := io.WriteString(w, e.content)
			check.Must(t, err)
		}
	}
	check.Must(t, w.Close())
	return b.Bytes()
}

// rawTar has headers that the library would not write: the fields are set in a block of 512 bytes.
func rawTar(blocks ...[]byte) []byte {
	return append(bytes.Join(blocks, nil), make([]byte, 1024)...)
}

func rawHeader(name string, kind byte, size string) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x000001750\x000001750\x00")
	copy(b[124:], size)
	copy(b[136:], "07346545000\x00")
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	return sealed(b)
}

// sealed sets the checksum.
func sealed(b []byte) []byte {
	copy(b[148:156], "        ")
	sum := 0
	for _, c := range b[:512] {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func octal(n int64) string { return fmt.Sprintf("%011o\x00", n) }

func block(content string) []byte {
	b := make([]byte, (len(content)+511)/512*512)
	copy(b, content)
	return b
}

// below is Files in a directory.
type below struct{ *os.Root }

func (b below) OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error) {
	f, err := b.Root.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return synced{f}, nil
}

type synced struct{ *os.File }

func (s synced) Datasync() error { return nil }

// sinks make a tree in a directory, and read it.
func sinks() map[string]func(t testing.TB, root *os.Root) (Sink, func() fs.FS) {
	return map[string]func(t testing.TB, root *os.Root) (Sink, func() fs.FS){
		"directory": func(_ testing.TB, root *os.Root) (Sink, func() fs.FS) {
			times := func(name string) error { return root.Chtimes(name, time.Unix(0, 0), time.Unix(0, 0)) }
			return &Directory{Files: below{root}, Times: times}, root.FS
		},
		"image": func(t testing.TB, root *os.Root) (Sink, func() fs.FS) {
			t.Helper()
			i := &Image{Files: below{root}}
			t.Cleanup(func() { _ = i.Close() })
			return i, func() fs.FS {
				index, err := root.Open(ImageIndex)
				check.Must(t, err)
				data, err := root.Open(ImageData)
				check.Must(t, err)
				t.Cleanup(func() { _, _ = index.Close(), data.Close() })
				fsys, err := OpenImage(index, data)
				check.Must(t, err)
				return fsys
			}
		},
	}
}

// summing is a sink that sums what goes through it, so that what is read back can be compared with what was written.
type summing struct {
	Sink
	sums map[string][]byte
}

func sum(s Sink) *summing { return &summing{s, map[string][]byte{}} }

func (s *summing) File(path string, mode fs.FileMode) (File, error) {
	f, err := s.Sink.File(path, mode)
	return &summed{File: f, hash: sha256.New(), done: func(sum []byte) { s.sums[path] = sum }}, err
}

func (s *summing) Remove(path string, dir bool) error {
	delete(s.sums, path)
	return s.Sink.Remove(path, dir)
}

// list is a tree as treesum has it.
func (s *summing) list(t *Tree) map[string]string {
	all := map[string]string{}
	for _, e := range t.Entries {
		all[e.Path] = e.Mode.String()
		if !e.Mode.IsDir() {
			all[e.Path] = fmt.Sprintf("%v %x", e.Mode, s.sums[e.Path])
		}
	}
	return all
}

type summed struct {
	File
	hash hash.Hash
	done func(sum []byte)
}

func (s *summed) Write(p []byte) (int, error) {
	n, err := s.File.Write(p)
	_, _ = s.hash.Write(p[:n])
	return n, err
}

func (s *summed) Close() (int64, error) {
	s.done(s.hash.Sum(nil))
	return s.File.Close()
}

// checkTree compares a tree, and what was written of it, with what is there.
func checkTree(t testing.TB, tree *Tree, s *summing, fsys fs.FS) {
	t.Helper()
	is, err := treesum.Of(fsys)
	check.Must(t, err)
	if diff := cmp.Diff(s.list(tree), is); diff != "" {
		t.Errorf("read back (-written +read):\n%s", diff)
	}
	size := int64(0)
	for i, e := range tree.Entries {
		info, err := fs.Stat(fsys, e.Path)
		check.Must(t, err)
		if !e.Mode.IsDir() && info.Size() != e.Size || i > 0 && tree.Entries[i-1].Path >= e.Path {
			t.Errorf("entry %d is %+v after %+v, the file has %d bytes", i, e, tree.Entries[max(i-1, 0)], info.Size())
		}
		size += e.Size
	}
	if size != tree.Bytes {
		t.Errorf("%d bytes, want %d", tree.Bytes, size)
	}
}

func opener(layers []packed) Opener {
	return func(_ context.Context, i int) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layers[i].data)), nil
	}
}

func layersOf(ps []packed) (ls []Layer) {
	for _, p := range ps {
		ls = append(ls, p.Layer)
	}
	return ls
}

func openRoot(t testing.TB, dir string) *os.Root {
	t.Helper()
	check.Must(t, os.MkdirAll(dir, 0o700))
	root, err := os.OpenRoot(dir)
	check.Must(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}

// surroundings lists everything below a directory but what is below its part, with what stat says and the content.
func surroundings(t testing.TB, dir, but string) map[string]string {
	t.Helper()
	all := map[string]string{}
	check.Must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == but {
			all[path] = "the part"
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content := ""
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(data)
		}
		all[path] = fmt.Sprintf("%v %d %v %q", info.Mode(), info.Size(), info.ModTime(), content)
		return nil
	}))
	return all
}
