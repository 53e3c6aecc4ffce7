// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bufio"
	"errors"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	// freeRatio is the number of plain bytes that a layer may have whatever its ratio: a cache may begin with a file that is mostly zeros.
	// A bomb is found so much later, which is little beside the space that is reserved for any tree.
	freeRatio = 16 << 20
	// maxWindow bounds the memory of a zstd decoder: levels up to 19 need no more.
	maxWindow = 8 << 20
)

type compression int

const (
	none compression = iota
	gzipped
	zstandard
)

// compressionOf maps the media types of layers, and those of caches that were artifacts of their own before they were images.
func compressionOf(mediaType string) (compression, *Error) {
	switch mediaType {
	case "application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar":
		return none, nil
	case "application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip":
		return gzipped, nil
	case "application/vnd.oci.image.layer.v1.tar+zstd", "application/vnd.docker.image.rootfs.diff.tar.zstd":
		return zstandard, nil
	}
	if rest, ok := strings.CutPrefix(mediaType, "application/cache."); ok && strings.Contains(rest, ".content.layer.v1+") {
		return gzipped, nil
	}
	return 0, violation(RuleMedia, "%s is not known: expected a layer of OCI or Docker, as a bare tar or with gzip or zstd", quote(mediaType))
}

// countingReader counts the bytes that were read from a reader, and keeps its error, which a decompressor may hide.
type countingReader struct {
	r   io.Reader
	got int64
	err error
}

// Read implements io.Reader.
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.got += int64(n); err != nil {
		c.err = err
	}
	return n, err
}

// decompressor reads the plain bytes of a layer and holds them against the limits. One goroutine reads it.
type decompressor struct {
	how    compression
	source *countingReader
	in     *bufio.Reader
	ratio  int64
	// left is the largest number of plain bytes, and got their number so far.
	left, got int64
	unpack    io.Reader
	close     func()
}

// end releases the library's decoder.
func (d *decompressor) end() {
	if d.close != nil {
		d.close()
	}
}

// Read implements io.Reader.
func (d *decompressor) Read(b []byte) (int, error) {
	n, err := d.read(b)
	if d.got += int64(n); d.got > d.left {
		return 0, violation(RuleTotal, "the layers unpack to more than is allowed, of which %d were left for this one", d.left)
	}
	used := d.source.got - int64(d.in.Buffered())
	if d.how != none && d.got-freeRatio > d.ratio*used {
		return 0, violation(RuleRatio, "%d bytes unpack to %d, expected at most %d times as many and %d more", used, d.got, d.ratio, freeRatio)
	}
	return n, d.explain(err)
}

func (d *decompressor) read(b []byte) (int, error) {
	if d.unpack == nil {
		if err := d.start(); err != nil {
			return 0, err
		}
	}
	n, err := d.unpack.Read(b)
	if errors.Is(err, zstd.ErrMagicMismatch) && d.got+int64(n) > 0 {
		err = violation(RuleTrailing, "a zstd frame is followed by something other than a frame: %w", err)
	}
	return n, err
}

// start begins to decompress. In both formats a layer may be several parts, one after the other: eStargz and zstd:chunked give each file a
// part of its own. The parts unpack to one tar, and every byte of every part is in the layer's digest.
func (d *decompressor) start() error {
	switch d.how {
	case gzipped:
		z, err := gzip.NewReader(d.in)
		if err != nil {
			return err
		}
		d.unpack = newGzipMembers(d.in, z)
	case zstandard:
		// The decoder passes over skippable frames, and checks the window of every frame.
		z, err := zstd.NewReader(d.in,
			zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return err
		}
		d.unpack, d.close = z, z.Close
	default:
		d.unpack = d.in
	}
	return nil
}

// gzipMembers reads the members of a gzip file as one stream (RFC 1952, 2.2). The library can do that too, but it takes a header that is
// cut off in its name for the end.
type gzipMembers struct {
	in *bufio.Reader
	z  *gzip.Reader
}

// newGzipMembers continues with z, which has read the header of the first member.
func newGzipMembers(in *bufio.Reader, z *gzip.Reader) *gzipMembers {
	z.Multistream(false)
	return &gzipMembers{in: in, z: z}
}

// Read implements io.Reader.
func (m *gzipMembers) Read(b []byte) (int, error) {
	n, err := m.z.Read(b)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if _, err := m.in.Peek(1); err != nil {
		return n, err // io.EOF: that was the last member
	}
	if err := m.z.Reset(m.in); err != nil {
		return n, violation(RuleTrailing, "a gzip member is followed by something other than a member: %w", noEOF(err))
	}
	m.z.Multistream(false)
	return n, nil
}

// noEOF turns io.EOF into io.ErrUnexpectedEOF.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// explain tells errors of the layer's source from those of its content.
func (d *decompressor) explain(err error) error {
	var own *Error
	switch {
	case err == nil, errors.Is(err, io.EOF) && errors.Is(d.source.err, io.EOF):
		return err
	case d.source.err != nil && !errors.Is(d.source.err, io.EOF):
		return d.source.err
	case errors.As(err, &own):
		return own
	}
	return violation(RuleStream, "it does not unpack: %w", noEOF(err))
}
