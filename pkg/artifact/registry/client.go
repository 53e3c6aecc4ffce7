// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/registryname"
	"github.com/fettle-dev/fettle/pkg/artifact"
)

const (
	defaultTries   = 5
	defaultBackoff = 500 * time.Millisecond
	defaultMaxWait = 15 * time.Second
	defaultStall   = 30 * time.Second
)

// Config is the administrator's configuration of registries. The zero value uses https for every registry.
type Config struct {
	// PlainHTTP lists hosts, each with its port where that is not 80, that get plain http and nothing else. Every other host gets https,
	// also on loopback and after a redirect.
	PlainHTTP []string
	// Mirrors lists, by the host of a reference, the mirrors that are asked first. A mirror gets only credentials that are for its own host,
	// unless it is configured to get those for the registry.
	Mirrors Mirrors
	// MirrorsOnly lists registries that are never asked themselves, such as those that cannot be reached from here. Their mirrors alone
	// decide who may read what. What a mirror of any other registry has, a TenantSource reads only if the registry itself lets it.
	MirrorsOnly []string
	// Transport sends the requests. Nil: TLS with the certificate authorities of the process, through the proxy of its environment. Where
	// Ranges is given, there is no proxy.
	Transport http.RoundTripper
	// AllowedDestinations lists what is contacted wherever it is: HOST, HOST:PORT, or a range of addresses. The hosts in PlainHTTP and the
	// mirrors are allowed too. It counts where Ranges is given.
	AllowedDestinations []string
	// ClusterCIDRs lists ranges of the cluster's addresses that Ranges does not know.
	ClusterCIDRs []string
	// Ranges returns addresses of the cluster, which are not contacted, and neither are those of this machine, of loopback, link-local and
	// the like. It is called for each connection. Nil: the client connects anywhere, as people's own tools do.
	Ranges Ranges
	// UserAgent is prepended to the library's own.
	UserAgent string
	// Report gets the reasons that the errors of a TenantSource leave out. Nil drops them.
	Report func(ctx context.Context, ref artifact.Reference, reason error)
	// Tries is how often each endpoint is asked in a row without progress. 0 means 5.
	Tries int
	// Backoff is the pause before the second try; 0 means 500 ms. It doubles up to MaxWait, where 0 means 15 s. If a registry asks for a
	// longer pause than MaxWait, the call fails and RetryAfter returns that pause.
	Backoff, MaxWait time.Duration
	// Stall is how long a registry may send nothing before the request fails. 0 means 30 s.
	Stall time.Duration
	// Clock is for tests. Nil: the real one.
	Clock clock.WithDelayedExecution
}

// Client pulls from registries. Its only state is its connections. It is safe for concurrent use.
type Client struct {
	config      Config
	mirrors     map[string][]endpoint
	mirrorsOnly map[string]bool
	transport   http.RoundTripper
	// destinations is nil if the client connects anywhere.
	destinations *destinations
}

// endpoint is a registry or mirror, with the path that its repositories begin with.
type endpoint struct {
	host, prefix string
	// path is the repository's at the registry.
	path string
	// mirror is nil for the registry itself.
	mirror *mirrored
}

// NewClient checks the configuration. It sends no request.
func NewClient(config Config) (*Client, error) {
	c := &Client{config: config.withDefaults(), mirrors: map[string][]endpoint{}, mirrorsOnly: map[string]bool{}}
	for _, host := range config.PlainHTTP {
		if !registryname.Valid(registryname.Host(host)) {
			return nil, fmt.Errorf("the plain http host %s is %w: expected HOST or HOST:PORT", quote(host), artifact.ErrInvalid)
		}
	}
	for _, host := range slices.Sorted(maps.Keys(config.Mirrors)) {
		if !registryname.Valid(registryname.Host(host)) {
			return nil, fmt.Errorf("mirrors: the registry %s is %w: expected HOST or HOST:PORT", quote(host), artifact.ErrInvalid)
		}
		for i := range config.Mirrors[host] {
			e, err := config.Mirrors[host][i].endpoint(host)
			if err != nil {
				return nil, err
			}
			c.mirrors[registryname.Host(host)] = append(c.mirrors[registryname.Host(host)], e)
		}
	}
	for _, host := range config.MirrorsOnly {
		if len(c.mirrors[registryname.Host(host)]) == 0 {
			return nil, fmt.Errorf("mirrorsOnly: the registry %s is %w: expected one that mirrors has", quote(host), artifact.ErrInvalid)
		}
		c.mirrorsOnly[registryname.Host(host)] = true
	}
	inner, err := c.guarded()
	if err != nil {
		return nil, err
	}
	secure := &retryTransport{inner: GuardScheme(inner, config.PlainHTTP, ""), now: c.config.Clock.Now}
	c.transport = transport.NewUserAgent(secure, config.UserAgent)
	return c, nil
}

// guarded returns the configuration's transport. If the client may not connect anywhere, it is one that checks each address and uses no
// proxy, since a proxy would resolve the name itself.
func (c *Client) guarded() (http.RoundTripper, error) {
	var err error
	if c.destinations, err = newDestinations(&c.config); err != nil || c.destinations == nil {
		return c.config.Transport, err
	}
	plain, ok := c.config.Transport.(*http.Transport)
	if !ok {
		return nil, fmt.Errorf("the transport is %w: expected *http.Transport, whose connections can be checked", artifact.ErrInvalid)
	}
	plain = plain.Clone()
	plain.Proxy, plain.DialContext = nil, c.destinations.dial
	return plain, nil
}

func (c Config) withDefaults() Config {
	setDefault(&c.Tries, defaultTries)
	setDefault(&c.Backoff, defaultBackoff)
	setDefault(&c.MaxWait, defaultMaxWait)
	setDefault(&c.Stall, defaultStall)
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Transport == nil {
		c.Transport = newTransport(nil)
	}
	return c
}

func newTransport(config *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            newDialer().DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    15 * time.Second,
		IdleConnTimeout:        90 * time.Second,
		MaxIdleConnsPerHost:    4,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
	}
}

func setDefault[T int | time.Duration](value *T, otherwise T) {
	if *value <= 0 {
		*value = otherwise
	}
}

// Mirrors returns the configured mirrors. A nil client has none.
func (c *Client) Mirrors() registryname.Mirrors {
	if c == nil {
		return nil
	}
	return c.config.Mirrors.Names()
}

// Source returns a reader of the reference with these credentials. Nil keys: without credentials.
func (c *Client) Source(ref artifact.Reference, keys authn.Keychain) *Source {
	s := &Source{client: c, ref: ref, keys: keys, lock: make(chan struct{}, 1), sessions: map[endpoint]*session{}, received: &atomic.Int64{}}
	for _, mirror := range c.mirrors[ref.Registry()] {
		s.endpoints = append(s.endpoints, mirror.of(ref.Path()))
	}
	if !c.mirrorsOnly[ref.Registry()] {
		s.endpoints = append(s.endpoints, own(ref))
	}
	return s
}

// own returns the endpoint of a reference at its registry itself.
func own(ref artifact.Reference) endpoint { return endpoint{host: ref.Registry()}.of(ref.Path()) }

// of returns the endpoint of one repository.
func (e endpoint) of(repository string) endpoint {
	e.path = repository
	if e.prefix != "" {
		repository = e.prefix + "/" + repository
	}
	e.prefix = repository
	return e
}

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
