// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"sync/atomic"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
)

// Open opens a blob as a stream. If the connection breaks or stalls, the stream resumes where it stopped, at the next endpoint and with
// the same pauses as a fetch. The stream ends with io.EOF after exactly the declared number of bytes, and with another error if that
// cannot be reached; the error is artifact.ErrUnavailable if a later try may succeed.
//
// The caller must compare the bytes with the digest. The stream only guarantees that all bytes are of one blob: if it has to start again
// from the beginning, the bytes that the caller already has must come again, or the stream ends with artifact.ErrMismatch.
func (s *Source) Open(ctx context.Context, d artifact.Descriptor) (io.ReadCloser, error) {
	return s.open(ctx, d, nil)
}

// open is Open. If kept is not nil, the stream begins with what it has, and everything else is added to it.
func (s *Source) open(ctx context.Context, d artifact.Descriptor, kept *artifact.KeptLayer) (io.ReadCloser, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &blobReader{cancel: cancel, filled: make(chan []byte, streamBuffers), empty: make(chan []byte, streamBuffers)}
	for range streamBuffers {
		r.empty <- make([]byte, bufferSize)
	}
	to := &replay{ctx: ctx, want: d, out: r}
	go func() {
		defer close(r.filled)
		if kept != nil {
			defer kept.Close()
			to.begin(kept, s.received)
			if to.sent > 0 {
				s.resumed.Store(true)
			}
		}
		if r.err = s.Pull(ctx, d, to); r.err == nil {
			r.err = io.EOF
		}
		if to.changed {
			s.mixed.Store(true)
		}
	}()
	if err := r.next(); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Layers returns an opener of the layers of an image, for artifact.Store.Unpack.
func (s *Source) Layers(layers []artifact.TreeLayer) unpack.Opener {
	return func(ctx context.Context, layer int) (io.ReadCloser, error) {
		if layer < 0 || layer >= len(layers) {
			return nil, fmt.Errorf("layer %d is %w: there are %d", layer+1, artifact.ErrInvalid, len(layers))
		}
		return s.Open(ctx, layers[layer].Descriptor)
	}
}

// LayersKept is Layers for a namespace's object. What comes of large layers is kept in the store until DropKept, and read from there the
// next time. Then a refusal of the tree may be due to the store's disk: see Again.
func (s *Source) LayersKept(store *artifact.Store, layers []artifact.TreeLayer, namespace string) unpack.Opener {
	plain := s.Layers(layers)
	return func(ctx context.Context, layer int) (io.ReadCloser, error) {
		if layer < 0 || layer >= len(layers) {
			return plain(ctx, layer)
		}
		d := layers[layer].Descriptor
		return s.open(ctx, d, artifact.KeepLayer(ctx, store, d, s.ref.Repository(), namespace))
	}
}

// Again returns the source from which layers are to be read once more whose tree was refused: that of Direct, if a mirror was asked, or
// once the same, if some bytes came from the store. Otherwise it returns nil. What is refused again may be asked for at its own Again.
func (s *Source) Again() *Source {
	if u := s.Direct(); u != nil && s.mirrored.Load() {
		return u
	}
	if s.resumed.Swap(false) {
		return s
	}
	return nil
}

// Mixed reports whether a stream ended because an endpoint, from which it had to start again, does not have the bytes that came before,
// from another one or from the store. The error does not always tell: it may be retryable, since another endpoint only broke off. Another
// try would mix the same.
func (s *Source) Mixed() bool { return s.mixed.Load() }

// streamBuffers is how many buffers a stream may be ahead of its reader, so that network and reader work at the same time.
const streamBuffers = 4

// blobReader is the caller's end of a stream.
type blobReader struct {
	cancel          context.CancelFunc
	filled, empty   chan []byte
	current, unread []byte
	// err is why the stream ended. It is set before filled is closed.
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
	if len(r.unread) == 0 {
		if err := r.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.unread)
	r.unread = r.unread[n:]
	return n, nil
}

var errClosed = errors.New("the stream of the blob was closed")

func (r *blobReader) next() error {
	if r.current != nil {
		r.empty <- r.current[:cap(r.current)]
		r.current = nil
	}
	current, more := <-r.filled
	if !more {
		return r.err
	}
	r.current, r.unread = current, current
	return nil
}

// Close stops reading from the registry, and waits until it has stopped.
func (r *blobReader) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	r.cancel()
	for range r.filled { // until it is closed
		continue
	}
	return nil
}

// replay is the sink that fills a stream. Bytes that the caller has cannot be taken back, so after a Reset replay compares the bytes that
// come again with them.
type replay struct {
	ctx  context.Context // the stream's
	want artifact.Descriptor
	out  *blobReader
	// sent is how many bytes the caller has, and sentHash their hash. Its seed is secret, so a registry cannot construct a collision. The
	// digest would cost more, and the caller compares that.
	sent     int64
	sentHash maphash.Hash
	// kept gets all bytes, too, if it is not nil.
	kept *artifact.KeptLayer
	// replayed is how many of them came again after a Reset, and replayHash the hash of those. It is nil if none has to come again.
	replayed   int64
	replayHash *maphash.Hash
	// changed: other bytes came again.
	changed bool
}

// begin gives the caller what is kept, and keeps what comes. If not all of it can be read, nothing is kept. What the caller takes counts as
// received: a fetch that goes on with much of it moves, although no registry sends anything.
func (r *replay) begin(kept *artifact.KeptLayer, received *atomic.Int64) {
	size := kept.Size()
	if size > 0 {
		if f, err := kept.Open(); err == nil {
			_, _ = io.CopyBuffer(&counted{to: r, n: received}, io.LimitReader(f, size), make([]byte, bufferSize))
			_ = f.Close()
		}
	}
	switch {
	case r.sent == size:
		r.kept = kept
	case r.ctx.Err() == nil:
		kept.End()
	}
}

// counted counts what is written.
type counted struct {
	to io.Writer
	n  *atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n.Add(int64(n))
	return n, err
}

// Write implements artifact.Sink.
func (r *replay) Write(p []byte) (int, error) {
	if r.kept != nil {
		r.kept.Write(p)
	}
	n := 0
	if r.replayHash != nil {
		n = int(min(int64(len(p)), r.sent-r.replayed))
		_, _ = r.replayHash.Write(p[:n])
		if r.replayed += int64(n); r.replayed == r.sent {
			if r.replayHash.Sum64() != r.sentHash.Sum64() {
				r.changed = true
				return 0, fmt.Errorf("the blob is %w: the first %d bytes changed while it was read", artifact.ErrMismatch, r.sent)
			}
			r.replayHash = nil
		}
	}
	for n < len(p) {
		select {
		case buffer := <-r.out.empty:
			m := copy(buffer, p[n:])
			_, _ = r.sentHash.Write(buffer[:m])
			r.sent, n = r.sent+int64(m), n+m
			r.out.filled <- buffer[:m]
		case <-r.ctx.Done():
			return n, context.Cause(r.ctx)
		}
	}
	return n, nil
}

// Size implements artifact.Sink.
func (r *replay) Size() int64 {
	if r.replayHash != nil {
		return r.replayed
	}
	return r.sent
}

// Sum implements artifact.Sink. It returns the expected digest, since the caller compares the real one.
func (r *replay) Sum() artifact.Digest { return r.want.Digest }

// Reset implements artifact.Sink.
func (r *replay) Reset() error {
	r.replayHash, r.replayed = nil, 0
	if r.kept != nil {
		r.kept.Reset()
	}
	if r.sent > 0 {
		r.replayHash = &maphash.Hash{}
		r.replayHash.SetSeed(r.sentHash.Seed())
	}
	return nil
}
