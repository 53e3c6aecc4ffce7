// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

// private is a registry that only its user "me" may read, and a mirror that reads it with credentials of its own, for anybody.
type private struct {
	origin, mirror *hub
	digest         artifact.Digest
	blob           artifact.Descriptor
	config         Config
}

func newPrivate(t *testing.T, prefix string) *private {
	t.Helper()
	p := &private{origin: plainHub(t), mirror: plainHub(t)}
	p.digest, p.blob = p.origin.push(t, "v1", blobBytes(4, 5000))
	p.origin.set(func(w http.ResponseWriter, r *http.Request) bool {
		if user, _, _ := r.BasicAuth(); user == "me" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		return answering(http.StatusUnauthorized, nil, `{"errors":[{"code":"UNAUTHORIZED"}]}`)(w, r)
	})
	p.mirror.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = strings.Replace(r.URL.Path, prefix, "", 1)
		p.origin.handler.ServeHTTP(w, r)
	})
	p.config = p.origin.quick()
	p.config.PlainHTTP = append(p.config.PlainHTTP, p.mirror.host())
	p.config.Mirrors = Mirrors{p.origin.host(): {{Host: strings.TrimSuffix(p.mirror.host()+"/"+prefix, "/")}}}
	return p
}

// source is a tenant's, for the repository at a registry, with or without the credentials of the private one.
func (p *private) source(t *testing.T, repository string, user string) *Source {
	t.Helper()
	c, err := NewClient(p.config)
	check.Must(t, err)
	ref := mustReference(t, repository+":v1")
	if user == "" {
		return c.TenantSource(ref, nil)
	}
	keys, err := credentials(secret(login(p.origin.host(), user)))
	check.Must(t, err)
	return c.TenantSource(ref, keys)
}

// reads are all ways to read by a source.
func (p *private) reads() map[string]func(context.Context, *Source) error {
	return map[string]func(context.Context, *Source) error{
		"Resolve": func(ctx context.Context, s *Source) error {
			_, err := s.Resolve(ctx)
			return err
		},
		"Manifest": func(ctx context.Context, s *Source) error {
			_, err := s.Manifest(ctx, artifact.Descriptor{Digest: p.digest})
			return err
		},
		"ReadBlob": func(ctx context.Context, s *Source) error {
			_, err := s.ReadBlob(ctx, p.blob)
			return err
		},
		"Prove": func(ctx context.Context, s *Source) error { return s.Prove(ctx, p.blob) },
		"Open": func(ctx context.Context, s *Source) error {
			r, err := s.Open(ctx, p.blob)
			if err != nil {
				return err
			}
			return r.Close()
		},
		"Tagged": func(ctx context.Context, s *Source) error {
			_, err := s.Tagged(ctx, "v1")
			return err
		},
		"Referrers": func(ctx context.Context, s *Source) error {
			_, err := s.Referrers(ctx, p.digest, "")
			return err
		},
	}
}

// TestMirrorLendsNoCredentials: what a mirror reads with its own credentials, a tenant reads only with some that the registry takes, by
// whichever name and whichever call. Nobody else's answer counts, and none is no yes.
func TestMirrorLendsNoCredentials(t *testing.T) {
	for _, prefix := range []string{"", "cache/of/"} {
		p := newPrivate(t, prefix)
		for by, repository := range map[string]string{
			"the registry": p.origin.host() + "/" + repo, "the mirror": p.mirror.host() + "/" + prefix + repo,
		} {
			for name, read := range p.reads() {
				t.Run(strings.Join([]string{name, "by", by, prefix}, " "), func(t *testing.T) {
					before := p.mirror.count("")
					for _, user := range []string{"", "somebody"} {
						err := read(t.Context(), p.source(t, repository, user))
						wantErr(t, err, artifact.ErrUnauthorized, p.origin.host())
					}
					if n := p.mirror.count("") - before; n != 0 {
						t.Errorf("the mirror was asked %d times", n)
					}
					check.Must(t, read(t.Context(), p.source(t, repository, "me")))
				})
			}
		}
		if p.mirror.count("/blobs/") == 0 || p.origin.count("/blobs/") > 0 {
			t.Errorf("%d blobs came from the mirror, %d from the registry", p.mirror.count("/blobs/"), p.origin.count("/blobs/"))
		}
	}
}

// TestOwnerIsAskedOnce: one question to the registry covers all that a source reads afterwards, and Resolve asks anew.
func TestOwnerIsAskedOnce(t *testing.T) {
	p := newPrivate(t, "")
	src := p.source(t, p.origin.host()+"/"+repo, "me")
	for range 3 {
		for _, name := range []string{"Manifest", "Prove", "Tagged"} {
			check.Must(t, p.reads()[name](t.Context(), src))
		}
	}
	if n := p.origin.count("/manifests/"); n != 1 {
		t.Errorf("the registry was asked %d times", n)
	}
	p.origin.set(answering(http.StatusNotFound, nil, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`))
	_, err := src.Resolve(t.Context())
	wantErr(t, err, artifact.ErrNotFound)
}

// TestRegistryThatIsAway: without its word a tenant gets nothing from its mirror, and an administrator everything.
func TestRegistryThatIsAway(t *testing.T) {
	p := newPrivate(t, "")
	p.origin.Close()
	for name, read := range p.reads() {
		wantErr(t, read(t.Context(), p.source(t, p.origin.host()+"/"+repo, "me")), artifact.ErrUnavailable)
		if name == "Referrers" { // of which the mirror has none, and the registry may
			continue
		}
		c, err := NewClient(p.config)
		check.Must(t, err)
		if err := read(t.Context(), c.Source(mustReference(t, p.origin.host()+"/"+repo+":v1"), nil)); err != nil {
			t.Errorf("%s for an administrator: %v", name, err)
		}
	}
}

// TestMirrorsOnly: a registry whose mirrors stand for it is never asked, and so neither says who may read.
func TestMirrorsOnly(t *testing.T) {
	p := newPrivate(t, "")
	p.config.MirrorsOnly = []string{p.origin.host()}
	for _, repository := range []string{p.origin.host() + "/" + repo, p.mirror.host() + "/" + repo} {
		for _, read := range p.reads() {
			check.Must(t, read(t.Context(), p.source(t, repository, "")))
		}
	}
	p.mirror.set(answering(http.StatusNotFound, nil, `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`))
	_, err := p.source(t, p.origin.host()+"/"+repo, "me").Resolve(t.Context())
	wantErr(t, err, artifact.ErrNotFound)
	if n := p.origin.count(""); n != 0 {
		t.Errorf("the registry was asked %d times", n)
	}
}

// TestRedirectToMirror: a registry of a tenant sends nobody to a mirror of another registry, which gives anybody what it has. The registry
// itself and the mirror may.
func TestRedirectToMirror(t *testing.T) {
	p, evil := newPrivate(t, "cache/of/"), plainHub(t)
	p.config.PlainHTTP = append(p.config.PlainHTTP, evil.host())
	at := "http://" + p.mirror.host() + "/v2/cache/of/" + repo + "/blobs/" + p.blob.Digest.String()
	send := func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, at, http.StatusTemporaryRedirect)
			return true
		}
		return false
	}
	evil.set(send)
	for name, read := range p.reads() {
		if name != "ReadBlob" && name != "Prove" && name != "Open" {
			continue
		}
		if err := read(t.Context(), p.source(t, evil.host()+"/mallory/x", "somebody")); err == nil {
			t.Errorf("%s: read through a redirect", name)
		}
	}
	if n := p.mirror.count(""); n != 0 {
		t.Errorf("the mirror was asked %d times", n)
	}
	first := true
	p.mirror.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !first || !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		first = false
		w.WriteHeader(http.StatusNotFound)
		return true
	})
	ask := p.origin.handler
	p.mirror.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = strings.Replace(r.URL.Path, "cache/of/", "", 1)
		ask.ServeHTTP(w, r)
	})
	p.origin.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !send(w, r) {
			ask.ServeHTTP(w, r)
		}
	})
	check.Must(t, p.reads()["Open"](t.Context(), p.source(t, p.origin.host()+"/"+repo, "me")))
	if first || p.origin.count("/blobs/") == 0 {
		t.Error("the registry did not send the request on")
	}
}

// TestGuardedMirrorNames: another spelling of a mirror's name leads to the mirror, too.
func TestGuardedMirrorNames(t *testing.T) {
	reached := ""
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reached = r.URL.Host })
	c, err := NewClient(Config{Mirrors: Mirrors{
		"a.example": {{Host: "mirror.example/x"}, {Host: "[::1]:5000"}, {Host: "own.example"}}, "b.example": {{Host: "own.example"}},
	}})
	check.Must(t, err)
	for host, refused := range map[string]bool{
		"mirror.example": true, "MIRROR.example:443": true, "mirror.example.": true, "mirror.example:": true, "mirror.example.:0443": true,
		"ｍirror.example": true, "[0:0::1]:5000": true, "elsewhere.example": false, "mirror.example:5000": false, "own.example": false,
		"b.example": false,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+"/v2/", http.NoBody)
		check.Must(t, err)
		through := c.guardMirrors("b.example", network{r.URL.Host: answer})
		for _, redirected := range []bool{false, true} {
			if reached = ""; redirected {
				r.Response = &http.Response{}
			}
			resp, err := through.RoundTrip(r)
			if err == nil {
				check.Must(t, resp.Body.Close())
			}
			if got := reached == ""; got != (refused && redirected) || got != errors.Is(err, artifact.ErrDestination) {
				t.Errorf("%s, redirected %v: %v", host, redirected, err)
			}
		}
	}
}
