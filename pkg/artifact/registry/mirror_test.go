// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	inmemory "github.com/google/go-containerregistry/pkg/registry"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

// TestMirrorForms: a mirror is a string or an object, and one without settings is written as a string.
func TestMirrorForms(t *testing.T) {
	content := "mirrors:\n  docker.io:\n  - forwardCredentials: true\n    headers:\n      X-Dragonfly-Registry: https://index.docker.io\n" +
		"    host: d7y.svc:4001\n  - mirror.example/docker\n"
	path := write(t, content)
	config, err := LoadConfig(path)
	check.Must(t, err)
	want := Mirrors{"docker.io": {
		{Host: "d7y.svc:4001", Headers: map[string]string{"X-Dragonfly-Registry": "https://index.docker.io"}, ForwardCredentials: true},
		{Host: "mirror.example/docker"},
	}}
	if diff := cmp.Diff(want, config.Mirrors); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	files, err := ReadFiles(path)
	if err != nil || files.Config != content {
		t.Errorf("%v\n%s", err, files.Config)
	}
	for _, bad := range []string{
		"mirrors: {a.b: [{host: c.d, header: {X-A: b}}]}", "mirrors: {a.b: [{host: c.d, headers: {X-A: 1}}]}", "mirrors: {a.b: [5]}",
		"mirrors: {a.b: [{host: c.d, host: e.f}]}",
	} {
		if _, err := LoadConfig(write(t, bad)); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func TestMirrorRefuses(t *testing.T) {
	many := map[string]string{}
	for i := range maxHeaders + 1 {
		many[fmt.Sprintf("X-%d", i)] = "x"
	}
	for _, c := range []struct {
		headers map[string]string
		words   string
	}{
		{map[string]string{"Authorization": "Basic x"}, `"Authorization" is not valid: expected a name that begins with X-`},
		{map[string]string{"Range": "bytes=0-"}, `"Range"`},
		{map[string]string{"X": "y"}, `"X"`},
		{map[string]string{"X-A\r\nHost": "y"}, "X-A"},
		{map[string]string{"X-A": ""}, "value of the header X-A"},
		{map[string]string{"X-A": "a\nb"}, "value of the header X-A"},
		{map[string]string{"X-A": strings.Repeat("a", 257)}, "1 to 256 characters"},
		{many, "17 headers, expected at most 16"},
	} {
		_, err := NewClient(Config{Mirrors: Mirrors{"a.b": {{Host: "c.d", Headers: c.headers}}}})
		wantErr(t, err, artifact.ErrInvalid, c.words, "c.d of a.b")
	}
}

// recorded notes the requests to a handler.
type recorded struct {
	http.Handler
	mu   sync.Mutex
	seen []*http.Request
}

func (r *recorded) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	r.seen = append(r.seen, request.Clone(request.Context()))
	r.mu.Unlock()
	r.Handler.ServeHTTP(w, request)
}

// stocked returns a registry that has an artifact with one layer.
func stocked(t *testing.T, layer []byte) (*recorded, artifact.Digest, artifact.Descriptor) {
	t.Helper()
	h := &hub{handler: inmemory.New(inmemory.Logger(log.New(io.Discard, "", 0)))}
	manifest, blob := h.push(t, "v1", layer)
	return &recorded{Handler: h.handler}, manifest, blob
}

// TestMirrorIsToldTheRegistry: requests to a mirror have the query ns and the mirror's headers. Requests to the registry, to where the
// mirror redirects to, and to its token server have neither.
func TestMirrorIsToldTheRegistry(t *testing.T) {
	layer := blobBytes(31, 1000)
	origin, _, blob := stocked(t, layer)
	elsewhere := &recorded{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			_, _ = io.WriteString(w, `{"token":"secret"}`)
			return
		}
		_, _ = w.Write(layer)
	})}
	mirror := &recorded{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer secret":
			w.Header().Set("WWW-Authenticate", `Bearer realm="https://elsewhere.example/token",service="s"`)
			w.WriteHeader(http.StatusUnauthorized)
		case strings.Contains(r.URL.Path, "/blobs/"):
			http.Redirect(w, r, "https://elsewhere.example/stored?signature=x", http.StatusTemporaryRedirect)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})}
	src := newSource(t, Config{
		Mirrors:   Mirrors{"origin.example:8443": {{Host: "mirror.example/cache", Headers: map[string]string{"x-dragonfly-tag": "fettle"}}}},
		Transport: network{"mirror.example": mirror, "origin.example:8443": origin, "elsewhere.example": elsewhere},
	}, "origin.example:8443/"+repo+":v1")
	d, err := src.Resolve(t.Context())
	check.Must(t, err)
	_, err = src.Manifest(t.Context(), d)
	check.Must(t, err)
	check.Must(t, src.Pull(t.Context(), blob, &hashed{Hash: sha256.New()}))
	told := func(r *http.Request) bool {
		return r.URL.Query().Get("ns") == "origin.example:8443" && r.Header.Get("X-Dragonfly-Tag") == "fettle"
	}
	for _, r := range mirror.seen {
		if !told(r) {
			t.Errorf("the mirror was asked %s %s with %v", r.Method, r.URL, r.Header)
		}
	}
	for _, r := range append(origin.seen, elsewhere.seen...) {
		if r.URL.Query().Has("ns") || r.Header.Get("X-Dragonfly-Tag") != "" {
			t.Errorf("%s was asked %s %s with %v", r.Host, r.Method, r.URL, r.Header)
		}
	}
	if len(mirror.seen) == 0 || len(origin.seen) == 0 || len(elsewhere.seen) != 2 {
		t.Errorf("%d, %d and %d requests", len(mirror.seen), len(origin.seen), len(elsewhere.seen))
	}
}

// TestForwardCredentials: a mirror gets the registry's credentials only if it is configured so, and its own ones in any case.
func TestForwardCredentials(t *testing.T) {
	layer := blobBytes(32, 1000)
	for name, c := range map[string]struct {
		forward bool
		logins  []string
		user    string
	}{
		"default":     {false, []string{login("origin.example", "owner")}, ""},
		"forwarded":   {true, []string{login("origin.example/team", "owner")}, "owner"},
		"other path":  {true, []string{login("origin.example/other", "owner")}, ""},
		"its own":     {true, []string{login("origin.example", "owner"), login("mirror.example", "guest")}, "guest"},
		"none at all": {true, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			origin, _, blob := stocked(t, layer)
			mirror := &recorded{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, _, ok := r.BasicAuth(); !ok {
					w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				origin.Handler.ServeHTTP(w, r)
			})}
			client, err := NewClient(Config{
				Mirrors:   Mirrors{"origin.example": {{Host: "mirror.example", ForwardCredentials: c.forward}}},
				Transport: network{"mirror.example": mirror, "origin.example": origin},
			})
			check.Must(t, err)
			keys, err := credentials(secret(append(c.logins, login("unused.example", "nobody"))...))
			check.Must(t, err)
			src := client.Source(mustReference(t, "origin.example/"+repo+":v1"), keys)
			check.Must(t, src.Pull(t.Context(), blob, &hashed{Hash: sha256.New()}))
			sent := map[string]bool{}
			for _, r := range mirror.seen {
				if a := r.Header.Get("Authorization"); a != "" {
					text, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(a, "Basic "))
					user, _, _ := strings.Cut(string(text), ":")
					sent[user] = true
				}
			}
			want := map[string]bool{}
			if c.user != "" {
				want[c.user] = true
			}
			if diff := cmp.Diff(want, sent); diff != "" {
				t.Errorf("users (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPeers: the protocols of Spegel, which answers by ns and has only some blobs, and of Dragonfly, which goes to the registry that its
// header names, by digest as they are asked by containerd. A tenant's image is first asked of the registry.
func TestPeers(t *testing.T) {
	layer := blobBytes(33, 200_000)
	origin, _, blob := stocked(t, layer)
	other, _, _ := stocked(t, []byte("another registry's"))
	unknown := func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"no peer has it"}]}`)
	}
	spegel := &recorded{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v2/":
		case r.URL.Query().Get("ns") == "":
			w.WriteHeader(http.StatusBadRequest)
		case r.URL.Query().Get("ns") == "origin.example" && strings.Contains(r.URL.Path, blob.Digest.String()):
			origin.Handler.ServeHTTP(w, r)
		default:
			unknown(w)
		}
	})}
	dragonfly := &recorded{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("X-Dragonfly-Registry") {
		case "https://origin.example":
			origin.Handler.ServeHTTP(w, r)
		default: // the one that it is configured with
			other.Handler.ServeHTTP(w, r)
		}
	})}
	client, err := NewClient(Config{
		Mirrors: Mirrors{"origin.example": {
			{Host: "spegel.example:5000"},
			{Host: "dragonfly.example:4001", Headers: map[string]string{"X-Dragonfly-Registry": "https://origin.example"}},
		}},
		Transport: network{"origin.example": origin, "spegel.example:5000": spegel, "dragonfly.example:4001": dragonfly},
	})
	check.Must(t, err)
	src := client.TenantSource(mustReference(t, "origin.example/"+repo+":v1"), nil)
	d, err := src.Resolve(t.Context())
	check.Must(t, err)
	if len(origin.seen) == 0 || len(spegel.seen)+len(dragonfly.seen) != 0 {
		t.Errorf("who may read it was asked of others: %d, %d and %d requests", len(origin.seen), len(spegel.seen), len(dragonfly.seen))
	}
	asked := len(origin.seen)
	_, err = src.Manifest(t.Context(), d)
	check.Must(t, err)
	check.Must(t, src.Pull(t.Context(), blob, &hashed{Hash: sha256.New()}))
	if n := len(origin.seen) - asked; n != 0 {
		t.Errorf("the registry was asked %d times for what the mirrors have", n)
	}
	var blobs, manifests int
	for _, r := range spegel.seen {
		if strings.Contains(r.URL.Path, "/blobs/") {
			blobs++
		}
	}
	for _, r := range dragonfly.seen {
		if strings.Contains(r.URL.Path, "/manifests/") {
			manifests++
		}
	}
	if blobs != 1 || manifests != 1 {
		t.Errorf("spegel was asked for %d blobs and dragonfly for %d manifests", blobs, manifests)
	}
}

// TestPauseOfMirror: a mirror that asks for a long pause is left alone, and holds up neither the tries at the registry nor the next fetch.
func TestPauseOfMirror(t *testing.T) {
	layer := blobBytes(34, 1000)
	origin, _, blob := stocked(t, layer)
	asked, busy := map[string]int{}, 0
	refuse := func(host string, code int, pause string, next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.URL.Path, "/blobs/") {
				next.ServeHTTP(w, r)
				return
			}
			if asked[host]++; asked[host] > busy && host != "mirror" {
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Retry-After", pause)
			w.WriteHeader(code)
		})
	}
	pull := func() error {
		clear(asked)
		src := newSource(t, Config{
			Mirrors: Mirrors{"origin.example": {{Host: "mirror.example"}}}, Backoff: 1, Tries: 3,
			Transport: network{
				"mirror.example": refuse("mirror", http.StatusTooManyRequests, "36000", origin),
				"origin.example": refuse("origin", http.StatusServiceUnavailable, "", origin),
			},
		}, "origin.example/"+repo+":v1")
		return src.Pull(t.Context(), blob, &hashed{Hash: sha256.New()})
	}
	busy = 2
	check.Must(t, pull())
	if asked["mirror"] != 1 || asked["origin"] != 3 {
		t.Errorf("asked %v, want the mirror once and the registry three times", asked)
	}
	busy = 9
	if err := pull(); !artifact.IsRetryable(err) || RetryAfter(err) != 0 {
		t.Errorf("%v, and the next try is after %s", err, RetryAfter(err))
	}
}
