// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

func TestResolveAndRead(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(1, 1000)
	digest, blob := h.push(t, "v1", layer)
	src := h.source(t)
	d, err := src.Resolve(t.Context())
	check.Must(t, err)
	if d.Digest != digest || d.MediaType != manifestType || d.Size == 0 || src.Reference().Tag() != "v1" {
		t.Errorf("got %+v, want %s", d, digest)
	}
	m, err := src.Manifest(t.Context(), d)
	check.Must(t, err)
	if m.Digest != digest || m.ArtifactType != "application/vnd.test.config.v1+json" || m.Layers[0].Digest != blob.Digest {
		t.Errorf("got %+v", m)
	}
	config, err := src.ReadBlob(t.Context(), m.Config)
	check.Must(t, err)
	data, err := src.ReadBlob(t.Context(), m.Layers[0])
	check.Must(t, err)
	if string(config) != `{"platform":"test"}` || !bytes.Equal(data, layer) {
		t.Errorf("got config %s and %d bytes", config, len(data))
	}
	by := newSource(t, h.quick(), h.host()+"/"+repo+"@"+digest.String())
	if again, err := by.Resolve(t.Context()); err != nil || again.Digest != digest {
		t.Errorf("by digest: %+v %v", again, err)
	}
	if n := h.count("GET /v2/ "); n > 1 {
		t.Errorf("%d handshakes", n)
	}
}

func TestResolveWithoutHead(t *testing.T) {
	h := plainHub(t)
	digest, _ := h.push(t, "v1", []byte("x"))
	for name, before := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"not allowed": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusMethodNotAllowed)
			}
			return r.Method == http.MethodHead
		},
		"says nothing": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusOK)
			}
			return r.Method == http.MethodHead
		},
	} {
		t.Run(name, func(t *testing.T) {
			h.set(before)
			d, err := h.source(t).Resolve(t.Context())
			if err != nil || d.Digest != digest || d.Size == 0 || d.ArtifactType == "" {
				t.Errorf("got %+v %v", d, err)
			}
		})
	}
}

// answering makes a registry that answers every manifest and blob so.
func answering(code int, header map[string]string, body string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v2/" {
			return false
		}
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
		return true
	}
}

func TestRefusals(t *testing.T) {
	h := plainHub(t)
	digest, _ := h.push(t, "v1", []byte("x"))
	wrongDigest := strings.Replace(digest.String(), digest.Hex()[:8], "00000000", 1)
	denied := `{"errors":[{"code":"DENIED","message":"not yours\u001b[2J"}]}`
	for name, c := range map[string]struct {
		before func(http.ResponseWriter, *http.Request) bool
		kind   error
		words  []string
	}{
		"401":          {answering(401, nil, denied), artifact.ErrUnauthorized, []string{"401", "DENIED", "pull secret"}},
		"403":          {answering(403, nil, denied), artifact.ErrUnauthorized, []string{"403", "not yours"}},
		"404":          {nil, artifact.ErrNotFound, []string{"404", "MANIFEST_UNKNOWN", "check the name"}},
		"400":          {answering(400, nil, strings.Repeat("x", 100000)), artifact.ErrInvalid, []string{"400"}},
		"500":          {answering(500, nil, "oops"), artifact.ErrUnavailable, []string{"500"}},
		"503":          {answering(503, nil, ""), artifact.ErrUnavailable, []string{"503"}},
		"429":          {answering(429, map[string]string{"Retry-After": "7"}, ""), artifact.ErrUnavailable, []string{"429"}},
		"not json":     {answering(200, nil, "<html>"), artifact.ErrInvalid, []string{"JSON"}},
		"too large":    {answering(200, nil, strings.Repeat(" ", artifact.MaxManifest+1)), artifact.ErrTooLarge, []string{"4194304"}},
		"another":      {answering(200, nil, `{"schemaVersion":2}`), artifact.ErrMismatch, []string{"expected sha256:"}},
		"other header": {nil, artifact.ErrMismatch, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ref := h.host() + "/" + repo + ":v1"
			switch name {
			case "404":
				ref = h.host() + "/" + repo + ":v2"
			case "another":
				ref = h.host() + "/" + repo + "@" + digest.String()
			case "other header":
				ref = h.host() + "/" + repo + "@" + digest.String()
				header := map[string]string{"Docker-Content-Digest": wrongDigest, "Content-Type": manifestType, "Content-Length": "9"}
				c.before = answering(200, header, "")
			}
			h.set(c.before)
			src := newSource(t, h.quick(), ref)
			d, err := src.Resolve(t.Context())
			if err == nil {
				t.Fatalf("got %+v", d)
			}
			if name == "401" || name == "403" || name == "404" { // an answer to HEAD has no reason
				wantErr(t, err, c.kind, ref)
				_, err = src.Manifest(t.Context(), artifact.Descriptor{Digest: artifact.DigestOf([]byte("none"))})
				ref = h.host() + "/" + repo + "@sha256:"
			}
			wantErr(t, err, c.kind, append(c.words, ref, h.host())...)
			if strings.ContainsAny(err.Error(), "\x1b\n") || len(err.Error()) > 1000 {
				t.Errorf("not fit for a terminal: %q", err)
			}
			if want := name == "429"; (RetryAfter(err) == 7*time.Second) != want {
				t.Errorf("retry after %v", RetryAfter(err))
			}
		})
	}
}

func TestBounds(t *testing.T) {
	h := plainHub(t)
	src := h.source(t)
	large := artifact.Descriptor{Digest: artifact.DigestOf(nil), Size: artifact.MaxManifest + 1}
	_, err := src.Manifest(t.Context(), large)
	wantErr(t, err, artifact.ErrTooLarge)
	_, err = src.ReadBlob(t.Context(), large)
	wantErr(t, err, artifact.ErrTooLarge)
	for _, d := range []artifact.Descriptor{{}, {Digest: artifact.DigestOf(nil), Size: -1}, {Digest: artifact.DigestOf(nil), Size: 1 << 62}} {
		_, err = src.Manifest(t.Context(), d)
		wantErr(t, err, artifact.ErrInvalid)
		_, err = src.ReadBlob(t.Context(), d)
		wantErr(t, err, artifact.ErrInvalid)
		wantErr(t, newStore(t, artifact.StoreConfig{}).Fetch(t.Context(), src, d), artifact.ErrInvalid)
	}
	digest, _ := h.push(t, "v1", []byte("x"))
	_, err = src.Manifest(t.Context(), artifact.Descriptor{Digest: digest, Size: 3})
	wantErr(t, err, artifact.ErrMismatch, "expected 3")
	if n := h.count("/blobs/"); n != 0 {
		t.Errorf("%d blobs were asked for", n)
	}
}

// TestPlainHTTP: a registry on loopback that speaks plain http is refused unless it is listed.
func TestPlainHTTP(t *testing.T) {
	h := plainHub(t)
	h.push(t, "v1", []byte("x"))
	config := h.quick()
	config.PlainHTTP = []string{"127.0.0.1", "localhost"}
	src := newSource(t, config, h.host()+"/"+repo+":v1")
	_, err := src.Resolve(t.Context())
	wantErr(t, err, artifact.ErrPlainHTTP, "list the host", h.host())
	if n := h.count(""); n != 0 {
		t.Errorf("%d requests in plain http", n)
	}
	h.Close() // nothing listens: that it may not be asked in plain http is not the reason
	_, err = src.Resolve(t.Context())
	wantErr(t, err, artifact.ErrUnavailable, "refused")
}

func tlsHub(t *testing.T) (*hub, *http.Transport) {
	h := newHub(t, httptest.NewTLSServer)
	transport, ok := h.Client().Transport.(*http.Transport)
	if !ok {
		t.Fatal("no transport")
	}
	return h, transport
}

// TestRedirects: blobs may be at another host, which gets no credentials and no plain http.
func TestRedirects(t *testing.T) {
	h, transport := tlsHub(t)
	layer := blobBytes(2, 5000)
	_, blob := h.push(t, "v1", layer)
	elsewhere := newHub(t, httptest.NewTLSServer)
	elsewhere.handler = h.handler
	plain := plainHub(t)
	plain.handler = h.handler
	target := elsewhere.URL
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, target+r.URL.Path+"?signature=hunter2", http.StatusTemporaryRedirect)
			return true
		}
		return false
	})
	config := h.quick()
	config.PlainHTTP, config.Transport = nil, transport
	c, err := NewClient(config)
	check.Must(t, err)
	keys, err := credentials(secret(login(h.host(), "me")))
	check.Must(t, err)
	src := c.Source(mustReference(t, h.host()+"/"+repo+":v1"), keys)
	got, err := src.ReadBlob(t.Context(), blob)
	check.Must(t, err)
	if !bytes.Equal(got, layer) || len(elsewhere.seen) != 1 {
		t.Errorf("got %d bytes with %d requests elsewhere", len(got), len(elsewhere.seen))
	}
	for _, r := range elsewhere.seen {
		if len(r.Header["Authorization"]) > 0 {
			t.Error("another host got the credentials")
		}
	}

	target = plain.URL
	_, err = src.ReadBlob(t.Context(), blob)
	wantErr(t, err, artifact.ErrPlainHTTP, plain.host())
	if n := plain.count(""); n != 0 {
		t.Errorf("%d requests in plain http", n)
	}

	target = h.URL
	_, err = src.ReadBlob(t.Context(), blob)
	wantErr(t, err, artifact.ErrUnavailable, "redirects")

	elsewhere.Close()
	target = elsewhere.URL
	_, err = src.ReadBlob(t.Context(), blob)
	wantErr(t, err, artifact.ErrUnavailable, "refused")
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error tells a signed URL: %v", err)
	}
}

func TestUnknownAuthority(t *testing.T) {
	h, transport := tlsHub(t)
	transport.TLSClientConfig.RootCAs = x509.NewCertPool()
	config := h.quick()
	config.PlainHTTP, config.Transport = nil, transport
	_, err := newSource(t, config, h.host()+"/"+repo+":v1").Resolve(t.Context())
	wantErr(t, err, artifact.ErrUnavailable, "certificate")
}

// tokens makes the registry want a bearer token of its own token server, good for so many requests.
func tokens(h *hub, user string, uses int64) (issued *atomic.Int64) {
	issued = &atomic.Int64{}
	var used atomic.Int64
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			name, password, _ := r.BasicAuth()
			if name != user || user != "" && password != "pass:word" {
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"wrong password"}]}`))
				return true
			}
			used.Store(0)
			_ = json.NewEncoder(w).Encode(map[string]string{"token": fmt.Sprintf("t%d", issued.Add(1))})
			return true
		}
		if r.Header.Get("Authorization") == fmt.Sprintf("Bearer t%d", issued.Load()) && used.Add(1) <= uses {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="s",scope="repository:%s:pull"`, h.URL, repo))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	return issued
}

func TestTokens(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(3, 5000)
	h.push(t, "v1", layer)
	c, err := NewClient(h.quick())
	check.Must(t, err)
	good, err := credentials(secret(login(h.host(), "me")))
	check.Must(t, err)
	bad, err := credentials(secret(login(h.host(), "you")))
	check.Must(t, err)
	ref := mustReference(t, h.host()+"/"+repo+":v1")
	issued := tokens(h, "me", 2)
	src := c.Source(ref, good)
	d, err := src.Resolve(t.Context())
	check.Must(t, err)
	for range 4 { // tokens run out in between
		_, err := src.Manifest(t.Context(), d)
		check.Must(t, err)
	}
	if n := issued.Load(); n < 2 || n > 4 {
		t.Errorf("%d tokens", n)
	}
	for name, keys := range map[string]authn.Keychain{"none": nil, "wrong": bad} {
		_, err := c.Source(ref, keys).Resolve(t.Context())
		wantErr(t, err, artifact.ErrUnauthorized, "wrong password", "pull secret")
		if strings.Contains(err.Error(), "pass:word") {
			t.Error(name, err)
		}
	}
	tokens(h, "", 100)
	_, err = c.Source(ref, nil).Resolve(t.Context())
	check.Must(t, err)
}

// TestTokensSideBySide: a token that is good for one request, renewed with a refresh token, while many read at once.
func TestTokensSideBySide(t *testing.T) {
	h := plainHub(t)
	_, blob := h.push(t, "v1", blobBytes(30, 5000))
	var mu sync.Mutex
	issued, fresh, renewed := 0, false, 0
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/token" {
			if r.Method == http.MethodPost && r.FormValue("refresh_token") == "again" {
				renewed++
			}
			issued, fresh = issued+1, true
			_ = json.NewEncoder(w).Encode(map[string]string{"access_token": fmt.Sprintf("t%d", issued), "refresh_token": "again"})
			return true
		}
		if fresh && r.Header.Get("Authorization") == fmt.Sprintf("Bearer t%d", issued) {
			fresh = false
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="s"`, h.URL))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	src := h.source(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				if _, err := src.ReadBlob(t.Context(), blob); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if renewed < 20 {
		t.Errorf("%d tokens, %d by the refresh token", issued, renewed)
	}
}

func TestTokenServerElsewhere(t *testing.T) {
	h := plainHub(t)
	for realm, kind := range map[string]error{
		"http://169.254.169.254/latest": artifact.ErrInvalid, "http://tokens.invalid/": artifact.ErrPlainHTTP, "": artifact.ErrInvalid,
	} {
		h.set(func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q`, realm))
			if realm == "" {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			w.WriteHeader(http.StatusUnauthorized)
			return true
		})
		_, err := h.source(t).Resolve(t.Context())
		wantErr(t, err, kind, h.source(t).Reference().Registry()[:4])
	}
}

type failingKeys struct{}

func (failingKeys) Resolve(authn.Resource) (authn.Authenticator, error) {
	return nil, errors.New("helper broke")
}

func TestKeychainFails(t *testing.T) {
	h := plainHub(t)
	c, err := NewClient(h.quick())
	check.Must(t, err)
	_, err = c.Source(mustReference(t, h.host()+"/"+repo+":v1"), failingKeys{}).Resolve(t.Context())
	if err == nil || !strings.Contains(err.Error(), "helper broke") || h.count("") != 0 {
		t.Errorf("got %v after %d requests", err, h.count(""))
	}
}

// TestMirrors: they are asked first, with credentials of their own, and the registry has the last word.
func TestMirrors(t *testing.T) {
	origin, mirror, dead := plainHub(t), plainHub(t), plainHub(t)
	layer := blobBytes(4, 5000)
	digest, blob := origin.push(t, "v1", layer)
	dead.Close()
	origin.set(func(w http.ResponseWriter, r *http.Request) bool {
		if user, _, _ := r.BasicAuth(); user == "me" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	config := origin.quick()
	config.PlainHTTP = append(config.PlainHTTP, mirror.host(), dead.host())
	config.Mirrors = Mirrors{origin.host(): {{Host: dead.host()}, {Host: mirror.host() + "/cache/of"}}}
	c, err := NewClient(config)
	check.Must(t, err)
	keys, err := credentials(secret(login(origin.host(), "me")))
	check.Must(t, err)
	src := c.Source(mustReference(t, origin.host()+"/"+repo+":v1"), keys)
	read := func() {
		t.Helper()
		d, err := src.Resolve(t.Context())
		check.Must(t, err)
		got, err := src.ReadBlob(t.Context(), blob)
		check.Must(t, err)
		if d.Digest != digest || !bytes.Equal(got, layer) {
			t.Errorf("got %s and %d bytes", d.Digest, len(got))
		}
	}
	read()
	if n := mirror.count("HEAD /v2/cache/of/" + repo); n != 1 {
		t.Errorf("the mirror was asked %d times", n)
	}
	for _, r := range mirror.seen {
		if len(r.Header["Authorization"]) > 0 {
			t.Error("the mirror got the registry's credentials")
		}
	}
	before := origin.count("")
	mirror.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = strings.Replace(r.URL.Path, "cache/of/", "", 1)
		origin.handler.ServeHTTP(w, r)
	})
	read()
	if n := origin.count("") - before; n != 0 {
		t.Errorf("the registry was asked %d times for what the mirror has", n)
	}
	mirror.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			_, _ = w.Write(blobBytes(5, len(layer))) // of the right length
			return
		}
		w.WriteHeader(http.StatusNotFound)
	})
	read()
	origin.set(answering(404, nil, ""))
	mirror.set(answering(404, nil, ""))
	before = mirror.count("/blobs/") + origin.count("/blobs/")
	_, err = src.ReadBlob(t.Context(), blob)
	wantErr(t, err, artifact.ErrUnavailable, dead.host(), mirror.host(), origin.host(), "not found") // the dead one may have it
	if n := mirror.count("/blobs/") + origin.count("/blobs/") - before; n != 2 {
		t.Errorf("%d requests to those that do not have it", n)
	}
}

func TestRetries(t *testing.T) {
	h := plainHub(t)
	digest, _ := h.push(t, "v1", []byte("x"))
	var n atomic.Int64
	failing := func(times int64, header map[string]string) {
		n.Store(0)
		h.set(func(w http.ResponseWriter, r *http.Request) bool {
			return n.Add(1) <= times && answering(503, header, "")(w, r)
		})
	}
	failing(3, nil) // the first of four requests is the handshake
	d, err := h.source(t).Resolve(t.Context())
	if err != nil || d.Digest != digest || n.Load() != 4 {
		t.Errorf("got %s %v after %d requests", d.Digest, err, n.Load())
	}
	failing(100, nil)
	_, err = h.source(t).Resolve(t.Context())
	wantErr(t, err, artifact.ErrUnavailable)
	if n.Load() != 4 {
		t.Errorf("%d requests, want three tries", n.Load())
	}
	failing(100, map[string]string{"Retry-After": "3600"})
	_, err = h.source(t).Resolve(t.Context())
	wantErr(t, err, artifact.ErrUnavailable)
	if n.Load() != 2 || RetryAfter(err) != time.Hour {
		t.Errorf("%d requests, retry after %v", n.Load(), RetryAfter(err))
	}
}

// TestRetryAfterIsWaitedFor counts the pauses of a clock that stands still otherwise.
func TestRetryAfterIsWaitedFor(t *testing.T) {
	h := plainHub(t)
	h.push(t, "v1", []byte("x"))
	var n atomic.Int64
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		return r.URL.Path != "/v2/" && n.Add(1) == 1 && answering(429, map[string]string{"Retry-After": "9"}, "")(w, r)
	})
	config := h.quick()
	config.MaxWait = 10 * time.Second
	pauses := &pausing{}
	config.Clock = pauses
	_, err := newSource(t, config, h.host()+"/"+repo+":v1").Resolve(t.Context())
	check.Must(t, err)
	if len(pauses.waited) != 1 || pauses.waited[0] < 9*time.Second || pauses.waited[0] > 9*time.Second*5/4 {
		t.Errorf("waited %v", pauses.waited)
	}
	for round, most := range map[int]time.Duration{1: time.Millisecond, 3: 4 * time.Millisecond, 60: 10 * time.Second} {
		src := newSource(t, config, h.host()+"/"+repo+":v1")
		check.Must(t, src.wait(t.Context(), round, nil))
		if got := pauses.waited[len(pauses.waited)-1]; got > most || got < most/2-1 {
			t.Errorf("round %d waits %v, want up to %v", round, got, most)
		}
	}
}

// pausing is the real clock, on which pauses take no time.
type pausing struct {
	clock.RealClock
	waited []time.Duration
}

func (p *pausing) NewTimer(d time.Duration) clock.Timer {
	p.waited = append(p.waited, d)
	return clock.RealClock{}.NewTimer(0)
}

func TestRetryAfterForms(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "x": 0, "-5": 0, "30": 30 * time.Second, "99999999999": 0, "999999999": 24 * time.Hour,
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:04:00 GMT": 0,
	} {
		if got := retryAfter(value, now); got != want && value != "99999999999" {
			t.Errorf("%q: got %v, want %v", value, got, want)
		}
	}
}

// standing is the real clock, on which pauses have no end. It tells that one begins.
type standing struct {
	clock.RealClock
	waits chan<- struct{}
}

func (s standing) NewTimer(d time.Duration) clock.Timer {
	s.waits <- struct{}{}
	return clocktesting.NewFakeClock(time.Time{}).NewTimer(d)
}

func TestContextEnds(t *testing.T) {
	h := plainHub(t)
	_, blob := h.push(t, "v1", blobBytes(6, 1000))
	reason := errors.New("the claim is gone")
	release := make(chan struct{})
	defer close(release)
	waits := make(chan struct{}, 10)
	hangs := func() { waits <- struct{}{}; <-release }
	for name, before := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"handshake": func(http.ResponseWriter, *http.Request) bool { hangs(); return true },
		"body": func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/blobs/") {
				return false
			}
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write(make([]byte, 10))
			w.(http.Flusher).Flush()
			hangs()
			return true
		},
		"pause": answering(503, map[string]string{"Retry-After": "1"}, ""),
	} {
		t.Run(name, func(t *testing.T) {
			h.set(before)
			ctx, cancel := context.WithCancelCause(t.Context())
			config := h.quick()
			config.MaxWait, config.Clock = time.Minute, standing{waits: waits}
			ended := make(chan error, 1)
			go func() {
				_, err := newSource(t, config, h.host()+"/"+repo+":v1").ReadBlob(ctx, blob)
				ended <- err
			}()
			<-waits
			cancel(reason)
			err := <-ended
			if !errors.Is(err, reason) || !artifact.IsRetryable(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestStall: a registry that goes silent, in the handshake, before an answer or within one, is given up on time.
func TestStall(t *testing.T) {
	h := plainHub(t)
	layer := blobBytes(7, 1000)
	_, blob := h.push(t, "v1", layer)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	for name, hangs := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"handshake": func(_ http.ResponseWriter, r *http.Request) bool { return r.URL.Path == "/v2/" },
		"answer":    func(_ http.ResponseWriter, r *http.Request) bool { return r.URL.Path != "/v2/" },
		"body": func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v2/" {
				return false
			}
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write(layer[:10])
			w.(http.Flusher).Flush()
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			waiting := make(chan struct{}, 10)
			h.set(func(w http.ResponseWriter, r *http.Request) bool {
				if !hangs(w, r) {
					return false
				}
				waiting <- struct{}{}
				<-release
				return true
			})
			fake := clocktesting.NewFakeClock(time.Now())
			config := h.quick()
			config.Clock, config.Tries = fake, 1
			src := newSource(t, config, h.host()+"/"+repo+":v1")
			done := make(chan error, 1)
			go func() {
				_, err := src.ReadBlob(t.Context(), blob)
				done <- err
			}()
			<-waiting
			var err error
			for deadline := time.Now().Add(time.Minute); err == nil && time.Now().Before(deadline); {
				select {
				case err = <-done:
				case <-time.After(time.Millisecond):
					fake.Step(defaultStall / 2)
				}
			}
			wantErr(t, err, artifact.ErrUnavailable, "nothing was sent for 30s")
		})
	}
}

func TestUserAgentAndEncoding(t *testing.T) {
	h := plainHub(t)
	h.push(t, "v1", []byte("x"))
	config := h.quick()
	config.UserAgent = "fettle/test"
	_, err := newSource(t, config, h.host()+"/"+repo+":v1").Resolve(t.Context())
	check.Must(t, err)
	for _, r := range h.seen {
		if !strings.HasPrefix(r.UserAgent(), "fettle/test ") || r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("%s %s: %v", r.Method, r.URL, r.Header)
		}
	}
}

func TestBasicIsForTheRegistryOnly(t *testing.T) {
	h := plainHub(t)
	_, blob := h.push(t, "v1", []byte("x"))
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:pass:word"))
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == want {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	c, err := NewClient(h.quick())
	check.Must(t, err)
	keys, err := credentials(secret(login(h.host()+"/team", "me")))
	check.Must(t, err)
	_, err = c.Source(mustReference(t, h.host()+"/"+repo+":v1"), keys).ReadBlob(t.Context(), blob)
	check.Must(t, err)
	_, err = c.Source(mustReference(t, h.host()+"/other/bits:v1"), keys).ReadBlob(t.Context(), blob)
	wantErr(t, err, artifact.ErrUnauthorized, "other/bits")
}

// TestPauseIsBounded: a registry may ask for a pause of a day, in seconds or by a date, and for no longer one: who is told the pause asks
// again after it.
func TestPauseIsBounded(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"7": 7 * time.Second, "-7": 0, "-99999999999": 0, "99999999999": 24 * time.Hour, "soon": 0, "": 0,
		"Thu, 01 Jan 2026 00:00:07 GMT": 7 * time.Second, "Wed, 31 Dec 2025 00:00:00 GMT": 0, "Fri, 31 Dec 9999 23:59:59 GMT": 24 * time.Hour,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: a pause of %s, want %s", value, got, want)
		}
	}
}
