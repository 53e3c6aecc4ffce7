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
	// freeRatio is how many bytes a layer may have beyond its ratio: a cache may begin with a file that is mostly zeros, and what it
	// takes to find a bomb is little beside what is reserved for any tree.
	freeRatio = 16 << 20
	// maxWindow bounds what a zstd decoder keeps: levels up to 19 need no more.
	maxWindow = 8 << 20
)

type compression int

const (
	none compression = iota
	gzipped
	zstandard
)

// compressionOf knows the media types of layers, and those of the caches from before they were images.
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
	return 0, broke(RuleMedia, "%s is not known: expected a layer of OCI or Docker, as a bare tar or with gzip or zstd", quote(mediaType))
}

// taken is how much a decompressor has taken.
type taken struct {
	r   io.Reader
	got int64
	// err is the reader's own, which a decompressor may hide.
	err error
}

// Read is io.Reader.
func (t *taken) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if t.got += int64(n); err != nil {
		t.err = err
	}
	return n, err
}

// plain is what the compressed bytes unpack to. It is read by one goroutine.
type plain struct {
	how   compression
	raw   *taken
	in    *bufio.Reader
	ratio int64
	// left is how many bytes it may have, and got how many it had.
	left, got int64
	unpack    io.Reader
	close     func()
}

// end gives up what unpacks.
func (p *plain) end() {
	if p.close != nil {
		p.close()
	}
}

func (p *plain) Read(b []byte) (int, error) {
	n, err := p.read(b)
	if p.got += int64(n); p.got > p.left {
		return 0, broke(RuleTotal, "the layers unpack to more than is allowed, of which %d were left for this one", p.left)
	}
	used := p.raw.got - int64(p.in.Buffered())
	if p.how != none && p.got-freeRatio > p.ratio*used {
		return 0, broke(RuleRatio, "%d bytes unpack to %d, expected at most %d times as many and %d more", used, p.got, p.ratio, freeRatio)
	}
	return n, p.explain(err)
}

func (p *plain) read(b []byte) (int, error) {
	if p.unpack == nil {
		if err := p.start(); err != nil {
			return 0, err
		}
	}
	n, err := p.unpack.Read(b)
	if errors.Is(err, zstd.ErrMagicMismatch) && p.got+int64(n) > 0 {
		err = broke(RuleTrailing, "something other than a zstd frame follows the compressed tar: %w", err)
	}
	return n, err
}

// start makes the decompressor. Both formats allow a layer to be several parts one after the other, which eStargz and zstd:chunked need to
// give each file a part of its own: the parts unpack to one tar, and every byte of every part is in the layer's digest.
func (p *plain) start() error {
	switch p.how {
	case gzipped:
		z, err := gzip.NewReader(p.in)
		if err != nil {
			return err
		}
		p.unpack = newGzipMembers(p.in, z)
	case zstandard:
		// The decoder passes over skippable frames, and holds each frame's window against the limit.
		z, err := zstd.NewReader(p.in,
			zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return err
		}
		p.unpack, p.close = z, z.Close
	default:
		p.unpack = p.in
	}
	return nil
}

// gzipMembers reads the members of a gzip file as one stream (RFC 1952, 2.2). The decompressor's own way to do that takes a header that
// is cut off in its name for the end.
type gzipMembers struct {
	in *bufio.Reader
	z  *gzip.Reader
}

// newGzipMembers goes on with a member of which the header was read.
func newGzipMembers(in *bufio.Reader, z *gzip.Reader) *gzipMembers {
	z.Multistream(false)
	return &gzipMembers{in: in, z: z}
}

func (m *gzipMembers) Read(b []byte) (int, error) {
	n, err := m.z.Read(b)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if _, err := m.in.Peek(1); err != nil {
		return n, err // io.EOF: that was the last member
	}
	if err := m.z.Reset(m.in); err != nil {
		return n, broke(RuleTrailing, "something other than a gzip member follows the compressed tar: %w", noEOF(err))
	}
	m.z.Multistream(false)
	return n, nil
}

// noEOF makes an end where none may be an unexpected one.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// explain tells an error of the reader from one of what was read.
func (p *plain) explain(err error) error {
	var own *Error
	switch {
	case err == nil, errors.Is(err, io.EOF) && errors.Is(p.raw.err, io.EOF):
		return err
	case p.raw.err != nil && !errors.Is(p.raw.err, io.EOF):
		return p.raw.err
	case errors.As(err, &own):
		return own
	}
	return broke(RuleStream, "it does not unpack: %w", noEOF(err))
}
