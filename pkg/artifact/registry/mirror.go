// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/fettle-dev/fettle/api/registryname"
	"github.com/fettle-dev/fettle/pkg/artifact"
)

// Mirrors lists, by the host of a registry, the mirrors that are asked before it, in this order.
type Mirrors map[string][]Mirror

// Names returns the mirrors without their settings.
func (m Mirrors) Names() registryname.Mirrors {
	names := registryname.Mirrors{}
	for host, mirrors := range m {
		for i := range mirrors {
			names[host] = append(names[host], mirrors[i].Host)
		}
	}
	return names
}

// Mirror is a mirror of one registry. In a file it may be a string, which is its Host.
type Mirror struct {
	// Host is HOST, HOST:PORT or either with a /PATH to which the repository is appended.
	Host string `json:"host"`
	// Headers are sent with each request to the mirror, and to no other host. Their names begin with X-. They are no secret.
	Headers map[string]string `json:"headers,omitempty"`
	// ForwardCredentials gives the mirror the credentials for the registry, if there are none for the mirror's own host.
	ForwardCredentials bool `json:"forwardCredentials,omitempty"`
}

// UnmarshalJSON reads a string or an object. Unknown fields are refused, as in the rest of the file.
func (m *Mirror) UnmarshalJSON(data []byte) error {
	*m = Mirror{}
	if bytes.HasPrefix(data, []byte(`"`)) {
		return json.Unmarshal(data, &m.Host)
	}
	type plain Mirror
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode((*plain)(m)); err != nil {
		return fmt.Errorf("expected a mirror as HOST[:PORT][/PATH], or its host, headers and forwardCredentials: %w", err)
	}
	return nil
}

// MarshalJSON writes a string if the mirror has no settings, which earlier versions read, too.
func (m Mirror) MarshalJSON() ([]byte, error) {
	if len(m.Headers) == 0 && !m.ForwardCredentials {
		return json.Marshal(m.Host)
	}
	type plain Mirror
	return json.Marshal(plain(m))
}

const maxHeaders = 16

// Forms of a header. What the client itself sets has no name that begins with X-.
var (
	headerName  = regexp.MustCompile(`^[Xx](-[A-Za-z0-9]{1,32}){1,8}$`)
	headerValue = regexp.MustCompile(`^[!-~]([ -~]{0,254}[!-~])?$`)
)

// endpoint checks a mirror of a registry, and returns the endpoint without a repository.
func (m *Mirror) endpoint(of string) (endpoint, error) {
	host, prefix, _ := strings.Cut(m.Host, "/")
	e := endpoint{host: registryname.Host(host), prefix: prefix}
	e.mirror = &mirrored{registry: registryname.Host(of), forward: m.ForwardCredentials}
	if !registryname.Valid(e.host) || prefix != "" && !registryname.ValidPath(prefix) {
		return e, fmt.Errorf("the mirror %s of %s is %w: expected HOST, HOST:PORT or either with a /PATH, without a scheme",
			quote(m.Host), of, artifact.ErrInvalid)
	}
	if len(m.Headers) > maxHeaders {
		return e, fmt.Errorf("the mirror %s of %s is %w: %d headers, expected at most %d", m.Host, of, artifact.ErrInvalid, len(m.Headers),
			maxHeaders)
	}
	e.mirror.header = http.Header{}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		if !headerName.MatchString(name) {
			return e, fmt.Errorf("the mirror %s of %s: the header %s is %w: expected a name that begins with X-, of letters, digits and hyphens",
				m.Host, of, quote(name), artifact.ErrInvalid)
		}
		if !headerValue.MatchString(m.Headers[name]) {
			return e, fmt.Errorf("the mirror %s of %s: the value of the header %s is %w: expected 1 to 256 characters of printable ASCII without "+
				"spaces at its ends", m.Host, of, name, artifact.ErrInvalid)
		}
		e.mirror.header.Set(name, m.Headers[name])
	}
	return e, nil
}

// mirrored is what an endpoint of a mirror has beside its name.
type mirrored struct {
	// registry is the host of the registry.
	registry string
	header   http.Header
	forward  bool
}

// mirrorTransport tells a mirror which registry is meant, by the query ns as containerd does, and sends the mirror's headers. It changes a
// copy of each request, so a redirect to another host takes neither along.
type mirrorTransport struct {
	*mirrored
	// host is the mirror, as it stands in URLs.
	host  string
	inner http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *mirrorTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != t.host {
		return t.inner.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	maps.Copy(r.Header, t.header)
	if strings.HasPrefix(r.URL.Path, "/v2/") && !r.URL.Query().Has("ns") {
		if r.URL.RawQuery != "" {
			r.URL.RawQuery += "&"
		}
		r.URL.RawQuery += "ns=" + url.QueryEscape(t.registry)
	}
	return t.inner.RoundTrip(r)
}

// mirrorGuard keeps a registry from sending requests on to a mirror of others. The mirror would answer with what it reads by credentials of
// its own, and none of those others were asked, see askOwners. What the registry's own mirrors have is the registry's.
type mirrorGuard struct {
	inner http.RoundTripper
	from  string
	// others are the hosts of other registries' mirrors.
	others map[string]bool
}

// guardMirrors returns the transport of an endpoint that is no mirror.
func (c *Client) guardMirrors(host string, inner http.RoundTripper) http.RoundTripper {
	g := &mirrorGuard{inner: inner, from: host, others: map[string]bool{}}
	for _, mirrors := range c.mirrors {
		for i := range mirrors {
			g.others[mirrors[i].host] = true
		}
	}
	delete(g.others, host)
	for _, own := range c.mirrors[host] {
		delete(g.others, own.host)
	}
	return g
}

// RoundTrip implements http.RoundTripper. A request that follows from an answer is one that was redirected.
func (g *mirrorGuard) RoundTrip(r *http.Request) (*http.Response, error) {
	host, known := connectedHost(r.URL)
	if r.Response == nil || known && !g.others[host] {
		return g.inner.RoundTrip(r)
	}
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return nil, fmt.Errorf("%s is %w: %s sent the request there, and it is a mirror of other registries, or its name is not of ASCII letters",
		quote(r.URL.Host), artifact.ErrDestination, quote(g.from))
}

// connectedHost returns the one name of the host that a request goes to. What is written otherwise and leads there has the same: with a
// dot at its end, or with an empty port. It returns false for letters that a name server does not know, since several mean the same.
func connectedHost(u *url.URL) (host string, ok bool) {
	host, port := strings.TrimRight(u.Hostname(), "."), u.Port()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != "" {
		host += ":" + port
	}
	return registryname.Host(host), strings.IndexFunc(host, func(c rune) bool { return c >= utf8.RuneSelf }) < 0
}
