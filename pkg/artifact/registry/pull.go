// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strings"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// Pull implements artifact.Puller: it writes a whole blob into the sink and compares it with its digest.
func (s *Source) Pull(ctx context.Context, d artifact.Descriptor, to artifact.Sink) error {
	err := s.retry(ctx, to.Size, func(ctx context.Context, at *session) error {
		if at.mirror {
			s.mirrored.Store(true)
		}
		return at.blob(ctx, d, to)
	})
	if err != nil {
		return fmt.Errorf("pull the blob %s of %s: %w", d.Digest, s.ref.Repository(), err)
	}
	return nil
}

// Prove reads a whole blob, compares it with its digest and keeps nothing. It shows that the repository has the blob and that the
// credentials may read it. A HEAD request would show neither: a registry that belongs to a tenant can say that it has any digest.
func (s *Source) Prove(ctx context.Context, d artifact.Descriptor) error {
	if err := d.Check(); err != nil {
		return err
	}
	return s.Pull(ctx, d, &hashed{Hash: sha256.New()})
}

// hashed is a sink that keeps only the digest.
type hashed struct {
	hash.Hash
	size int64
}

func (h *hashed) Write(p []byte) (int, error) {
	h.size += int64(len(p))
	return h.Hash.Write(p)
}

func (h *hashed) Size() int64 { return h.size }

func (h *hashed) Sum() artifact.Digest { return artifact.Digest(h.Hash.Sum(nil)) }

func (h *hashed) Reset() error {
	h.Hash.Reset()
	h.size = 0
	return nil
}

// blob reads the part of a blob that the sink does not have yet. If the digest does not match, the bytes that the sink had before may be
// wrong, from another endpoint or from the disk. So blob reads everything again from this endpoint before it blames the endpoint.
func (s *session) blob(ctx context.Context, d artifact.Descriptor, to artifact.Sink) error {
	resumed := to.Size() > 0
	err := s.blobFrom(ctx, d, to)
	if !errors.Is(err, artifact.ErrMismatch) {
		return err
	}
	if reset := to.Reset(); reset != nil {
		return reset
	}
	if !resumed {
		return err
	}
	if err = s.blobFrom(ctx, d, to); errors.Is(err, artifact.ErrMismatch) {
		err = errors.Join(err, to.Reset())
	}
	return err
}

func (s *session) blobFrom(ctx context.Context, d artifact.Descriptor, to artifact.Sink) error {
	var resp *http.Response
	if to.Size() < d.Size {
		var err error
		if resp, err = s.stream(ctx, d, to); err != nil {
			return err
		}
	}
	if to.Size() != d.Size || to.Sum() != d.Digest {
		return s.mismatch(resp, fmt.Sprintf("%d bytes with digest %s, expected %d with %s", to.Size(), to.Sum(), d.Size, d.Digest))
	}
	return nil
}

// mismatch returns the error of a blob that is another one. Tenants are told if the registry itself gave it: what is elsewhere, where the
// registry sent the request to, is not theirs to know. The answer is nil if all bytes were there before.
func (s *session) mismatch(resp *http.Response, how string) error {
	err := fmt.Errorf("%s: the blob is %w: %s; push the artifact anew", s.host, artifact.ErrMismatch, how)
	if resp == nil {
		return err
	}
	return s.tell(resp, false, err)
}

// stream sends one request for the rest of the blob and appends the answer to the sink. It returns the answer, whose body is closed.
func (s *session) stream(ctx context.Context, d artifact.Descriptor, to artifact.Sink) (*http.Response, error) {
	offset, header := to.Size(), http.Header{}
	if offset > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, d.Size-1))
	}
	resp, err := s.ask(ctx, http.MethodGet, "blobs/"+d.Digest.String(), header,
		http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if offset > 0 && resp.StatusCode == http.StatusOK { // the registry does not support ranges
		if err := to.Reset(); err != nil {
			return nil, err
		}
		offset = 0
	}
	if (resp.StatusCode == http.StatusPartialContent) != (offset > 0) || offset > 0 && !startsAt(resp, offset) {
		part := clip(resp.Header.Get("Content-Range"))
		return nil, s.mismatch(resp, fmt.Sprintf("the answer is %d %s, expected the bytes from %d", resp.StatusCode, part, offset))
	}
	if resp.ContentLength >= 0 && resp.ContentLength != d.Size-offset {
		return nil, s.mismatch(resp, fmt.Sprintf("%d bytes are announced, expected %d", resp.ContentLength, d.Size-offset))
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{to}, io.LimitReader(resp.Body, d.Size-offset), make([]byte, bufferSize))
	if err != nil {
		return nil, err
	}
	return resp, s.checkEnd(resp, n, d.Size-offset)
}

// bufferSize is large enough that hashing and writing cost more than the calls.
const bufferSize = 128 << 10

// checkEnd checks that the stream has ended after the expected number of bytes.
func (s *session) checkEnd(resp *http.Response, got, want int64) error {
	if got < want {
		return fmt.Errorf("%s is %w: the blob ended %d bytes early", s.host, artifact.ErrUnavailable, want-got)
	}
	var more [1]byte
	n, err := io.ReadFull(resp.Body, more[:])
	if n > 0 {
		return s.mismatch(resp, "more bytes follow than were declared")
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// startsAt says whether a partial answer begins at the offset.
func startsAt(resp *http.Response, offset int64) bool {
	return strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", offset))
}

// memory is a sink for small blobs.
type memory struct{ data []byte }

func (m *memory) Write(p []byte) (int, error) {
	m.data = append(m.data, p...)
	return len(p), nil
}

func (m *memory) Size() int64 { return int64(len(m.data)) }

func (m *memory) Sum() artifact.Digest { return artifact.DigestOf(m.data) }

func (m *memory) Reset() error {
	m.data = nil
	return nil
}
