// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

// TestFetchesOfManyNodes: a cache of 1 GB arrives on each of 5,000 nodes that share 10 Gbit/s, also while other namespaces wait for a turn.
// A fetch that hardly moves makes way.
func TestFetchesOfManyNodes(t *testing.T) {
	const size = 1_000_000_000
	for rate, arrives := range map[int64]bool{10_000_000_000 / 8 / 5000: true, 10_000: false} {
		synctest.Test(t, func(t *testing.T) {
			lanes, received := Lanes(budget.Limit{Node: 2, Namespace: 2}), &atomic.Int64{}
			fetch := func(ctx context.Context) error {
				for received.Load() < size {
					select {
					case <-time.After(time.Second):
						received.Add(rate)
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
				return nil
			}
			ended := make(chan error, 1)
			go func() { ended <- lanes.Do(t.Context(), "team-a", pace(received), fetch) }()
			time.Sleep(quickFetch + time.Second)
			go func() {
				_ = lanes.Do(t.Context(), "team-b", pace(&atomic.Int64{}), func(ctx context.Context) error {
					<-ctx.Done()
					return context.Cause(ctx)
				})
			}()
			if err := <-ended; (err == nil) != arrives || err != nil && !errors.Is(err, budget.ErrSlow) {
				t.Errorf("%d bytes a second: %v", rate, err)
			}
			time.Sleep(time.Hour)
		})
	}
}

// TestMirrorThatLies: a cache whose layers a mirror replaced by other bytes comes from the registry itself, and an image that is refused is
// read there once more. It does not matter whether the mirror sends all, or breaks off and the registry then sends all again.
func TestMirrorThatLies(t *testing.T) {
	for name, lie := range map[string]func(w http.ResponseWriter, body []byte){
		"all": fpgaregistry.Flipped,
		"the beginning": func(w http.ResponseWriter, body []byte) {
			body[4] ^= 1 // the time in the header of gzip, which changes nothing
			_, _ = w.Write(body[:10])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) { testLies(newNode(t), lie) })
	}
}

func testLies(n *node, lie func(w http.ResponseWriter, body []byte)) {
	n.Helper()
	n.trusting()
	var asked atomic.Int64
	n.registry.Around(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/blobs/") {
				asked.Add(1)
				r.Header.Del("Range") // it knows none
			}
			next.ServeHTTP(w, r)
		})
	})
	host, lies := n.registry.Lie(n, lie)
	client, err := registry.NewClient(registry.Config{
		PlainHTTP: []string{n.registry.Host, host}, Mirrors: registry.Mirrors{n.registry.Host: {{Host: host}}}, Tries: 1,
	})
	n.must(err)
	n.Client = client
	image, digest := n.push("team/add", "v1", triton(90, 32))
	asked.Store(0)
	n.cache("team-a", "add", image, digest)
	n.whole(n.only(n.decide("team-a", "claim", named)).Tree)
	if lies.Load() == 0 || asked.Load() == 0 {
		n.Errorf("the mirror lied %d times, and the registry was asked for %d blobs", lies.Load(), asked.Load())
	}
}

// TestFirstMirrorLies: where a registry may not be asked, the mirrors after one that lies are.
func TestFirstMirrorLies(t *testing.T) {
	n := newNode(t)
	n.trusting()
	liar, lies := n.registry.Lie(n, fpgaregistry.Flipped)
	second, _ := n.registry.Lie(n, fpgaregistry.Flipped)
	honest, asked := n.registry.Lie(n, func(w http.ResponseWriter, body []byte) { _, _ = w.Write(body) })
	client, err := registry.NewClient(registry.Config{
		PlainHTTP: []string{n.registry.Host, liar, second, honest}, MirrorsOnly: []string{n.registry.Host}, Tries: 1,
		Mirrors: registry.Mirrors{n.registry.Host: {{Host: liar}, {Host: second}, {Host: honest}}},
	})
	n.must(err)
	n.Client = client
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	n.whole(n.only(n.decide("team-a", "claim", named)).Tree)
	if lies.Load() == 0 || asked.Load() == 0 {
		t.Errorf("the first mirror lied %d times, and the last was asked for %d blobs", lies.Load(), asked.Load())
	}
}

// TestFetchIsMeasured: what a fetch receives is counted, since a fetch that receives nothing is ended.
func TestFetchIsMeasured(t *testing.T) {
	n := newNode(t)
	n.trusting()
	o := n.added()
	ref, err := reference(o)
	n.must(err)
	policies, versions, err := n.policiesFor(t.Context(), o, ref)
	n.must(err)
	received := &atomic.Int64{}
	n.must(n.pullNow(t.Context(), &pulling{
		object: o, ref: ref, options: fetchOptions{received: received}, policies: policies, versions: versions,
	}))
	if received.Load() == 0 {
		t.Error("nothing was counted")
	}
}

// rangeWriter counts the bytes of an answer, and breaks off after half of a whole blob if it is told to.
type rangeWriter struct {
	http.ResponseWriter
	sent *atomic.Int64
	cut  bool
}

func (w *rangeWriter) Write(p []byte) (int, error) {
	if w.cut {
		_, _ = w.ResponseWriter.Write(p[:len(p)/2])
		w.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	n, err := w.ResponseWriter.Write(p)
	w.sent.Add(int64(n))
	return n, err
}

// TestFetchGoesOn: what came of a large layer before a fetch ended is not read again by the next one, also if the disk changed it. Then all
// of it is read once more. Nothing of it is left afterwards.
func TestFetchGoesOn(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		n := newNode(t)
		n.trusting()
		store, err := artifact.OpenStore(filepath.Join(n.root, "artifacts"), artifact.StoreConfig{KeepFrom: 1})
		n.must(err)
		n.Cleanup(func() { n.must(store.Close()) })
		n.host = store
		image, digest := n.push("team/add", "v1", triton(90, 32))
		n.cache("team-a", "add", image, digest)
		var config string // the first blob that is read
		var sent atomic.Int64
		var cut atomic.Bool
		n.registry.Around(func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "/blobs/") {
					if config == "" {
						config = r.URL.Path
					} else if config != r.URL.Path {
						w = &rangeWriter{ResponseWriter: w, sent: &sent, cut: cut.Load()}
					}
				}
				next.ServeHTTP(w, r)
			})
		})
		cut.Store(true)
		if _, err := n.decide("team-a", "claim", named); !IsNotReady(err) {
			t.Fatal(err)
		}
		kept := n.unfinished()
		if len(kept) != 1 {
			t.Fatalf("%v is kept, want one layer", kept)
		}
		half, err := os.ReadFile(kept[0])
		n.must(err)
		if damaged {
			n.must(os.WriteFile(kept[0], make([]byte, len(half)), 0o600))
		}
		cut.Store(false)
		n.whole(n.only(n.decide("team-a", "claim", named)).Tree)
		rest := int64(len(half)) // half of it, or a byte more
		if damaged {
			rest *= 3
		}
		if got := sent.Load(); len(half) == 0 || got < rest || got > rest+2 {
			t.Errorf("damaged %v: %d bytes were sent, want %d", damaged, got, rest)
		}
		if left := n.unfinished(); len(left) != 0 {
			t.Errorf("left over: %v", left)
		}
	}
}

// unfinished lists what the store has not finished.
func (n *node) unfinished() []string {
	n.Helper()
	names, err := filepath.Glob(filepath.Join(n.root, "artifacts/tmp/*"))
	n.must(err)
	return names
}
