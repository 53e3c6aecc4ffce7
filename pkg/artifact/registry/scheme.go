// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"fmt"
	"net/http"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/registryname"
)

// schemeGuard chooses between http and https for each request, redirects and requests to token servers included.
type schemeGuard struct {
	plain map[string]bool
	own   string
	inner http.RoundTripper
}

// GuardScheme returns a transport that sends plain http to the listed hosts and to no other. The listed ones get nothing else.
//
// A plain request to own is sent by https instead, since the library asks a registry on loopback or in a private network in plain http
// unless told otherwise. A plain request to any other host fails with artifact.ErrPlainHTTP. An empty own is no host.
func GuardScheme(inner http.RoundTripper, plainHTTP []string, own string) http.RoundTripper {
	g := &schemeGuard{plain: map[string]bool{}, own: own, inner: inner}
	for _, host := range plainHTTP {
		g.plain[registryname.Host(host)] = true
	}
	return g
}

func (g *schemeGuard) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	switch {
	case g.plain[registryname.Host(r.URL.Host)]:
		r.URL.Scheme = "http" // the library tries https first, whatever it is told
	case r.URL.Host == g.own:
		r.URL.Scheme = "https"
	case r.URL.Scheme != "https":
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, PlainHTTPRefused(r.URL.Host)
	}
	return g.inner.RoundTrip(r)
}

// PlainHTTPRefused returns the error for a host that asks for plain http and is not listed for it.
func PlainHTTPRefused(host string) error {
	return fmt.Errorf("%s: %w: expected https; where it has none, list the host for plain http in the configuration",
		host, artifact.ErrPlainHTTP)
}
