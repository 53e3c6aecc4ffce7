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
