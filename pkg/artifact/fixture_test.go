// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr fails unless err is of the kind, is retryable as that kind is, and its text has all the words.
func wantErr(t testing.TB, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got error %v, want one that %v", err, kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
	if got, want := IsRetryable(err), errors.Is(kind, ErrUnavailable) || errors.Is(kind, ErrNoSpace); got != want {
		t.Errorf("retryable %v, want %v: %v", got, want, err)
	}
}

// hub is a real registry behind whatever a test puts in its way.
type hub struct {
	*httptest.Server
	handler http.Handler

	mu sync.Mutex
	// before may answer a request itself; then it returns true.
	before func(w http.ResponseWriter, r *http.Request) bool
	asked  []string
	seen   []*http.Request
}

func newHub(t testing.TB, serve func(http.Handler) *httptest.Server) *hub {
	t.Helper()
	h := &hub{handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true))}
	h.Server = serve(http.HandlerFunc(h.serve))
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(h.Close)
	return h
}

func plainHub(t testing.TB) *hub { return newHub(t, httptest.NewServer) }

func (h *hub) serve(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.asked = append(h.asked, r.Method+" "+r.URL.Path)
	h.seen = append(h.seen, r.Clone(r.Context()))
	before := h.before
	h.mu.Unlock()
	if before == nil || !before(w, r) {
		h.handler.ServeHTTP(w, r)
	}
}

func (h *hub) host() string { return h.Listener.Addr().String() }

func (h *hub) set(before func(http.ResponseWriter, *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before = before
}

// count is how many requests there were whose method and path contain the text.
func (h *hub) count(text string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.asked {
		if strings.Contains(a, text) {
			n++
		}
	}
	return n
}

func (h *hub) put(t testing.TB, method, path, contentType string, body []byte) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, r)
	if w.Code >= 300 {
		t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
}

const repo = "team/bits"

func (h *hub) pushBlob(t testing.TB, data []byte) Descriptor {
	t.Helper()
	d := Descriptor{MediaType: "application/octet-stream", Digest: DigestOf(data), Size: int64(len(data))}
	h.put(t, http.MethodPost, "/v2/"+repo+"/blobs/uploads/?digest="+d.Digest.String(), "", data)
	return d
}

func wire(d Descriptor) map[string]any {
	return map[string]any{"mediaType": d.MediaType, "digest": d.Digest, "size": d.Size}
}

// push makes an artifact of one layer and tags it.
func (h *hub) push(t testing.TB, tag string, layer []byte) (manifest Digest, blob Descriptor) {
	t.Helper()
	blob = h.pushBlob(t, layer)
	config := h.pushBlob(t, []byte(`{"platform":"test"}`))
	config.MediaType = "application/vnd.test.config.v1+json"
	data, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": wire(config), "layers": []any{wire(blob)},
		"annotations": map[string]string{"tag": tag},
	})
	must(t, err)
	h.put(t, http.MethodPut, "/v2/"+repo+"/manifests/"+tag, manifestType, data)
	return DigestOf(data), blob
}

// quick is a configuration for the hub that does not wait.
func (h *hub) quick() ClientConfig {
	return ClientConfig{PlainHTTP: []string{h.host()}, Backoff: time.Millisecond, MaxWait: 5 * time.Millisecond, Tries: 3}
}

func (h *hub) source(t testing.TB) *Source { return newSource(t, h.quick(), h.host()+"/"+repo+":v1") }

func newSource(t testing.TB, config ClientConfig, ref string) *Source {
	t.Helper()
	c, err := NewClient(config)
	must(t, err)
	return c.Source(mustReference(t, ref), nil)
}

func mustReference(t testing.TB, s string) Reference {
	t.Helper()
	ref, err := ParseReference(s)
	must(t, err)
	return ref
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
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// again is the same directory, as another process has it.
func (s *Store) again(t testing.TB) *Store {
	t.Helper()
	other, err := OpenStore(s.dir, s.config)
	must(t, err)
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
	must(t, s.each(tmpDir, func(name string, _ fs.FileInfo) { names = append(names, name) }))
	return names
}

func readBlob(t testing.TB, s *Store, d Digest) []byte {
	t.Helper()
	b, err := s.Open(d)
	must(t, err)
	defer func() { _ = b.Close() }()
	var got bytes.Buffer
	n, err := b.WriteTo(&got)
	must(t, err)
	if n != b.Size() || b.Digest() != d {
		t.Errorf("got %d bytes of %s, want %d of %s", n, b.Digest(), b.Size(), d)
	}
	return got.Bytes()
}
