// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// wantErr fails unless err is of the kind, is retryable as that kind is, and its text has all the words.
func wantErr(t testing.TB, err, kind error, words ...string) {
	t.Helper()
	check.WantErr(t, err, kind, words...)
	if got, want := IsRetryable(err), errors.Is(kind, ErrUnavailable) || errors.Is(kind, ErrNoSpace); got != want {
		t.Errorf("retryable %v, want %v: %v", got, want, err)
	}
}

// hub has blobs in memory, and brings them into a sink as a registry does.
type hub struct {
	mu     sync.Mutex
	blobs  map[Digest][]byte
	pulled int
}

func newHub() *hub { return &hub{blobs: map[Digest][]byte{}} }

func (h *hub) pushBlob(data []byte) Descriptor {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := Descriptor{MediaType: "application/octet-stream", Digest: DigestOf(data), Size: int64(len(data))}
	h.blobs[d.Digest] = data
	return d
}

// count is how many blobs were asked for.
func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pulled
}

// Pull is Puller. It goes on where the sink ends, and begins anew where that does not fit.
func (h *hub) Pull(ctx context.Context, d Descriptor, to Sink) error {
	h.mu.Lock()
	data, ok := h.blobs[d.Digest]
	h.pulled++
	h.mu.Unlock()
	if !ok {
		return fmt.Errorf("the blob %s is %w", d.Digest, ErrNotFound)
	}
	for range 2 {
		for chunk := range slices.Chunk(data[min(to.Size(), d.Size):], 64<<10) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if _, err := to.Write(chunk); err != nil {
				return err
			}
		}
		if to.Size() == d.Size && to.Sum() == d.Digest {
			return nil
		}
		if err := to.Reset(); err != nil {
			return err
		}
	}
	return fmt.Errorf("the blob %s is %w", d.Digest, ErrMismatch)
}

func blobBytes(seed uint64, size int) []byte {
	data := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(data)
	return data
}

func newStore(t testing.TB, config StoreConfig) *Store {
	t.Helper()
	s, err := OpenStore(filepath.Join(t.TempDir(), "store"), config)
	check.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// again is the same directory, as another process has it.
func (s *Store) again(t testing.TB) *Store {
	t.Helper()
	other, err := OpenStore(s.dir, s.config)
	check.Must(t, err)
	t.Cleanup(func() { _ = other.Close() })
	return other
}

// wrong lists what is in blobs and is not what its name says. It knows the directory only.
func wrong(dir string) (bad []string, good int) {
	blobs := filepath.Join(dir, "blobs", "sha256")
	entries, err := os.ReadDir(blobs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return []string{err.Error()}, 0
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(blobs, e.Name()))
		if sum := DigestOf(data).Hex(); err != nil || sum != e.Name() {
			bad = append(bad, fmt.Sprintf("%s is %d bytes with digest %s (%v)", e.Name(), len(data), sum, err))
			continue
		}
		good++
	}
	return bad, good
}

func checkStore(t testing.TB, s *Store, blobs int) {
	t.Helper()
	bad, good := wrong(s.dir)
	if len(bad) > 0 || good != blobs {
		t.Errorf("%d good blobs, want %d; wrong: %v", good, blobs, bad)
	}
}

func partials(t testing.TB, s *Store) (names []string) {
	t.Helper()
	check.Must(t, s.each(tmpDir, func(name string, _ fs.FileInfo) { names = append(names, name) }))
	return names
}

func readBlob(t testing.TB, s *Store, d Digest) []byte {
	t.Helper()
	b, err := s.Open(d)
	check.Must(t, err)
	defer func() { _ = b.Close() }()
	got, err := io.ReadAll(io.NewSectionReader(b, 0, b.Size()+1))
	check.Must(t, err)
	if int64(len(got)) != b.Size() || DigestOf(got) != d {
		t.Errorf("got %d bytes with digest %s, want %d with %s", len(got), DigestOf(got), b.Size(), d)
	}
	return got
}
