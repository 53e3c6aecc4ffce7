// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"crypto/sha256"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

// paced is a registry of one blob that sends a piece of so many bytes after each pause. It knows ranges.
type paced struct {
	blob  []byte
	piece int
	pause time.Duration
	sent  atomic.Int64
}

func (p *paced) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v2/" {
		return
	}
	body := ranged(p.blob)(w, r)
	for len(body) > 0 {
		select {
		case <-time.After(p.pause):
		case <-r.Context().Done():
			return
		}
		n, err := w.Write(body[:min(p.piece, len(body))])
		p.sent.Add(int64(n))
		if body = body[n:]; err != nil {
			return
		}
	}
}

// TestPace: a registry that is slow and moves is read to the end, however long it takes. One that sends a little now and then is left for
// the next endpoint, which gives the rest.
func TestPace(t *testing.T) {
	blob := blobBytes(21, 10<<20)
	d := artifact.Descriptor{Digest: artifact.DigestOf(blob), Size: int64(len(blob))}
	for name, test := range map[string]struct {
		mirror, origin *paced
		most           int64 // bytes of the origin
		within         time.Duration
		err            []string
	}{
		"slow":      {&paced{piece: 512 << 10, pause: defaultStall - time.Second}, &paced{piece: 1 << 20}, 0, 10 * time.Minute, nil},
		"a trickle": {&paced{piece: 100, pause: time.Second}, &paced{piece: 1 << 20, pause: time.Second}, 10 << 20, 80 * time.Second, nil},
		"a trickle, later": {&paced{piece: 100, pause: time.Second}, &paced{piece: 100, pause: time.Second}, 1 << 20, 12 * time.Minute, []string{
			"mirror.example is not available now: 6000 bytes came within 1m0s, expected 983040", "origin.example is not available now",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mirror, origin := test.mirror, test.origin
				mirror.blob, origin.blob = blob, blob
				src := newSource(t, Config{
					Mirrors:   Mirrors{"origin.example": {{Host: "mirror.example"}}},
					Transport: network{"mirror.example": mirror, "origin.example": origin},
				}, "origin.example/"+repo+":v1")
				var received atomic.Int64
				src.CountInto(&received)
				begun := time.Now()
				err := src.Pull(t.Context(), d, &hashed{Hash: sha256.New()})
				if took := time.Since(begun); took > test.within || origin.sent.Load() > test.most {
					t.Errorf("it took %s and %d bytes of the origin, want at most %s and %d", took, origin.sent.Load(), test.within, test.most)
				}
				if got := received.Load(); got < mirror.sent.Load()+origin.sent.Load() {
					t.Errorf("%d bytes were counted, of %d and %d", got, mirror.sent.Load(), origin.sent.Load())
				}
				if test.err == nil && err != nil {
					t.Fatal(err)
				}
				if test.err != nil {
					wantErr(t, err, artifact.ErrUnavailable, test.err...)
				}
			})
		})
	}
}

// TestMirrorBreaksOff: a mirror that breaks off is asked for the rest as long as it brings something, five times in a row. Then the
// registry gives the rest.
func TestMirrorBreaksOff(t *testing.T) {
	blob := blobBytes(22, 3<<20)
	d := artifact.Descriptor{Digest: artifact.DigestOf(blob), Size: int64(len(blob))}
	for pieces, rest := range map[int]int64{3: 0, 4: 0, 6: 1 << 19, 3 << 10: 3<<20 - 1<<10} {
		synctest.Test(t, func(t *testing.T) {
			origin := &paced{blob: blob, piece: 1 << 20}
			mirror := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v2/" {
					return
				}
				body := ranged(blob)(w, r)
				_, _ = w.Write(body[:min(len(body), len(blob)/pieces)])
				abort()
			})
			src := newSource(t, Config{
				Mirrors:   Mirrors{"origin.example": {{Host: "mirror.example"}}},
				Transport: network{"mirror.example": mirror, "origin.example": origin},
			}, "origin.example/"+repo+":v1")
			check.Must(t, src.Pull(t.Context(), d, &hashed{Hash: sha256.New()}))
			if got := origin.sent.Load(); got != rest {
				t.Errorf("%d pieces: %d bytes of the registry, want %d", pieces, got, rest)
			}
		})
	}
}

// TestIdleMirror: a mirror that says nothing holds up one request of a source and not each of them.
func TestIdleMirror(t *testing.T) {
	layer := blobBytes(23, 1<<20)
	origin, _, blob := stocked(t, layer)
	synctest.Test(t, func(t *testing.T) {
		silent := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		src := newSource(t, Config{
			Mirrors:   Mirrors{"origin.example": {{Host: "mirror.example"}}},
			Transport: network{"mirror.example": silent, "origin.example": origin},
		}, "origin.example/"+repo+":v1")
		begun := time.Now()
		d, err := src.Resolve(t.Context())
		check.Must(t, err)
		m, err := src.Manifest(t.Context(), d)
		check.Must(t, err)
		_, err = src.ReadBlob(t.Context(), m.Config)
		check.Must(t, err)
		check.Must(t, src.Pull(t.Context(), blob, &hashed{Hash: sha256.New()}))
		if took := time.Since(begun); took != defaultStall {
			t.Errorf("it took %s, want %s", took, defaultStall)
		}
	})
}
