// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/push"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
)

// Compression is the compression of the layer.
type Compression string

// The compressions. MCV's tools read only gzip.
const (
	Gzip Compression = "gzip"
	Zstd Compression = "zstd"
	None Compression = "none"
)

// Compressions returns all compressions, the default first.
func Compressions() []Compression { return []Compression{Gzip, Zstd, None} }

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// Options configure how an image is made.
type Options struct {
	// Compression is the layer's. Empty: Gzip.
	Compression Compression
	// Platform is OS/ARCHITECTURE of the machines that will use the cache, which has libraries for the host. Empty: linux/amd64.
	Platform string
}

// Packed is an image without the bytes of its layer.
type Packed struct {
	Manifest *artifact.Manifest
	Config   []byte
	// Image is what a reader makes of manifest and config.
	Image artifact.Image
}

// Pack writes the layer of an image of a cache, which was inspected in the same file system, and returns its manifest and config.
func Pack(fsys fs.FS, cache *kernelcache.Cache, described kernelcache.Image, layer io.Writer, o Options) (*Packed, error) {
	os, architecture, ok := strings.Cut(o.Platform, "/")
	switch {
	case o.Platform == "":
		os, architecture = "linux", "amd64"
	case !ok || os == "" || architecture == "" || strings.Contains(architecture, "/"):
		return nil, fmt.Errorf("platform %q: want OS/ARCHITECTURE, such as linux/arm64", o.Platform)
	}
	blob, plain := &counted{Writer: layer, hash: sha256.New()}, sha256.New()
	suffix, packer, err := o.Compression.writer(blob)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(io.MultiWriter(packer, plain))
	p := packing{fsys: fsys, from: cache.Dir, to: described.CacheDir, w: w}
	err = p.all(described)
	if err == nil && (p.files != cache.Files || p.bytes != cache.Bytes) {
		err = fmt.Errorf("the cache changed while it was read: %d files with %d bytes, before %d with %d: stop who writes to it",
			p.files, p.bytes, cache.Files, cache.Bytes)
	}
	if err == nil {
		err = errors.Join(w.Close(), packer.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("pack the cache: %w", err)
	}
	d := artifact.Descriptor{MediaType: layerType + suffix, Digest: artifact.Digest(blob.hash.Sum(nil)), Size: blob.size}
	return assemble(artifact.TreeLayer{Descriptor: d, DiffID: artifact.Digest(plain.Sum(nil))}, described.Labels, os, architecture)
}

// writer returns a compressing writer and the suffix of its media type.
func (c Compression) writer(to io.Writer) (string, io.WriteCloser, error) {
	switch c {
	case "", Gzip:
		return "+gzip", gzip.NewWriter(to), nil
	case Zstd:
		// One goroutine, since with several the bytes depend on their order.
		w, err := zstd.NewWriter(to, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(8<<20))
		return "+zstd", w, err
	case None:
		return "", struct {
			io.Writer
			io.Closer
		}{to, io.NopCloser(nil)}, nil
	}
	return "", nil, fmt.Errorf("compression %q: want one of %v", c, Compressions())
}

type counted struct {
	io.Writer
	hash interface {
		io.Writer
		Sum(b []byte) []byte
	}
	size int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	_, _ = c.hash.Write(p[:n]) // A hash never fails.
	c.size += int64(n)
	return n, err
}

// packing writes a directory to a tar.
type packing struct {
	fsys     fs.FS
	from, to string
	w        *tar.Writer
	files    int
	bytes    int64
}

// all writes the cache in the order in which the file system is walked, and the manifest.
func (p *packing) all(described kernelcache.Image) error {
	if err := fs.WalkDir(p.fsys, p.from, p.entry); err != nil {
		return err
	}
	if err := p.header(path.Dir(described.ManifestPath)+"/", 0o755, 0); err != nil {
		return err
	}
	if err := p.header(described.ManifestPath, 0o644, int64(len(described.Manifest))); err != nil {
		return err
	}
	_, err := p.w.Write(described.Manifest)
	return err
}

func (p *packing) entry(name string, e fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	at := path.Join(p.to, strings.TrimPrefix(strings.TrimPrefix(name, p.from), "/"))
	if p.from == "." {
		at = path.Join(p.to, name)
	}
	if !utf8.ValidString(name) || strings.HasPrefix(path.Base(name), ".wh.") {
		return fmt.Errorf("%q: no layer can have this name: want UTF-8 that does not begin with \".wh.\"", name)
	}
	if e.IsDir() {
		return p.header(at+"/", 0o755, 0)
	}
	return p.file(name, at)
}

func (p *packing) file(name, at string) error {
	f, err := p.fsys.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%q: want a regular file", name)
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	if err := p.header(at, mode, info.Size()); err != nil {
		return err
	}
	p.files++
	p.bytes += info.Size()
	if _, err := io.Copy(p.w, f); err != nil {
		return fmt.Errorf("%q: %w: stop who writes to the cache", name, err)
	}
	return nil
}

func (p *packing) header(name string, mode, size int64) error {
	h := &tar.Header{Name: name, Mode: mode, Size: size, Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0)}
	if strings.HasSuffix(name, "/") {
		h.Typeflag = tar.TypeDir
	}
	if err := p.w.WriteHeader(h); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	return nil
}

// The wire forms are declared here because their bytes decide the digest: they must not change with a library.
type (
	wireDescriptor struct {
		MediaType string          `json:"mediaType"`
		Digest    artifact.Digest `json:"digest"`
		Size      int64           `json:"size"`
	}
	wireManifest struct {
		SchemaVersion int              `json:"schemaVersion"`
		MediaType     string           `json:"mediaType"`
		Config        wireDescriptor   `json:"config"`
		Layers        []wireDescriptor `json:"layers"`
	}
	wireConfig struct {
		Created      string        `json:"created"`
		Architecture string        `json:"architecture"`
		OS           string        `json:"os"`
		Config       wireRun       `json:"config"`
		RootFS       wireRootFS    `json:"rootfs"`
		History      []wireHistory `json:"history"`
	}
	wireRun struct {
		Labels map[string]string `json:"Labels"`
	}
	wireRootFS struct {
		Type    string            `json:"type"`
		DiffIDs []artifact.Digest `json:"diff_ids"`
	}
	wireHistory struct {
		Created   string `json:"created"`
		CreatedBy string `json:"created_by"`
	}
)

const epoch = "1970-01-01T00:00:00Z"

func assemble(layer artifact.TreeLayer, labels map[string]string, os, architecture string) (*Packed, error) {
	config, err := json.Marshal(wireConfig{
		Created: epoch, OS: os, Architecture: architecture, Config: wireRun{labels},
		RootFS: wireRootFS{"layers", []artifact.Digest{layer.DiffID}}, History: []wireHistory{{epoch, "fettle cache build"}},
	})
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(wireManifest{
		SchemaVersion: 2, MediaType: manifestType, Config: wireDescriptor{configType, artifact.DigestOf(config), int64(len(config))},
		Layers: []wireDescriptor{{layer.MediaType, layer.Digest, layer.Size}},
	})
	if err != nil {
		return nil, err
	}
	m, err := artifact.ParseManifest(raw)
	if err != nil {
		return nil, err
	}
	layer.Platform = os + "/" + architecture
	if len(config) > artifact.MaxSmall {
		return nil, fmt.Errorf("the image's config has %d bytes, want at most %d: the cache is for too many kinds of GPU",
			len(config), artifact.MaxSmall)
	}
	return &Packed{
		Manifest: m, Config: config,
		Image: artifact.Image{Digest: m.Digest, Labels: labels, Layers: []artifact.TreeLayer{layer}},
	}, nil
}

// Push writes the image to a registry or a layout, and tags it last.
func (p *Packed) Push(ctx context.Context, to push.Target, tag string, layer push.Opener) error {
	if err := to.Blob(ctx, p.Manifest.Layers[0], layer); err != nil {
		return err
	}
	config := func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p.Config)), nil }
	if err := to.Blob(ctx, p.Manifest.Config, config); err != nil {
		return err
	}
	return to.Tag(ctx, p.Manifest, tag)
}
