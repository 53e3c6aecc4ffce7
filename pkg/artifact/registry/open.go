// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
)

// Open opens a blob to be read as it comes. Where the connection breaks or stalls, the stream goes on from there, at the next endpoint
// and with pauses as Fetch does. It ends with io.EOF after the declared number of bytes and never gives more; what is wrong for good is
// another error, which is ErrUnavailable where the registry only broke off.
//
// The bytes are those that the registry sends: whoever reads them compares them with the digest. The stream itself answers only for
// being one: where it has to begin anew, what was given already must come again, or it ends with ErrMismatch.
func (s *Source) Open(ctx context.Context, d artifact.Descriptor) (io.ReadCloser, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &blobReader{cancel: cancel, full: make(chan []byte, streamed), free: make(chan []byte, streamed)}
	for range streamed {
		r.free <- make([]byte, bufferSize)
	}
	to := &replay{ctx: ctx, want: d, out: r}
	go func() {
		defer close(r.full)
		if r.err = s.Pull(ctx, d, to); r.err == nil {
			r.err = io.EOF
		}
	}()
	if err := r.next(); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Layers opens the layers of an image as Unpack wants them.
func (s *Source) Layers(layers []artifact.TreeLayer) unpack.Opener {
	return func(ctx context.Context, layer int) (io.ReadCloser, error) {
		if layer < 0 || layer >= len(layers) {
			return nil, fmt.Errorf("layer %d is %w: there are %d", layer+1, artifact.ErrInvalid, len(layers))
		}
		return s.Open(ctx, layers[layer].Descriptor)
	}
}

// streamed is how many buffers a stream may be ahead of its reader. The network is read while the others are looked at.
const streamed = 4

// blobReader is the reader's end of a stream.
type blobReader struct {
	cancel     context.CancelFunc
	full, free chan []byte
	now, rest  []byte
	// err is how it ended. It is written before full is closed.
	err    error
	closed bool
}

func (r *blobReader) Read(p []byte) (int, error) {
	if r.closed {
		return 0, errClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	if len(r.rest) == 0 {
		if err := r.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

var errClosed = errors.New("the stream of the blob was closed")

func (r *blobReader) next() error {
	if r.now != nil {
		r.free <- r.now[:cap(r.now)]
		r.now = nil
	}
	now, more := <-r.full
	if !more {
		return r.err
	}
	r.now, r.rest = now, now
	return nil
}

// Close returns when nothing is read from the registry any more.
func (r *blobReader) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	r.cancel()
	for range r.full { // to its end
		continue
	}
	return nil
}

// replay is the sink's end of a stream. What was given cannot be taken back: after a Reset it is compared with what comes in its place.
type replay struct {
	ctx  context.Context // of the stream
	want artifact.Descriptor
	out  *blobReader
	// given is how many bytes the reader has, and first their hash. Nobody knows its seed, so nobody can aim at it, and it costs next to
	// nothing: the digest is for the reader to compare.
	given int64
	first maphash.Hash
	// again is how many of them came again, and second the hash of those. It is nil where nothing has to come again.
	again  int64
	second *maphash.Hash
}

// Write is artifact.Sink.
func (r *replay) Write(p []byte) (int, error) {
	n := 0
	if r.second != nil {
		n = int(min(int64(len(p)), r.given-r.again))
		_, _ = r.second.Write(p[:n])
		if r.again += int64(n); r.again == r.given {
			if r.second.Sum64() != r.first.Sum64() {
				return 0, fmt.Errorf("the blob is %w: the first %d bytes changed while it was read", artifact.ErrMismatch, r.given)
			}
			r.second = nil
		}
	}
	for n < len(p) {
		select {
		case buffer := <-r.out.free:
			m := copy(buffer, p[n:])
			_, _ = r.first.Write(buffer[:m])
			r.given, n = r.given+int64(m), n+m
			r.out.full <- buffer[:m]
		case <-r.ctx.Done():
			return n, context.Cause(r.ctx)
		}
	}
	return n, nil
}

// Size is artifact.Sink.
func (r *replay) Size() int64 {
	if r.second != nil {
		return r.again
	}
	return r.given
}

// Sum is artifact.Sink: the digest is for the reader to compare.
func (r *replay) Sum() artifact.Digest { return r.want.Digest }

// Reset is artifact.Sink.
func (r *replay) Reset() error {
	r.second, r.again = nil, 0
	if r.given > 0 {
		r.second = &maphash.Hash{}
		r.second.SetSeed(r.first.Seed())
	}
	return nil
}
