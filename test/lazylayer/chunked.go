// SPDX-License-Identifier: Apache-2.0

package lazylayer

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// chunkedMagic ends the footer.
const chunkedMagic = "GNUlInUx"

// ZstdChunked makes a tar one of zstd:chunked as containers/storage does (docs/containers-storage-zstd-chunked.md): each content is in
// frames of its own, with at most chunk bytes each, and three frames that decoders skip follow: the index, what is needed to make the same
// tar again, and a footer that says where the two are. The tar stays as it is.
func ZstdChunked(plain []byte, chunk int) (Layer, error) {
	list, rest, err := entries(plain)
	if err != nil {
		return Layer{}, err
	}
	pack, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return Layer{}, err
	}
	defer func() { _ = pack.Close() }()
	w := &chunkedWriter{pack: pack}
	for i := range list {
		w.add(&list[i], chunk)
	}
	w.frame(append(w.header, rest...))
	return w.finish(plain)
}

type chunkedWriter struct {
	pack *zstd.Encoder
	out  bytes.Buffer
	// header is the headers that no frame has yet, with the padding before them.
	header []byte
	index  toc
	split  bytes.Buffer
	parts  int
}

// frame writes one frame.
func (w *chunkedWriter) frame(data []byte) {
	w.out.Write(w.pack.EncodeAll(data, nil))
	w.parts++
}

func (w *chunkedWriter) add(e *entry, chunk int) {
	w.header = append(w.header, e.raw...)
	// What tar-split keeps: the bytes of a tar that are in no content, and the names in between.
	fmt.Fprintf(&w.split, "{\"type\":2,\"payload\":%q}\n", base64.StdEncoding.EncodeToString(e.raw))
	described := e.toc()
	if e.Size == 0 {
		w.index.Entries = append(w.index.Entries, described)
		return
	}
	w.frame(w.header)
	w.header = nil
	pieces, offset := chunks(e.content, chunk), int64(0)
	for i, piece := range pieces {
		if i > 0 {
			described = tocEntry{Name: e.Name, Type: "chunk"}
		}
		described.Offset = int64(w.out.Len())
		w.frame(piece)
		described.EndOffset = int64(w.out.Len())
		if len(pieces) > 1 {
			described.ChunkOffset, described.ChunkSize, described.ChunkDigest = offset, int64(len(piece)), digest(piece)
		}
		offset += int64(len(piece))
		w.index.Entries = append(w.index.Entries, described)
	}
	name, _ := json.Marshal(e.Name) // text is always JSON
	fmt.Fprintf(&w.split, "{\"type\":1,\"size\":%d,\"name\":%s}\n", e.Size, name)
}

func (w *chunkedWriter) finish(plain []byte) (Layer, error) {
	split := w.pack.EncodeAll(w.split.Bytes(), nil)
	w.index.TarSplitDigest = digest(split)
	index, err := w.index.encode()
	if err != nil {
		return Layer{}, err
	}
	packed := w.pack.EncodeAll(index, nil)
	indexAt := w.skippable(packed)
	splitAt := w.skippable(split)
	var footer []byte
	for _, n := range []int{indexAt, len(packed), len(index), 1, splitAt, len(split), w.split.Len()} {
		footer = binary.LittleEndian.AppendUint64(footer, uint64(n))
	}
	w.skippable(append(footer, chunkedMagic...))
	const prefix = "io.github.containers.zstd-chunked."
	return Layer{
		MediaType: zstdType, Data: w.out.Bytes(), Tar: plain, Parts: w.parts,
		Annotations: map[string]string{
			prefix + "manifest-checksum": digest(packed),
			prefix + "manifest-position": fmt.Sprintf("%d:%d:%d:1", indexAt, len(packed), len(index)),
			prefix + "tarsplit-position": fmt.Sprintf("%d:%d:%d", splitAt, len(split), w.split.Len()),
		},
	}, nil
}

// skippable writes a frame that decoders pass over (RFC 8878, 3.1.2), and says where its content is.
func (w *chunkedWriter) skippable(data []byte) (at int) {
	w.out.Write(Skippable(data))
	w.parts++
	return w.out.Len() - len(data)
}

// Skippable is such a frame.
func Skippable(data []byte) []byte {
	head := binary.LittleEndian.AppendUint32([]byte{0x50, 0x2a, 0x4d, 0x18}, uint32(len(data)))
	return append(head, data...)
}
