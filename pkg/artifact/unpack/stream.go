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
	// maxPadding is how many zeros may follow a tar: archivers fill their last record.
	maxPadding = 1 << 20
)

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
