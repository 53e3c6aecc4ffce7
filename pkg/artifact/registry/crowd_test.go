// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

const (
	// pullers is how many nodes want the blob at once, of which each has a source of its own.
	pullers = 200
	// crowdBlob is its size. What the nodes share of the registry's 4 MiB a second is above what the client takes for a trickle.
	crowdBlob   = 1 << 20
	crowdPiece  = 16 << 10
	crowdPieces = 256 // a second, of the registry
)

// throttled is a registry that sends so many pieces a second to all together. It counts the bytes of its answers.
type throttled struct {
	http.Handler
	// turn holds the registry's line. It is a channel, since a bubble's time stands still while somebody waits for a mutex.
	turn chan struct{}
	sent atomic.Int64
	// most is how many requests it serves at once; it refuses the others for some seconds. 0: all.
	most, serving atomic.Int64
}

func (o *throttled) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer o.serving.Add(-1)
	if most := o.most.Load(); o.serving.Add(1) > most && most > 0 && strings.Contains(r.URL.Path, "/blobs/") {
		answering(http.StatusTooManyRequests, map[string]string{"Retry-After": "5"}, "")(w, r)
		return
	}
	said := httptest.NewRecorder()
	o.Handler.ServeHTTP(said, r)
	body := said.Body.Bytes()
	for name, values := range said.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(said.Code)
	for len(body) > 0 {
		select {
		case o.turn <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		time.Sleep(time.Second / crowdPieces) // fragile: the time is that of TestCrowd's bubbles
		<-o.turn
		n, err := w.Write(body[:min(crowdPiece, len(body))])
		o.sent.Add(int64(n))
		if body = body[n:]; err != nil {
			return
		}
	}
}

// pullThrough is a mirror that reads each path from the registry once.
type pullThrough struct {
	origin http.Handler
	known  map[string]*kept
	lock   chan struct{}
	asked  atomic.Int64
	// fault changes the n-th answer. It may write it itself, and returns true then.
	fault func(n int64, w http.ResponseWriter, r *http.Request, body []byte) bool
}

// kept is an answer of the registry. done is closed when it is complete.
type kept struct {
	done chan struct{}
	said *httptest.ResponseRecorder
}

func (m *pullThrough) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v2/" {
		return
	}
	m.lock <- struct{}{}
	k := m.known[r.Method+r.URL.Path]
	if k == nil {
		k = &kept{done: make(chan struct{}), said: httptest.NewRecorder()}
		m.known[r.Method+r.URL.Path] = k
		go func() { //nolint:contextcheck // other requests wait for it, too
			defer close(k.done)
			m.origin.ServeHTTP(k.said, httptest.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method, r.URL.Path, http.NoBody))
		}()
	}
	<-m.lock
	select {
	case <-k.done:
	case <-r.Context().Done():
		return
	}
	whole := k.said.Body.Bytes()
	w.Header().Set("Content-Type", k.said.Header().Get("Content-Type"))
	if k.said.Code != http.StatusOK {
		w.WriteHeader(k.said.Code)
		return
	}
	body := ranged(whole)(w, r)
	if m.fault == nil || !m.fault(m.asked.Add(1), w, r, body) {
		_, _ = w.Write(body)
	}
}

// faultyMirrors are the ways in which the mirror of a crowd fails, and how many copies of the blob the registry may send for all pullers
// together then.
func faultyMirrors() map[string]struct {
	fault  func(n int64, w http.ResponseWriter, r *http.Request, body []byte) bool
	copies float64
} {
	const all = pullers * 1.05
	return map[string]struct {
		fault  func(n int64, w http.ResponseWriter, r *http.Request, body []byte) bool
		copies float64
	}{
		"honest": {nil, 3},
		"lies": {func(_ int64, w http.ResponseWriter, _ *http.Request, body []byte) bool {
			body = bytes.Clone(body)
			body[len(body)/2] ^= 1
			_, _ = w.Write(body)
			return true
		}, all},
		"stalls": {func(_ int64, w http.ResponseWriter, r *http.Request, body []byte) bool {
			_, _ = w.Write(body[:len(body)/2])
			<-r.Context().Done()
			return true
		}, all},
		"trickles": {func(_ int64, w http.ResponseWriter, r *http.Request, body []byte) bool {
			for i := range body {
				if _, err := w.Write(body[i : i+1]); err != nil {
					break
				}
				time.Sleep(time.Second) // fragile: the time is that of TestCrowd's bubbles
			}
			return true
		}, all},
		"loses pieces": {func(n int64, w http.ResponseWriter, _ *http.Request, body []byte) bool {
			if n%2 == 0 {
				return false
			}
			_, _ = w.Write(body[:len(body)/2])
			panic(http.ErrAbortHandler)
		}, 3},
		"refuses": {func(_ int64, w http.ResponseWriter, r *http.Request, _ []byte) bool {
			w.Header().Del("Content-Length")
			return answering(http.StatusServiceUnavailable, nil, "")(w, r)
		}, all},
		"breaks off once": {func(_ int64, w http.ResponseWriter, r *http.Request, body []byte) bool {
			if r.Header.Get("Range") == "" && len(body) > crowdPiece {
				_, _ = w.Write(body[:len(body)/2])
				panic(http.ErrAbortHandler)
			}
			return false
		}, 3},
	}
}

// pullLikeNode reads the image as a node does for a tenant: it asks the registry whether it may, reads manifest, config and layer, and
// tries again like the prefetcher does. What came is kept.
func pullLikeNode(ctx context.Context, c *Client, to *hashed) error {
	ref, err := artifact.ParseReference("origin.example/" + repo + ":v1")
	for try := range 6 {
		src := c.TenantSource(ref, nil)
		if err = pullImageOf(ctx, src, to); err == nil || !artifact.IsRetryable(err) {
			return err
		}
		wait := max(30*time.Second<<try, RetryAfter(err))
		time.Sleep(wait + upTo(wait/2))
	}
	return err
}

func pullImageOf(ctx context.Context, src *Source, to *hashed) error {
	d, err := src.Resolve(ctx)
	if err != nil {
		return err
	}
	m, err := src.Manifest(ctx, d)
	if err != nil {
		return err
	}
	if _, err = src.ReadBlob(ctx, m.Config); err != nil {
		return err
	}
	return src.Pull(ctx, m.Layers[0], to)
}

// crowd has all pullers pull at once, and returns how long the last one took.
func crowd(t *testing.T, config Config) (took time.Duration) {
	t.Helper()
	c, err := NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	ended, begun := make(chan error, pullers), time.Now()
	for range pullers {
		go func() { ended <- pullLikeNode(t.Context(), c, &hashed{Hash: sha256.New()}) }()
	}
	var errs []error
	for range pullers {
		if err := <-ended; err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		t.Errorf("%d of %d did not finish: %v", len(errs), pullers, errors.Join(errs[:min(3, len(errs))]...))
	}
	return time.Since(begun)
}

// TestCrowd: 200 nodes pull an image from a slow registry at once, and all of them get it: without a mirror, from a registry that serves a
// few at once, with a mirror that reads it once, and with one that fails in any way. A mirror that has the image keeps the registry free.
func TestCrowd(t *testing.T) {
	layer := blobBytes(41, crowdBlob)
	stock, _, _ := stocked(t, layer)
	run := func(name string, most int64, copies float64, mirror *pullThrough) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				origin := &throttled{Handler: stock.Handler, turn: make(chan struct{}, 1)}
				origin.most.Store(most)
				config := Config{Transport: network{"origin.example": origin}}
				if mirror != nil {
					mirror.origin, mirror.known, mirror.lock = origin, map[string]*kept{}, make(chan struct{}, 1)
					config.Transport = network{"origin.example": origin, "mirror.example": mirror}
					config.Mirrors = Mirrors{"origin.example": {{Host: "mirror.example"}}}
				}
				took := crowd(t, config)
				got := float64(origin.sent.Load()) / crowdBlob
				t.Logf("%.2f copies from the registry, %s", got, took)
				if got > copies {
					t.Errorf("the registry sent %.2f copies, want at most %.2f", got, copies)
				}
			})
		})
	}
	run("no mirror", 0, pullers*1.05, nil)
	run("no mirror, a bounded registry", 40, pullers*1.05, nil)
	for name, m := range faultyMirrors() {
		run(fmt.Sprint("mirror: ", name), 0, m.copies, &pullThrough{fault: m.fault})
	}
}
