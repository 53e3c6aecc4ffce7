// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	// copySize is large enough that hashing and writing outweigh the calls.
	copySize = 128 << 10
	// freeRatio is how many bytes a layer may have beyond its ratio: a cache may begin with a file that is mostly zeros, and what it
	// takes to find a bomb is little beside what is reserved for any tree.
	freeRatio = 16 << 20
	// maxWindow bounds what a zstd decoder keeps: levels up to 19 need no more.
	maxWindow = 8 << 20
	// maxPadding is how many zeros may follow a tar: archivers fill their last record.
	maxPadding = 1 << 20
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

// stream is a layer being read: its plain bytes, and at the end whether all of it is what was declared.
type stream struct {
	layer Layer
	raw   *compressed
	// packed reads raw ahead, and ahead what it unpacks to: each takes a part of what one processor cannot do alone.
	packed, ahead *ahead
	// sum is of what was read ahead. It is complete where the end was read.
	sum hash.Hash
	got int64
	// ended says that a read found the end.
	ended bool
}

func open(ctx context.Context, layer Layer, r io.Reader, limit Limits, left int64) (*stream, error) {
	how, broken := compressionOf(layer.MediaType)
	if broken != nil {
		return nil, broken
	}
	if layer.Size < 0 || layer.Size > limit.Layer {
		return nil, broke(RuleTotal, "the layer has %d bytes, expected at most %d", layer.Size, limit.Layer)
	}
	s := &stream{layer: layer, sum: sha256.New(), raw: &compressed{ctx: ctx, r: r, want: layer.Size, sum: sha256.New()}}
	s.packed = readAhead(s.raw, copySize, nil, nil)
	raw := &taken{r: s.packed}
	p := &plain{how: how, raw: raw, in: bufio.NewReaderSize(raw, copySize), ratio: limit.Ratio, left: left}
	s.ahead = readAhead(p, 2*copySize, s.sum, p.end)
	return s, nil
}

// Read is the tar.
func (s *stream) Read(b []byte) (int, error) {
	n, err := s.ahead.Read(b)
	s.got += int64(n)
	s.ended = s.ended || n == 0 && err != nil
	return n, err
}

// finish reads to the end of everything, and says whether it is what was declared. The tar has ended.
func (s *stream) finish() error {
	if s.ended {
		return broke(RuleTar, "it ends without the two blocks of zeros that mark the end of a tar")
	}
	buffer, padding := make([]byte, 32<<10), 0
	for {
		n, err := s.Read(buffer)
		for _, b := range buffer[:n] {
			if b != 0 {
				return broke(RuleTrailing, "something other than zeros follows the tar's end")
			}
		}
		if padding += n; padding > maxPadding {
			return broke(RuleTrailing, "more than %d zeros follow the tar's end", maxPadding)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	// The goroutines that read ahead are at their end and saw the last byte, so these are no more than looked at.
	if err := s.checkDigest(); err != nil {
		return err
	}
	if got := [sha256.Size]byte(s.sum.Sum(nil)); got != s.layer.DiffID {
		return broke(RuleDiffID, "the tar has sha256:%x, expected sha256:%x", got, s.layer.DiffID)
	}
	return nil
}

// checkDigest compares all bytes as they came, of which none is left to be read.
func (s *stream) checkDigest() error {
	if got := [sha256.Size]byte(s.raw.sum.Sum(nil)); got != s.layer.Digest {
		return broke(RuleDigest, "the bytes have sha256:%x, expected sha256:%x", got, s.layer.Digest)
	}
	return nil
}

// drain reads what is left without a look at what it unpacks to, and says whether the bytes are those that were declared. Nothing can be
// read after it.
func (s *stream) drain() error {
	s.ahead.stop()
	if _, err := io.Copy(io.Discard, s.packed); err != nil {
		return err
	}
	return s.checkDigest()
}

// plainBytes is how many there were.
func (s *stream) plainBytes() int64 { return s.got }

// close first ends who waits for the other.
func (s *stream) close() {
	s.ahead.stop()
	s.packed.stop()
}

// compressed is the bytes as they come.
type compressed struct {
	ctx  context.Context // of the call that reads
	r    io.Reader
	want int64
	got  int64
	sum  hash.Hash
	err  error
}

func (c *compressed) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		c.err = context.Cause(c.ctx)
		return 0, c.err
	}
	if c.got == c.want {
		return 0, c.end()
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.want-c.got)])
	c.got += int64(n)
	_, _ = c.sum.Write(p[:n])
	switch {
	case errors.Is(err, io.EOF) && c.got < c.want:
		c.err = broke(RuleSize, "it ends after %d bytes, expected %d", c.got, c.want)
		return n, c.err
	case errors.Is(err, io.EOF):
		return n, nil // the next call says so
	case err != nil:
		c.err = err
	}
	return n, err
}

// end says that nothing follows.
func (c *compressed) end() error {
	if c.err != nil {
		return c.err
	}
	var more [1]byte
	switch n, err := io.ReadFull(c.r, more[:]); {
	case n > 0:
		c.err = broke(RuleSize, "more than the declared %d bytes follow", c.want)
	case errors.Is(err, io.EOF):
		c.err = io.EOF
	default:
		c.err = err
	}
	return c.err
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
	if errors.Is(err, io.EOF) {
		err = p.ended()
	}
	return n, err
}

func (p *plain) start() error {
	switch p.how {
	case gzipped:
		z, err := gzip.NewReader(p.in)
		if err != nil {
			return err
		}
		z.Multistream(false)
		p.unpack = z
	case zstandard:
		z, err := zstd.NewReader(newFrame(p.in),
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

// ended is io.EOF where the compressed bytes end with the plain ones.
func (p *plain) ended() error {
	_, err := p.in.Peek(1)
	if err == nil {
		return broke(RuleTrailing, "more follows after the compressed tar: expected one gzip member or zstd frame")
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
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return broke(RuleStream, "it does not unpack: %v", err)
}

// ahead reads in a goroutine of its own, as decompressing takes as long as all else together, and hashing as long as the network. A sum of
// what was read is made in another.
type ahead struct {
	// read are chunks that were read, and full those that may be had: where nothing is summed they are one.
	read, full chan chunk
	free       chan []byte
	stopped    chan struct{}
	once       sync.Once
	ended      sync.WaitGroup
	now        chunk
	rest       []byte
}

type chunk struct {
	data []byte
	err  error
}

const chunks = 4

// readAhead reads in pieces of a size. What was read is added to the sum before it can be had, unless that is nil. end is called where
// nothing is read any more, unless it is nil.
func readAhead(r io.Reader, size int, sum hash.Hash, end func()) *ahead {
	a := &ahead{full: make(chan chunk, chunks), free: make(chan []byte, chunks), stopped: make(chan struct{})}
	for range chunks {
		a.free <- make([]byte, size)
	}
	a.read = a.full
	if sum != nil {
		a.read = make(chan chunk, chunks)
		a.ended.Go(func() { a.add(sum) })
	}
	a.ended.Go(func() { a.run(r, end) })
	return a
}

func (a *ahead) run(r io.Reader, end func()) {
	if end != nil {
		defer end()
	}
	for {
		var buffer []byte
		select {
		case buffer = <-a.free:
		case <-a.stopped:
			return
		}
		n, err := fill(r, buffer)
		if !a.give(a.read, chunk{data: buffer[:n], err: err}) || err != nil {
			return
		}
	}
}

// add adds each chunk to the sum.
func (a *ahead) add(sum hash.Hash) {
	for {
		select {
		case c := <-a.read:
			_, _ = sum.Write(c.data)
			if !a.give(a.full, c) || c.err != nil {
				return
			}
		case <-a.stopped:
			return
		}
	}
}

// give says whether somebody wants it.
func (a *ahead) give(to chan<- chunk, c chunk) bool {
	select {
	case to <- c:
		return true
	case <-a.stopped:
		return false
	}
}

// fill is io.ReadFull with the error that there was, and with one of a panic: a decompressor that hostile bytes overwhelm must not end
// the process.
func fill(r io.Reader, buffer []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = broke(RuleStream, "the decompressor gave up: %s", quote(fmt.Sprint(v)))
		}
	}()
	for n < len(buffer) && err == nil {
		var more int
		more, err = r.Read(buffer[n:])
		n += more
	}
	return n, err
}

func (a *ahead) Read(b []byte) (int, error) {
	if len(a.rest) == 0 {
		if a.now.err != nil {
			return 0, a.now.err
		}
		if a.now.data != nil {
			a.free <- a.now.data[:cap(a.now.data)]
		}
		a.now = <-a.full
		a.rest = a.now.data
		if len(a.rest) == 0 && a.now.err != nil {
			return 0, a.now.err
		}
	}
	n := copy(b, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// stop returns when nothing reads any more.
func (a *ahead) stop() {
	a.once.Do(func() { close(a.stopped) })
	a.ended.Wait()
}
