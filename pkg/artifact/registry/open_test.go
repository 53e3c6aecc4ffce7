// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

// readAll opens a blob and reads it to its end.
func readAll(ctx context.Context, src *Source, d artifact.Descriptor) ([]byte, error) {
	r, err := src.Open(ctx, d)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

func TestOpen(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(1, 10*bufferSize+17) // more than may be read ahead
	blob := h.pushBlob(t, layer)
	r, err := h.source(t).Open(t.Context(), blob)
	check.Must(t, err)
	check.Must(t, iotest.TestReader(r, layer))
	check.Must(t, r.Close())
	check.Must(t, r.Close())
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, errClosed) {
		t.Errorf("after it was closed: %v", err)
	}
	if data, err := readAll(t.Context(), h.source(t), h.pushBlob(t, nil)); err != nil || len(data) > 0 {
		t.Errorf("an empty blob: %d bytes, %v", len(data), err)
	}
	_, err = h.source(t).Open(t.Context(), artifact.Descriptor{Digest: artifact.DigestOf([]byte("none")), Size: 4})
	wantErr(t, err, artifact.ErrNotFound)
	_, err = h.source(t).Open(t.Context(), artifact.Descriptor{Size: 4})
	wantErr(t, err, artifact.ErrInvalid)
	_, err = h.source(t).Layers(nil)(t.Context(), 0)
	wantErr(t, err, artifact.ErrInvalid, "layer 1")
}

// TestOpenCutAtEachByte: the connection ends after each number of bytes, with a registry that knows ranges and one that does not.
func TestOpenCutAtEachByte(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(2, 150)
	blob := h.pushBlob(t, layer)
	for _, knows := range []bool{true, false} {
		for at := range layer {
			resumed := 0
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
			got, err := readAll(t.Context(), h.source(t), blob)
			if err != nil || !bytes.Equal(got, layer) {
				t.Fatalf("cut at %d, ranges %v: %d bytes, %v", at, knows, len(got), err)
			}
			if want := at; knows && resumed != want || !knows && resumed != 0 {
				t.Errorf("cut at %d, ranges %v: went on at %d", at, knows, resumed)
			}
		}
	}
}

func TestOpenBadBlobs(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(3, 200_000)
	blob := h.pushBlob(t, layer)
	other := blobBytes(4, len(layer))
	cut := func(w http.ResponseWriter, body []byte) {
		_, _ = w.Write(body)
		w.(http.Flusher).Flush()
		abort()
	}
	for name, c := range map[string]struct {
		answer func(n int, w http.ResponseWriter, r *http.Request)
		kind   error // nil: it succeeds in the end
		words  string
		given  int // the most that may be given before the error
	}{
		"one too long": {func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			_, _ = w.Write(append(bytes.Clone(layer), 0))
		}, artifact.ErrMismatch, "more bytes", len(layer)},
		"announces more": {func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "200001")
			_, _ = w.Write(append(bytes.Clone(layer), 0))
		}, artifact.ErrMismatch, "announced", 0},
		"ends early for ever": {func(_ int, w http.ResponseWriter, r *http.Request) {
			body := ranged(layer)(w, r)
			w.Header().Del("Content-Length")
			w.(http.Flusher).Flush()
			_, _ = w.Write(body[:min(len(body), 1000)])
		}, artifact.ErrUnavailable, "not available", 3000},
		"404 after the beginning": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				cut(w, ranged(layer)(w, r)[:1000])
			}
			w.WriteHeader(http.StatusNotFound)
		}, artifact.ErrNotFound, blob.Digest.String(), 1000},
		"begins anew, the same": {func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			if body := ranged(layer)(w, r); n < 3 {
				cut(w, body[:n*70_000])
			} else {
				_, _ = w.Write(body)
			}
		}, nil, "", 0},
		"begins anew, another": {func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			if n == 1 {
				cut(w, ranged(layer)(w, r)[:100_000])
			}
			_, _ = w.Write(ranged(other)(w, r))
		}, artifact.ErrMismatch, "100000 bytes changed", 100_000},
		"other ranges than asked for": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				cut(w, ranged(layer)(w, r)[:100_000])
			}
			if r.Header.Get("Range") == "" {
				_, _ = w.Write(ranged(layer)(w, r))
				return
			}
			w.Header().Set("Content-Range", "bytes 0-199999/200000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(layer)
		}, nil, "", 0},
		"busy twice": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n < 3 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write(ranged(layer)(w, r))
		}, nil, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			h.set(blobsBy(c.answer))
			got, err := readAll(t.Context(), h.source(t), blob)
			if c.kind == nil {
				check.Must(t, err)
				if !bytes.Equal(got, layer) {
					t.Errorf("other bytes")
				}
				return
			}
			wantErr(t, err, c.kind, c.words)
			if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
				t.Errorf("who reads a format would take this for its end: %v", err)
			}
			if len(got) > c.given || !bytes.Equal(got, layer[:len(got)]) {
				t.Errorf("%d bytes were given, expected at most %d, and right ones", len(got), c.given)
			}
		})
	}
}

// TestOpenOfMirrors: the registry continues a stream that a mirror began, and a mirror that sent wrong bytes is found out.
func TestOpenOfMirrors(t *testing.T) {
	mirror, h := plainHub(t), plainHub(t)
	layer := blobBytes(5, 300_000)
	blob := h.pushBlob(t, layer)
	for name, begins := range map[string][]byte{"right": layer, "wrong": blobBytes(6, len(layer))} {
		mirror.set(blobsBy(func(n int, w http.ResponseWriter, r *http.Request) {
			if n > 1 {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			_, _ = w.Write(ranged(begins)(w, r)[:150_000])
			w.(http.Flusher).Flush()
			abort()
		}))
		config := h.quick()
		config.PlainHTTP = append(config.PlainHTTP, mirror.host())
		config.Mirrors = Mirrors{h.host(): {{Host: mirror.host()}}}
		got, err := readAll(t.Context(), newSource(t, config, h.host()+"/"+repo+":v1"), blob)
		check.Must(t, err)
		if !bytes.Equal(got[150_000:], layer[150_000:]) || !bytes.Equal(got[:150_000], begins[:150_000]) {
			t.Errorf("%s: other bytes", name)
		}
	}
}

func TestOpenEnds(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(7, 10*bufferSize)
	blob := h.pushBlob(t, layer)
	silent := make(chan struct{})
	h.set(blobsBy(func(_ int, w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(ranged(layer)(w, r)[:bufferSize])
		w.(http.Flusher).Flush()
		select {
		case <-silent:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { close(silent) })
	ctx, cancel := context.WithCancelCause(t.Context())
	r, err := h.source(t).Open(ctx, blob)
	check.Must(t, err)
	_, err = io.ReadFull(r, make([]byte, bufferSize))
	check.Must(t, err)
	gone := errors.New("nobody waits any more")
	cancel(gone)
	if _, err := io.ReadAll(r); !errors.Is(err, gone) || !artifact.IsRetryable(err) {
		t.Errorf("its context ended: %v", err)
	}
	check.Must(t, r.Close())
	r, err = h.source(t).Open(t.Context(), blob)
	check.Must(t, err)
	check.Must(t, r.Close()) // which hangs where it waits for the registry

	config := h.quick()
	config.Tries = 2
	check.GrowingLimit(t, "the registry sends something before it counts as stalled", func(limit time.Duration) bool {
		config.Stall = limit
		got, err := readAll(t.Context(), newSource(t, config, h.host()+"/"+repo+":v1"), blob)
		if errors.Is(err, artifact.ErrUnavailable) {
			return false
		}
		check.Must(t, err)
		if !bytes.Equal(got, layer) {
			t.Error("other bytes after each stall")
		}
		return true
	})
	h.set(blobsBy(func(_ int, w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(ranged(layer)(w, r)[:10])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	_, err = readAll(t.Context(), newSource(t, config, h.host()+"/"+repo+":v1"), blob)
	wantErr(t, err, artifact.ErrUnavailable, errStalled.Error())
}

// TestLayersKept: a layer that broke off for good is gone on with by the next source, also after a restart, with a request for the rest
// only. A registry without ranges sends all of it again. Bytes of the store that are wrong are the reader's to find, and are said to be
// of the store.
func TestLayersKept(t *testing.T) {
	layer := blobBytes(51, 200_000)
	for name, c := range map[string]struct {
		knows, damaged bool
		sent           int64
	}{
		"ranges": {true, false, 80_000}, "no ranges": {false, false, 200_000}, "damaged": {true, true, 80_000},
	} {
		t.Run(name, func(t *testing.T) {
			h := plainHub(t)
			blob := h.pushBlob(t, layer)
			s := newStore(t, artifact.StoreConfig{KeepFrom: 1})
			layers := []artifact.TreeLayer{{Descriptor: blob}}
			read := func() (*Source, []byte, error) {
				src := h.source(t)
				r, err := src.LayersKept(s.Store, layers, "team-a")(t.Context(), 0)
				if err != nil {
					return src, nil, err
				}
				defer func() { _ = r.Close() }()
				got, err := io.ReadAll(r)
				return src, got, err
			}
			h.set(blobsBy(func(n int, w http.ResponseWriter, r *http.Request) {
				if n > 1 {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				_, _ = w.Write(ranged(layer)(w, r)[:120_000])
				w.(http.Flusher).Flush()
				abort()
			}))
			src, got, err := read()
			if len(got) != 120_000 || !artifact.IsRetryable(err) || src.Again() != nil {
				t.Fatalf("at first: %d bytes, %v", len(got), err)
			}
			if names := partials(t, s); c.damaged && len(names) == 1 {
				check.Must(t, os.WriteFile(s.path("tmp/"+names[0]), make([]byte, 120_000), 0o600))
			}
			s = openStore(t, s.dir, artifact.StoreConfig{KeepFrom: 1})
			var sent atomic.Int64
			h.set(blobsBy(func(_ int, w http.ResponseWriter, r *http.Request) {
				if !c.knows {
					r.Header.Del("Range")
				}
				content := ranged(layer)(w, r)
				sent.Add(int64(len(content))) // before the reader can have it
				_, _ = w.Write(content)
			}))
			src, got, err = read()
			if err != nil || bytes.Equal(got, layer) == c.damaged || sent.Load() != c.sent {
				t.Errorf("then: %d bytes of which %d were sent, want %d: %v", len(got), sent.Load(), c.sent, err)
			}
			if src.Again() != src {
				t.Error("nothing came from the store")
			}
			artifact.DropKept(s.Store, layers, h.host()+"/"+repo, "team-a")
			if left := partials(t, s); len(left) != 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
}

// TestKeptBytesCount: bytes that come from the store count as they are read, like those of a registry. A large layer of which everything is
// kept would otherwise count as one that does not move, and would be ended in each try.
func TestKeptBytesCount(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(52, 40*bufferSize)
	blob := h.pushBlob(t, layer)
	s := newStore(t, artifact.StoreConfig{KeepFrom: 1})
	k := artifact.KeepLayer(t.Context(), s.Store, blob, h.host()+"/"+repo, "team-a")
	k.Write(layer)
	k.Close()
	received, src := &atomic.Int64{}, h.source(t)
	src.CountInto(received)
	r, err := src.LayersKept(s.Store, []artifact.TreeLayer{{Descriptor: blob}}, "team-a")(t.Context(), 0)
	check.Must(t, err)
	defer r.Close()
	for part := 1; part <= 2; part++ {
		_, err := io.ReadFull(r, make([]byte, len(layer)/2))
		check.Must(t, err)
		taken, got := int64(part*len(layer)/2), received.Load()
		if ahead := int64(streamBuffers+2) * bufferSize; got < taken-ahead || got > taken+ahead {
			t.Errorf("%d bytes are counted when %d were taken", got, taken)
		}
	}
}
