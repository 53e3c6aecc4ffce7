// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	inmemory "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

// wantErr fails unless err is of the kind, is retryable as that kind is, and its text has all the words.
func wantErr(t testing.TB, err, kind error, words ...string) {
	t.Helper()
	check.WantErr(t, err, kind, words...)
	if got, want := artifact.IsRetryable(err), errors.Is(kind, artifact.ErrUnavailable) || errors.Is(kind, artifact.ErrNoSpace); got != want {
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
	h := &hub{handler: inmemory.New(inmemory.Logger(log.New(io.Discard, "", 0)), inmemory.WithReferrersSupport(true))}
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

func (h *hub) pushBlob(t testing.TB, data []byte) artifact.Descriptor {
	t.Helper()
	d := artifact.Descriptor{MediaType: "application/octet-stream", Digest: artifact.DigestOf(data), Size: int64(len(data))}
	h.put(t, http.MethodPost, "/v2/"+repo+"/blobs/uploads/?digest="+d.Digest.String(), "", data)
	return d
}

func wire(d artifact.Descriptor) map[string]any {
	return map[string]any{"mediaType": d.MediaType, "digest": d.Digest, "size": d.Size}
}

// push makes an artifact of one layer and tags it.
func (h *hub) push(t testing.TB, tag string, layer []byte) (manifest artifact.Digest, blob artifact.Descriptor) {
	t.Helper()
	blob = h.pushBlob(t, layer)
	config := h.pushBlob(t, []byte(`{"platform":"test"}`))
	config.MediaType = "application/vnd.test.config.v1+json"
	data, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": wire(config), "layers": []any{wire(blob)},
		"annotations": map[string]string{"tag": tag},
	})
	check.Must(t, err)
	h.put(t, http.MethodPut, "/v2/"+repo+"/manifests/"+tag, manifestType, data)
	return artifact.DigestOf(data), blob
}

// quick is a configuration for the hub that does not wait.
func (h *hub) quick() Config {
	return Config{PlainHTTP: []string{h.host()}, Backoff: time.Millisecond, MaxWait: 5 * time.Millisecond, Tries: 3}
}

func (h *hub) source(t testing.TB) *Source { return newSource(t, h.quick(), h.host()+"/"+repo+":v1") }

func newSource(t testing.TB, config Config, ref string) *Source {
	t.Helper()
	c, err := NewClient(config)
	check.Must(t, err)
	return c.Source(mustReference(t, ref), nil)
}

func mustReference(t testing.TB, s string) artifact.Reference {
	t.Helper()
	ref, err := artifact.ParseReference(s)
	check.Must(t, err)
	return ref
}

func blobBytes(seed uint64, size int) []byte {
	data := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(data)
	return data
}

// manifestType is what most manifests of the tests are.
const manifestType = string(types.OCIManifestSchema1)
