// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// Layout is a directory in the form of the OCI image layout: blobs by digest, and index.json that names some of them. It is not for
// several writers at once.
type Layout struct {
	dir string
}

const (
	layoutFile    = "oci-layout"
	layoutIndex   = "index.json"
	layoutVersion = `{"imageLayoutVersion":"1.0.0"}`
	// refName is the annotation that an entry's tag is in.
	refName = "org.opencontainers.image.ref.name"
)

// layoutEntry keeps what it does not know, since other tools put entries there, too.
type layoutEntry struct {
	MediaType   string            `json:"mediaType"`
	Digest      artifact.Digest   `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	raw         json.RawMessage
}

func (e *layoutEntry) UnmarshalJSON(data []byte) error {
	type plain layoutEntry
	err := json.Unmarshal(data, (*plain)(e))
	e.raw = slices.Clone(data)
	return err
}

func (e layoutEntry) MarshalJSON() ([]byte, error) {
	if e.raw != nil {
		return e.raw, nil
	}
	type plain layoutEntry
	return json.Marshal(plain(e))
}

type layoutIndexFile struct {
	SchemaVersion int           `json:"schemaVersion"`
	MediaType     string        `json:"mediaType,omitempty"`
	Manifests     []layoutEntry `json:"manifests"`
}

// OpenLayout is the layout in a directory. Nothing is read yet.
func OpenLayout(dir string) *Layout { return &Layout{dir: dir} }

// Write adds an artifact to the layout, which is made where there is none. It takes the place of what had the same tag, or none.
func (l *Layout) Write(a *Artifact, tag string) error {
	if err := l.write(a, tag); err != nil {
		return fmt.Errorf("write the OCI layout %s: %w", l.dir, err)
	}
	return nil
}

func (l *Layout) write(a *Artifact, tag string) error {
	index, err := l.index()
	if errors.Is(err, fs.ErrNotExist) {
		index, err = layoutIndexFile{SchemaVersion: 2, MediaType: string(types.OCIImageIndex)}, l.make()
	}
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(l.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, b := range a.Blobs {
		if err := put(root, blobPath(b.Digest), io.NewSectionReader(b.Content, 0, b.Size)); err != nil {
			return err
		}
	}
	for _, m := range a.Manifests {
		if err := put(root, blobPath(m.Digest), bytes.NewReader(m.Raw)); err != nil {
			return err
		}
	}
	index.Manifests = slices.DeleteFunc(index.Manifests, func(e layoutEntry) bool { return e.Annotations[refName] == tag })
	entry := layoutEntry{MediaType: a.Root.MediaType, Digest: a.Root.Digest, Size: a.Root.Size}
	if tag != "" {
		entry.Annotations = map[string]string{refName: tag}
	}
	index.Manifests = append(index.Manifests, entry)
	data, err := json.Marshal(index)
	if err != nil {
		return err
	}
	return put(root, layoutIndex, bytes.NewReader(data))
}

// make refuses a directory that holds other things.
func (l *Layout) make() error {
	entries, err := os.ReadDir(l.dir)
	switch {
	case err == nil && len(entries) > 0:
		return errors.New("it holds something else: expected an OCI layout, an empty directory or none")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(filepath.Join(l.dir, "blobs", "sha256"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.dir, layoutFile), []byte(layoutVersion), 0o644)
}

// put writes a file under another name first, so that no reader sees half of it.
func put(root *os.Root, name string, content io.Reader) error {
	temporary := name + "." + rand.Text()
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(temporary))
	}
	return nil
}

func blobPath(d artifact.Digest) string { return "blobs/sha256/" + d.Hex() }

func (l *Layout) index() (layoutIndexFile, error) {
	var index layoutIndexFile
	data, err := l.read(layoutIndex, artifact.MaxManifest)
	if err != nil {
		return index, err
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return index, fmt.Errorf("%s is %w: %w", layoutIndex, artifact.ErrInvalid, err)
	}
	return index, nil
}

// read reads a small file below the directory.
func (l *Layout) read(name string, limit int64) ([]byte, error) {
	f, err := l.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is %w: expected at most %d bytes", name, artifact.ErrTooLarge, limit)
	}
	return data, err
}

// open opens a regular file, and nothing outside the directory.
func (l *Layout) open(name string) (*os.File, error) {
	root, err := os.OpenRoot(l.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is %w: expected a regular file", name, artifact.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	return root.Open(name)
}

// Resolve finds the entry with the tag, with the digest, or, without either, the one without a tag or the only one.
func (l *Layout) Resolve(tag string, digest artifact.Digest) (artifact.Descriptor, error) {
	index, err := l.index()
	if err != nil {
		return artifact.Descriptor{}, fmt.Errorf("read the OCI layout %s: %w", l.dir, err)
	}
	for _, e := range index.Manifests {
		switch {
		case digest.IsZero() && e.Annotations[refName] == tag, !digest.IsZero() && e.Digest == digest,
			digest.IsZero() && tag == "" && len(index.Manifests) == 1:
			return artifact.Descriptor{MediaType: e.MediaType, Digest: e.Digest, Size: e.Size}, nil
		}
	}
	if !digest.IsZero() { // it may be part of an index
		return artifact.Descriptor{Digest: digest}, nil
	}
	return artifact.Descriptor{}, fmt.Errorf("entry %q of the OCI layout %s is %w among its %d: name one by its tag or digest",
		tag, l.dir, artifact.ErrNotFound, len(index.Manifests))
}

// Manifest reads a manifest or index.
func (l *Layout) Manifest(_ context.Context, d artifact.Descriptor) (*artifact.Manifest, error) {
	data, err := l.content(d, artifact.MaxManifest)
	if err != nil {
		return nil, err
	}
	return artifact.ParseManifest(data)
}

// ReadBlob reads a small blob.
func (l *Layout) ReadBlob(_ context.Context, d artifact.Descriptor) ([]byte, error) {
	return l.content(d, artifact.MaxSmall)
}

// content reads what has d's digest and, where d says it, size.
func (l *Layout) content(d artifact.Descriptor, limit int64) ([]byte, error) {
	data, err := l.read(blobPath(d.Digest), limit)
	if err != nil {
		return nil, fmt.Errorf("read %s in the OCI layout %s: %w", d.Digest, l.dir, err)
	}
	if got := artifact.DigestOf(data); got != d.Digest || d.Size > 0 && d.Size != int64(len(data)) {
		return nil, fmt.Errorf("%s in the OCI layout %s is %w: %d bytes with digest %s", d.Digest, l.dir, artifact.ErrMismatch, len(data), got)
	}
	return data, nil
}

// Open opens a blob of any size. Its digest is for the caller to compare.
func (l *Layout) Open(d artifact.Descriptor) (*os.File, error) {
	f, err := l.open(blobPath(d.Digest))
	if err != nil {
		return nil, fmt.Errorf("open %s in the OCI layout %s: %w", d.Digest, l.dir, err)
	}
	return f, nil
}
