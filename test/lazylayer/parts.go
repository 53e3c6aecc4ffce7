// SPDX-License-Identifier: Apache-2.0

package lazylayer

import (
	"bytes"
	"errors"
	"slices"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// GzipMembers packs each piece of a tar, of at most a size, as a gzip member, as compressors do that run in parallel.
func GzipMembers(plain []byte, size int) (Layer, error) {
	var out bytes.Buffer
	var errs []error
	w, parts := gzip.NewWriter(&out), 0
	for piece := range slices.Chunk(plain, size) {
		w.Reset(&out)
		_, err := w.Write(piece)
		errs = append(errs, err, w.Close())
		parts++
	}
	return Layer{MediaType: gzipType, Data: out.Bytes(), Tar: plain, Parts: parts}, errors.Join(errs...)
}

// ZstdFrames packs each piece of a tar, of at most a size, as a zstd frame, and puts some bytes behind each.
func ZstdFrames(plain []byte, size int, between ...byte) (Layer, error) {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return Layer{}, err
	}
	var out []byte
	parts := 0
	for piece := range slices.Chunk(plain, size) {
		out = append(w.EncodeAll(piece, out), between...)
		parts++
	}
	return Layer{MediaType: zstdType, Data: out, Tar: plain, Parts: parts}, w.Close()
}
