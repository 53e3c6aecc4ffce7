// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

// TestTenantsReadOneReason: whatever keeps a client from a registry's answer, a tenant reads the same, and it takes as many tries.
func TestTenantsReadOneReason(t *testing.T) {
	port, contacts := trap(t)
	closed := httptest.NewServer(nil)
	closed.Close()
	h := plainHub(t)
	var reasons []error
	config := h.quick()
	config.UserAgent = "fettle-test"
	config.Report = func(_ context.Context, _ artifact.Reference, reason error) { reasons = append(reasons, reason) }
	secure := newHub(t, httptest.NewTLSServer)
	elsewhere := strings.TrimPrefix(closed.URL, "http://")
	page := func(code int, header map[string]string, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			for k, v := range header {
				w.Header().Set(k, v)
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
			return true
		}
	}
	texts := map[string][]string{}
	for name, c := range map[string]struct {
		host   string
		before func(http.ResponseWriter, *http.Request) bool
	}{
		"closed port":           {host: elsewhere},
		"connection is reset":   {host: "127.0.0.1:" + port},
		"plain http":            {host: strings.Replace(h.host(), "127.0.0.1", "127.0.0.2", 1)},
		"unknown authority":     {host: secure.host()},
		"no such name":          {host: "nobody.invalid:5000"},
		"page for everything":   {before: page(200, nil, "<html>")},
		"json for everything":   {before: page(200, map[string]string{"Content-Type": "application/json"}, `{"secret":"s3cr3t"}`)},
		"not found":             {before: page(404, nil, "no such page")},
		"no such manifest page": {before: answering(404, nil, "no such page")},
		"forbidden":             {before: page(403, nil, `{"kind":"Status","message":"forbidden"}`)},
		"password":              {before: page(401, map[string]string{"WWW-Authenticate": `Basic realm="s3cr3t"`}, "")},
		"other errors":          {before: page(403, nil, `{"errors":[{"code":"PERMISSION","message":"s3cr3t"}]}`)},
		"server error":          {before: page(500, nil, "oops")},
		"later":                 {before: page(503, map[string]string{"Retry-After": "0"}, "")},
		"redirect elsewhere": {before: func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "https://"+elsewhere+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		}},
	} {
		if c.host == "" {
			c.host = h.host()
		}
		h.set(c.before)
		cl, err := NewClient(config)
		check.Must(t, err)
		reasons = nil
		_, err = cl.TenantSource(mustReference(t, c.host+"/"+repo+":v1"), nil).Resolve(t.Context())
		wantErr(t, err, artifact.ErrUnavailable, "fettle-test", c.host)
		texts[strings.ReplaceAll(err.Error(), c.host, "HOST")] = append(texts[strings.ReplaceAll(err.Error(), c.host, "HOST")], name)
		for _, kind := range []error{artifact.ErrPlainHTTP, artifact.ErrInvalid, artifact.ErrNotFound, artifact.ErrUnauthorized} {
			if errors.Is(err, kind) {
				t.Errorf("%s: a caller can tell that it is %v", name, kind)
			}
		}
		if len(reasons) != 1 || reasons[0].Error() == "" || strings.Contains(reasons[0].Error(), "in the log") {
			t.Errorf("%s: the administrator reads %v", name, reasons)
		}
	}
	if len(texts) != 1 {
		t.Errorf("tenants can tell apart: %q", texts)
	}
	if n := contacts.Load(); n < int64(config.Tries) {
		t.Errorf("%d tries of a connection that is reset, want at least %d", n, config.Tries)
	}
}

// TestTenantsReadAnswers: what a registry answers as a registry does is told, and keeps its kind.
func TestTenantsReadAnswers(t *testing.T) {
	h := plainHub(t)
	h.push(t, "v1", []byte("x"))
	c, err := NewClient(h.quick())
	check.Must(t, err)
	denied := `{"errors":[{"code":"DENIED","message":"not yours"}]}`
	atFirst := func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, denied)
		return true
	}
	many := `{"errors":[{"code":"TOOMANYREQUESTS","message":"slower"}]}`
	for name, test := range map[string]struct {
		before func(http.ResponseWriter, *http.Request) bool
		tag    string
		kind   error
		words  []string
	}{
		"unknown":  {nil, "v2", artifact.ErrNotFound, []string{"404", "MANIFEST_UNKNOWN", "check the name"}},
		"denied":   {answering(403, nil, denied), "v1", artifact.ErrUnauthorized, []string{"not yours", "pull secret"}},
		"at first": {atFirst, "v1", artifact.ErrUnauthorized, []string{"not yours"}},
		"slower":   {answering(429, map[string]string{"Retry-After": "7"}, many), "v1", artifact.ErrUnavailable, []string{"slower"}},
		"manifest": {answering(200, map[string]string{"Content-Type": manifestType}, "{"), "v1", artifact.ErrInvalid, []string{"JSON"}},
	} {
		h.set(test.before)
		src := c.TenantSource(mustReference(t, h.host()+"/"+repo+":"+test.tag), nil)
		_, err := src.Resolve(t.Context())
		if name == "slower" { // an answer to HEAD has no reason
			_, err = src.Manifest(t.Context(), artifact.Descriptor{Digest: artifact.DigestOf(nil)})
		}
		wantErr(t, err, test.kind, test.words...)
		if want := name == "slower"; (RetryAfter(err) == 7*time.Second) != want {
			t.Errorf("%s: retry after %s", name, RetryAfter(err))
		}
	}
}

// TestTenantsReadNothingOfElsewhere: where a registry sends the request for a blob to is not told, neither its status nor its content.
func TestTenantsReadNothingOfElsewhere(t *testing.T) {
	h, elsewhere := plainHub(t), plainHub(t)
	_, blob := h.push(t, "v1", []byte("x"))
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, elsewhere.URL+"/page", http.StatusTemporaryRedirect)
		}
		return strings.Contains(r.URL.Path, "/blobs/")
	})
	config := h.quick()
	config.PlainHTTP = append(config.PlainHTTP, elsewhere.host())
	c, err := NewClient(config)
	check.Must(t, err)
	texts := map[string]bool{}
	for _, answer := range []func(http.ResponseWriter, *http.Request) bool{
		answering(404, nil, ""), answering(200, nil, "y"), answering(200, nil, "yy"), answering(403, nil, "s3cr3t"), answering(502, nil, ""),
	} {
		elsewhere.set(answer)
		src := c.TenantSource(mustReference(t, h.host()+"/"+repo+":v1"), nil)
		_, err := src.Resolve(t.Context())
		check.Must(t, err)
		_, err = src.ReadBlob(t.Context(), blob)
		wantErr(t, err, artifact.ErrUnavailable)
		texts[err.Error()] = true
	}
	if len(texts) != 1 {
		t.Errorf("tenants can tell apart: %v", texts)
	}
}
