// SPDX-License-Identifier: Apache-2.0

// Package layout reads and writes directories in the form of the OCI image layout: blobs by digest, and index.json, which names some of
// them by tags.
//
// The content of a layout is not trusted, like that of a registry: reads are bounded and compared with their digests, and no link leads out
// of the directory. A Source has the methods of a registry.Source, so a reader of images or signatures works with either. A layout has no
// list of referrers. Referrers are found where tools write them: in entries of index.json whose manifests have a subject, and in the index
// at the tag sha256-HEX.
//
// Each file is written atomically. index.json is written last, when everything that it names is durable. Writers of one layout wait for
// each other.
package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	kjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// Layout is a directory. It is safe for concurrent use, also by several processes.
type Layout struct {
	dir string
}

const (
	versionFile = "oci-layout"
	indexFile   = "index.json"
	blobsDir    = "blobs/sha256"
	version     = "1.0.0"
	indexType   = "application/vnd.oci.image.index.v1+json"
	// refName is the annotation with the tag of an entry.
	refName = "org.opencontainers.image.ref.name"
)

// At returns the layout in a directory. It neither reads nor creates anything.
func At(dir string) *Layout { return &Layout{dir: dir} }

// Dir returns the directory.
func (l *Layout) Dir() string { return l.dir }

func blobPath(d artifact.Digest) string { return blobsDir + "/" + d.Hex() }

// wrap adds to an error which layout it is about.
func (l *Layout) wrap(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", artifact.ErrNotFound, err)
	}
	return fmt.Errorf("the OCI layout %s: %w", l.dir, err)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", artifact.ErrInvalid, fmt.Errorf(format, args...))
}

// open opens a regular file below the directory. It does not block, whatever kind of file has the name.
func (l *Layout) open(name string) (*os.File, int64, error) {
	root, err := os.OpenRoot(l.dir)
	if err != nil {
		return nil, 0, err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = invalid("%s: expected a regular file", name)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// read reads a file of at most limit bytes.
func (l *Layout) read(name string, limit int64) ([]byte, error) {
	f, _, err := l.open(name)
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

// content reads a blob of at most limit bytes. It checks the digest of d and, if it is not 0, the size.
func (l *Layout) content(d artifact.Descriptor, limit int64) ([]byte, error) {
	if d.Digest.IsZero() || d.Size < 0 {
		return nil, invalid("digest %q, size %d: expected a digest and a size", d.Digest, d.Size)
	}
	if d.Size > limit {
		return nil, fmt.Errorf("%s is %w: %d bytes, expected at most %d", d.Digest, artifact.ErrTooLarge, d.Size, limit)
	}
	data, err := l.read(blobPath(d.Digest), limit)
	if err != nil {
		return nil, err
	}
	if got := artifact.DigestOf(data); got != d.Digest || d.Size > 0 && d.Size != int64(len(data)) {
		return nil, fmt.Errorf("%s is %w: %d bytes with digest %s", d.Digest, artifact.ErrMismatch, len(data), got)
	}
	return data, nil
}

// index is index.json. Other tools write entries there too, so unknown fields of an entry are kept.
type index struct {
	entries []artifact.Descriptor
	raw     []json.RawMessage
	// rest has the other keys of the file.
	rest map[string]json.RawMessage
}

// index reads the two files that every layout has.
func (l *Layout) index() (*index, error) {
	mark, err := l.read(versionFile, artifact.MaxSmall)
	if err != nil {
		return nil, err
	}
	if err := checkVersion(mark); err != nil {
		return nil, err
	}
	data, err := l.read(indexFile, artifact.MaxManifest)
	if err != nil {
		return nil, err
	}
	return parseIndex(data)
}

func checkVersion(data []byte) error {
	var mark struct {
		Version string `json:"imageLayoutVersion"`
	}
	repeated, err := kjson.UnmarshalStrict(data, &mark, kjson.DisallowDuplicateFields)
	if err = errors.Join(append(repeated, err)...); err == nil && mark.Version != version {
		err = fmt.Errorf("its version is %q", mark.Version)
	}
	if err != nil {
		return invalid(`%s: expected {"imageLayoutVersion": %q}: %w`, versionFile, version, err)
	}
	return nil
}

// parseIndex decodes index.json as strictly as a manifest, since it is one.
func parseIndex(data []byte) (*index, error) {
	m, err := artifact.ParseManifest(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", indexFile, err)
	}
	if !m.IsIndex() {
		return nil, invalid("%s: expected an index, not %s", indexFile, m.MediaType)
	}
	x := &index{entries: m.Manifests}
	if err := json.Unmarshal(data, &x.rest); err != nil {
		return nil, invalid("%s: %w", indexFile, err)
	}
	err = json.Unmarshal(x.rest["manifests"], &x.raw)
	if err == nil && len(x.raw) != len(x.entries) {
		err = fmt.Errorf("it has %d entries there, and %d in all", len(x.raw), len(x.entries))
	}
	if err != nil {
		return nil, invalid("%s: expected the key manifests as it is written here: %w", indexFile, err)
	}
	return x, nil
}

func newIndex() *index {
	return &index{rest: map[string]json.RawMessage{"schemaVersion": json.RawMessage("2"), "mediaType": json.RawMessage(`"` + indexType + `"`)}}
}

// drop removes the entries for which goes is true.
func (x *index) drop(goes func(d artifact.Descriptor) bool) {
	var entries []artifact.Descriptor
	var raw []json.RawMessage
	for i, d := range x.entries {
		if !goes(d) {
			entries, raw = append(entries, d), append(raw, x.raw[i])
		}
	}
	x.entries, x.raw = entries, raw
}

// wireEntry is an entry that this package writes.
type wireEntry struct {
	MediaType    string            `json:"mediaType"`
	Digest       artifact.Digest   `json:"digest"`
	Size         int64             `json:"size"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	ArtifactType string            `json:"artifactType,omitempty"`
}

func (x *index) add(m *artifact.Manifest, tag string) error {
	entry := wireEntry{MediaType: m.MediaType, Digest: m.Digest, Size: int64(len(m.Raw))}
	if !m.Subject.Digest.IsZero() {
		entry.ArtifactType = m.ArtifactType
	}
	if tag != "" {
		entry.Annotations = map[string]string{refName: tag}
	}
	raw, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	x.raw = append(x.raw, raw)
	x.entries = append(x.entries, artifact.Descriptor{
		MediaType: entry.MediaType, ArtifactType: entry.ArtifactType, Digest: entry.Digest, Size: entry.Size, Annotations: entry.Annotations,
	})
	return nil
}

func (x *index) bytes() ([]byte, error) {
	if x.raw == nil {
		x.raw = []json.RawMessage{}
	}
	raw, err := json.Marshal(x.raw)
	if err != nil {
		return nil, err
	}
	x.rest["manifests"] = raw
	data, err := json.Marshal(x.rest)
	if err != nil {
		return nil, err
	}
	_, err = parseIndex(data)
	return data, err
}
