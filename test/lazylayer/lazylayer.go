// SPDX-License-Identifier: Apache-2.0

// Package lazylayer writes layers of images that are many compressed parts one after the other, and unpack as any tar.gz or tar.zst: those
// of parallel compressors, and the formats that let a runtime fetch single files, eStargz and zstd:chunked.
package lazylayer

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

const (
	gzipType = "application/vnd.oci.image.layer.v1.tar+gzip"
	zstdType = "application/vnd.oci.image.layer.v1.tar+zstd"
)

// Layer is a layer of an image.
type Layer struct {
	MediaType string
	// Data is the layer as a registry has it, and Tar what it unpacks to, of which the diffID is made.
	Data, Tar []byte
	// Annotations are those that the format puts on the layer's descriptor.
	Annotations map[string]string
	// Parts is the number of gzip members or zstd frames, those that are skipped included.
	Parts int
}

// tocEntry describes a file, or a chunk of one that is not its first, in the index of either format.
type tocEntry struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Size        int64  `json:"size,omitempty"`
	Mode        int64  `json:"mode,omitempty"`
	Offset      int64  `json:"offset,omitempty"`
	EndOffset   int64  `json:"endOffset,omitempty"`
	Digest      string `json:"digest,omitempty"`
	ChunkOffset int64  `json:"chunkOffset,omitempty"`
	ChunkSize   int64  `json:"chunkSize,omitempty"`
	ChunkDigest string `json:"chunkDigest,omitempty"`
}

type toc struct {
	Version        int        `json:"version"`
	Entries        []tocEntry `json:"entries"`
	TarSplitDigest string     `json:"tarSplitDigest,omitempty"`
}

// entry is one of a tar: its header as it stands there, with those of extensions, and its content.
type entry struct {
	*tar.Header
	raw     []byte
	content []byte
}

// entries takes a tar apart. rest is what comes after the last content: its padding and the end of the tar.
func entries(plain []byte) (list []entry, rest []byte, err error) {
	in := bytes.NewReader(plain)
	at := func() int64 { return int64(len(plain) - in.Len()) }
	r, end := tar.NewReader(in), int64(0)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list, plain[end:], nil
		}
		if err != nil {
			return nil, nil, err
		}
		start := at() // the reader reads blocks, so this is where the content begins
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, entry{Header: h, raw: plain[end:start], content: content})
		end = start + int64(len(content))
	}
}

// toc is an entry without its offsets.
func (e *entry) toc() tocEntry {
	out := tocEntry{Name: e.Name, Type: "reg", Mode: e.Mode}
	if e.Typeflag == tar.TypeDir {
		out.Type = "dir"
	} else if out.Size = e.Size; e.Size > 0 {
		out.Digest = digest(e.content)
	}
	return out
}

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// chunks cuts a content into pieces of at most a size.
func chunks(content []byte, size int) (list [][]byte) {
	for len(content) > size {
		list, content = append(list, content[:size]), content[size:]
	}
	return append(list, content)
}

func (t *toc) encode() ([]byte, error) {
	t.Version = 1
	return json.MarshalIndent(t, "", "\t")
}
