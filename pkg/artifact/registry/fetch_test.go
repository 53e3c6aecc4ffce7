// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

func TestFetch(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(1, 300_000)
	_, blob := h.push(t, "v1", layer)
	s, src := newStore(t, artifact.StoreConfig{}), h.source(t)
	if _, err := s.Open(blob.Digest); err == nil || !errors.Is(err, os.ErrNotExist) || !artifact.IsRetryable(err) {
		t.Errorf("opened before it was fetched: %v", err)
	}
	check.Must(t, s.Fetch(t.Context(), src, blob))
	if got := readBlob(t, s, blob.Digest); !bytes.Equal(got, layer) {
		t.Error("other bytes")
	}
	check.Must(t, s.Fetch(t.Context(), src, blob))
	check.Must(t, s.again(t).Fetch(t.Context(), src, blob))
	if n := h.count("GET /v2/" + repo + "/blobs/"); n != 1 {
		t.Errorf("%d requests for the blob", n)
	}
	lie := blob
	lie.Size++
	wantErr(t, s.Fetch(t.Context(), src, lie), artifact.ErrMismatch, "300001", "300000")
	empty := h.pushBlob(t, nil)
	check.Must(t, s.Fetch(t.Context(), src, empty))
	if got := readBlob(t, s, empty.Digest); len(got) != 0 {
		t.Error("not empty")
	}
	var part [4]byte
	b, err := s.Open(blob.Digest)
	check.Must(t, err)
	if n, err := b.ReadAt(part[:], 1000); n != 4 || err != nil || !bytes.Equal(part[:], layer[1000:1004]) {
		t.Errorf("got %d %v", n, err)
	}
	check.Must(t, b.Close())
	checkStore(t, s, 2)
	if p := partials(t, s); len(p) != 0 {
		t.Errorf("left over: %v", p)
	}
	info, err := os.Stat(s.dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// ranged answers as a registry does that knows ranges.
func ranged(data []byte) func(w http.ResponseWriter, r *http.Request) (body []byte) {
	return func(w http.ResponseWriter, r *http.Request) []byte {
		var from, to int
		if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n < 2 {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			return data
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(data)))
		w.Header().Set("Content-Length", fmt.Sprint(to+1-from))
		w.WriteHeader(http.StatusPartialContent)
		return data[from : to+1]
	}
}

// blobsBy answers requests for blobs; n counts them from 1.
func blobsBy(answer func(n int, w http.ResponseWriter, r *http.Request)) func(http.ResponseWriter, *http.Request) bool {
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		answer(int(n.Add(1)), w, r)
		return true
	}
}

func abort() { panic(http.ErrAbortHandler) }

// TestCutAtEachByte: the connection ends after each number of bytes, with a registry that knows ranges and one that does not.
func TestCutAtEachByte(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(2, 150)
	_, blob := h.push(t, "v1", layer)
	for _, knows := range []bool{true, false} {
		for at := range layer {
			var resumed int
			h.set(blobsBy(func(n int, w http.ResponseWriter, r *http.Request) {
				if !knows {
					r.Header.Del("Range")
				}
				body := ranged(layer)(w, r)
				if n == 1 {
					_, _ = w.Write(body[:at])
					w.(http.Flusher).Flush()
					abort()
				}
				resumed = len(layer) - len(body)
				_, _ = w.Write(body)
			}))
			s := newStore(t, artifact.StoreConfig{})
			check.Must(t, s.Fetch(t.Context(), h.source(t), blob))
			checkStore(t, s, 1)
			check.Must(t, s.Close())
			if want := at; knows && resumed != want || !knows && resumed != 0 {
				t.Errorf("cut at %d, ranges %v: went on at %d", at, knows, resumed)
			}
		}
	}
}

func TestBadBlobs(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(3, 200_000)
	_, blob := h.push(t, "v1", layer)
	other := blobBytes(4, len(layer))
	flipped := bytes.Clone(layer)
	flipped[len(flipped)-1] ^= 1
	write := func(w http.ResponseWriter, data []byte) { _, _ = w.Write(data) }
	chunked := func(data []byte) func(int, http.ResponseWriter, *http.Request) {
		return func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			write(w, data)
		}
	}
	for name, c := range map[string]struct {
		answer func(n int, w http.ResponseWriter, r *http.Request)
		kind   error // nil: it succeeds in the end
		words  string
	}{
		"other bytes":   {chunked(other), artifact.ErrMismatch, "expected 200000 with"},
		"last bit":      {chunked(flipped), artifact.ErrMismatch, "digest"},
		"one too long":  {chunked(append(bytes.Clone(layer), 0)), artifact.ErrMismatch, "more bytes"},
		"one too short": {chunked(layer[1:]), artifact.ErrUnavailable, "1 bytes early"},
		"empty":         {chunked(nil), artifact.ErrUnavailable, "200000 bytes early"},
		"404":           {func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, artifact.ErrNotFound, blob.Digest.String()},
		"204":           {func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, artifact.ErrInvalid, "204"},
		"announces less": {func(_ int, w http.ResponseWriter, _ *http.Request) {
			write(w, []byte("short"))
		}, artifact.ErrMismatch, "5 bytes are announced"},
		"announces more": {func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "200001")
			write(w, append(bytes.Clone(layer), 0))
		}, artifact.ErrMismatch, "200001 bytes are announced"},
		"partial unasked": {func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(206)
			write(w, layer)
		}, artifact.ErrMismatch, "206"},
		"unavailable once": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				w.WriteHeader(503)
				return
			}
			write(w, ranged(layer)(w, r))
		}, nil, ""},
		"broken off for ever": {func(_ int, w http.ResponseWriter, r *http.Request) {
			write(w, ranged(layer)(w, r)[:1])
			w.(http.Flusher).Flush()
			abort()
		}, artifact.ErrUnavailable, "broke off"},
		"a third each time, oftener than it is tried": {func(_ int, w http.ResponseWriter, r *http.Request) {
			body := ranged(layer)(w, r)
			write(w, body[:min(len(body), 66_000)])
			if w.(http.Flusher).Flush(); len(body) > 66_000 {
				abort()
			}
		}, nil, ""},
		"wrong beginning, then cut": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				write(w, ranged(other)(w, r)[:1000])
				w.(http.Flusher).Flush()
				abort()
			}
			write(w, ranged(layer)(w, r))
		}, nil, ""},
		"wrong range": {func(n int, w http.ResponseWriter, r *http.Request) {
			switch {
			case n == 1:
				write(w, ranged(layer)(w, r)[:1000])
				w.(http.Flusher).Flush()
				abort()
			case r.Header.Get("Range") != "":
				w.Header().Set("Content-Range", "bytes 1001-199999/200000")
				w.WriteHeader(206)
				write(w, layer[1000:])
			default:
				write(w, layer)
			}
		}, nil, ""},
		"range refused": {func(n int, w http.ResponseWriter, r *http.Request) {
			switch {
			case n == 1:
				write(w, ranged(layer)(w, r)[:1000])
				w.(http.Flusher).Flush()
				abort()
			case r.Header.Get("Range") != "":
				w.WriteHeader(416)
			default:
				write(w, layer)
			}
		}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h.set(blobsBy(c.answer))
			s := newStore(t, artifact.StoreConfig{})
			err := s.Fetch(t.Context(), h.source(t), blob)
			if c.kind == nil {
				check.Must(t, err)
				checkStore(t, s, 1)
				return
			}
			wantErr(t, err, c.kind, c.words, h.host()+"/"+repo)
			checkStore(t, s, 0)
			if left := partials(t, s); len(left) > 0 && !artifact.IsRetryable(err) {
				t.Errorf("left over: %v", left)
			}
			h.set(nil)
			check.Must(t, s.Fetch(t.Context(), h.source(t), blob))
			checkStore(t, s, 1)
		})
	}
}

// TestEndless: a registry that never stops is not read beyond what was declared.
func TestEndless(t *testing.T) {
	h := plainHub(t)
	_, blob := h.push(t, "v1", blobBytes(5, 1000))
	var sent atomic.Int64
	h.set(blobsBy(func(_ int, w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			n, err := w.Write(make([]byte, 4096))
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	s := newStore(t, artifact.StoreConfig{})
	wantErr(t, s.Fetch(t.Context(), h.source(t), blob), artifact.ErrMismatch, "more bytes")
	checkStore(t, s, 0)
}

// TestResumeAfterRestart: a partial blob of an earlier process is hashed again before it is used.
func TestResumeAfterRestart(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(6, 100_000)
	_, blob := h.push(t, "v1", layer)
	for name, c := range map[string]struct {
		left    []byte
		size    int64
		resumed string
		gets    int
	}{
		"half":           {layer[:50_000], blob.Size, "bytes=50000-99999", 1},
		"whole":          {layer, blob.Size, "", 0},
		"zeros":          {make([]byte, 50_000), blob.Size, "bytes=50000-99999", 2},
		"whole of zeros": {make([]byte, 100_000), blob.Size, "", 1},
		"too long":       {append(bytes.Clone(layer), 1), blob.Size, "", 1},
		"other size":     {layer[:50_000], blob.Size + 1, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, artifact.StoreConfig{})
			check.Must(t, os.WriteFile(s.path(partialName(blob.Digest, c.size)), c.left, 0o600))
			h.mu.Lock()
			h.asked, h.seen = nil, nil
			h.mu.Unlock()
			check.Must(t, s.again(t).Fetch(t.Context(), h.source(t), blob))
			checkStore(t, s, 1)
			if p := partials(t, s); len(p) != 0 {
				t.Errorf("left over: %v", p)
			}
			var ranges string
			gets := 0
			for _, r := range h.seen {
				if strings.Contains(r.URL.Path, "/blobs/") {
					gets++
					ranges += r.Header.Get("Range")
				}
			}
			if ranges != c.resumed || gets != c.gets {
				t.Errorf("%d requests for %q, want %d for %q", gets, ranges, c.gets, c.resumed)
			}
		})
	}
}

// TestOneFetch: of many callers, with two stores on one directory as two processes have them, one fetches.
func TestOneFetch(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(7, 500_000)
	_, blob := h.push(t, "v1", layer)
	s := newStore(t, artifact.StoreConfig{})
	stores := []*store{s, s.again(t)}
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			if err := stores[i%2].Fetch(t.Context(), h.source(t), blob); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	checkStore(t, s, 1)
	if n := h.count("/blobs/"); n != 1 {
		t.Errorf("fetched %d times", n)
	}
}

// TestTakeOver: when the first caller gives up, one who waits goes on where it stopped, with its own source.
func TestTakeOver(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(8, 100_000)
	_, blob := h.push(t, "v1", layer)
	halfway := make(chan struct{})
	var rangeAsked atomic.Value
	h.set(blobsBy(func(n int, w http.ResponseWriter, r *http.Request) {
		body := ranged(layer)(w, r)
		if n > 1 {
			rangeAsked.Store(r.Header.Get("Range"))
			_, _ = w.Write(body)
			return
		}
		_, _ = w.Write(body[:30_000])
		w.(http.Flusher).Flush()
		close(halfway)
		<-r.Context().Done()
	}))
	s := newStore(t, artifact.StoreConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- s.Fetch(ctx, h.source(t), blob) }()
	<-halfway
	go func() { second <- s.again(t).Fetch(t.Context(), h.source(t), blob) }()
	check.GrowingLimit(t, "a third fetch waits for the first", func(limit time.Duration) bool {
		waiting, stop := context.WithTimeout(t.Context(), limit)
		defer stop()
		err := s.Fetch(waiting, h.source(t), blob)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("who waits too long got %v", err)
		}
		return strings.Contains(err.Error(), "in use by another fetch")
	})
	check.Eventually(t, "the first fetch has written its 30 000 bytes", func() bool {
		info, err := os.Stat(s.path(partialName(blob.Digest, blob.Size)))
		return err == nil && info.Size() == 30_000
	})
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) || !artifact.IsRetryable(err) {
		t.Errorf("the first got %v", err)
	}
	check.Must(t, <-second)
	if got := rangeAsked.Load(); got != "bytes=30000-99999" {
		t.Errorf("the second asked for %v", got)
	}
	checkStore(t, s, 1)
}

// TestOwnCredentials: a caller whose credentials fail does not fail the one who waits for it.
func TestOwnCredentials(t *testing.T) {
	h := plainHub(t)
	_, blob := h.push(t, "v1", blobBytes(9, 1000))
	tokens(h, "me", 1000)
	c, err := NewClient(h.quick())
	check.Must(t, err)
	s := newStore(t, artifact.StoreConfig{})
	results := map[string]chan error{"me": make(chan error, 1), "you": make(chan error, 1)}
	for user, result := range results {
		keys, err := credentials(secret(login(h.host(), user)))
		check.Must(t, err)
		go func() {
			result <- s.Fetch(t.Context(), c.Source(mustReference(t, h.host()+"/"+repo+":v1"), keys), blob)
		}()
	}
	check.Must(t, <-results["me"])
	if err := <-results["you"]; err != nil {
		wantErr(t, err, artifact.ErrUnauthorized)
	}
	checkStore(t, s, 1)
}
