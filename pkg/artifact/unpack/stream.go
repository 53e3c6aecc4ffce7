// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
)

const (
	// copySize is large enough that hashing and writing outweigh the calls.
	copySize = 128 << 10
	// maxPadding is the largest number of zeros after a tar: archivers fill their last record.
	maxPadding = 1 << 20
)

// stream reads the tar of a layer, and compares the layer with what was declared when the tar has ended.
type stream struct {
	layer Layer
	// source hashes the compressed bytes. compressed reads them ahead, and plain what they unpack to: one processor alone cannot do both.
	source            *declaredReader
	compressed, plain *readAhead
	// sum is the hash of the plain bytes that were read ahead. It is complete once the end was read.
	sum  hash.Hash
	read int64
	// ended is true after a read found the end.
	ended bool
	// arrived is Options.Arrived.
	arrived func(n int64) error
}

func open(ctx context.Context, layer Layer, r io.Reader, limit Limits, left int64) (*stream, error) {
	how, broken := compressionOf(layer.MediaType)
	if broken != nil {
		return nil, broken
	}
	if layer.Size < 0 || layer.Size > limit.Layer {
		return nil, violation(RuleTotal, "the layer has %d bytes, expected at most %d", layer.Size, limit.Layer)
	}
	s := &stream{layer: layer, sum: sha256.New(), source: &declaredReader{ctx: ctx, from: r, want: layer.Size, sum: sha256.New()}}
	s.compressed = startReadAhead(s.source, copySize, nil, nil)
	counted := &countingReader{r: s.compressed}
	d := &decompressor{how: how, source: counted, in: bufio.NewReaderSize(counted, copySize), ratio: limit.Ratio, left: left}
	s.plain = startReadAhead(d, 2*copySize, s.sum, d.end)
	return s, nil
}

// Read reads the tar.
func (s *stream) Read(b []byte) (int, error) {
	n, err := s.plain.Read(b)
	s.read += int64(n)
	s.ended = s.ended || n == 0 && err != nil
	if s.arrived != nil && n > 0 {
		if full := s.arrived(int64(n)); full != nil {
			return 0, full
		}
	}
	return n, err
}

// finish reads the layer to its end and compares it with what was declared. The caller has read the tar to its end.
func (s *stream) finish() error {
	if s.ended {
		return violation(RuleTar, "it ends without the two blocks of zeros that mark the end of a tar")
	}
	buffer, padding := make([]byte, 32<<10), 0
	for {
		n, err := s.Read(buffer)
		for _, b := range buffer[:n] {
			if b != 0 {
				return violation(RuleTrailing, "something other than zeros follows the tar's end")
			}
		}
		if padding += n; padding > maxPadding {
			return violation(RuleTrailing, "more than %d zeros follow the tar's end", maxPadding)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	// The goroutines that read ahead have seen the last byte and ended, so the hashes are complete.
	if err := s.checkDigest(); err != nil {
		return err
	}
	if got := [sha256.Size]byte(s.sum.Sum(nil)); got != s.layer.DiffID {
		return violation(RuleDiffID, "the tar has sha256:%x, expected sha256:%x", got, s.layer.DiffID)
	}
	return nil
}

// checkDigest compares the digest of the compressed bytes, which were all read.
func (s *stream) checkDigest() error {
	if got := [sha256.Size]byte(s.source.sum.Sum(nil)); got != s.layer.Digest {
		return violation(RuleDigest, "the bytes have sha256:%x, expected sha256:%x", got, s.layer.Digest)
	}
	return nil
}

// drain reads the rest of the compressed bytes without decompressing them, and compares them with the digest. Nothing can be read after
// it.
func (s *stream) drain() error {
	s.plain.stop()
	if _, err := io.Copy(io.Discard, s.compressed); err != nil {
		return err
	}
	return s.checkDigest()
}

// close ends the goroutines, first the one that waits for the other.
func (s *stream) close() {
	s.plain.stop()
	s.compressed.stop()
}

// declaredReader reads the compressed bytes, hashes them, and fails if there are fewer or more than declared.
type declaredReader struct {
	ctx  context.Context // of the call that reads
	from io.Reader
	want int64
	got  int64
	sum  hash.Hash
	err  error
}

// Read implements io.Reader.
func (d *declaredReader) Read(p []byte) (int, error) {
	if d.ctx.Err() != nil {
		d.err = context.Cause(d.ctx)
		return 0, d.err
	}
	if d.got == d.want {
		return 0, d.end()
	}
	n, err := d.from.Read(p[:min(int64(len(p)), d.want-d.got)])
	d.got += int64(n)
	_, _ = d.sum.Write(p[:n])
	switch {
	case errors.Is(err, io.EOF) && d.got < d.want:
		d.err = violation(RuleSize, "it ends after %d bytes, expected %d", d.got, d.want)
		return n, d.err
	case errors.Is(err, io.EOF):
		return n, nil // the next call returns it
	case err != nil:
		d.err = err
	}
	return n, err
}

// end returns io.EOF if nothing follows the declared bytes.
func (d *declaredReader) end() error {
	if d.err != nil {
		return d.err
	}
	var more [1]byte
	switch n, err := io.ReadFull(d.from, more[:]); {
	case n > 0:
		d.err = violation(RuleSize, "more than the declared %d bytes follow", d.want)
	case errors.Is(err, io.EOF):
		d.err = io.EOF
	default:
		d.err = err
	}
	return d.err
}
