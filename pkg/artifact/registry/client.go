// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

const (
	defaultTries   = 5
	defaultBackoff = 500 * time.Millisecond
	defaultMaxWait = 15 * time.Second
	defaultStall   = 30 * time.Second
)

// Config is what the admin says of registries. The zero value speaks https with every registry.
type Config struct {
	// PlainHTTP are the hosts, each with its port where it is not 80, that are spoken to in plain http and in nothing else. No other
	// host ever is, not even one on loopback, and a redirect changes nothing about it.
	PlainHTTP []string
	// Mirrors are, for the host of a reference, the places that are asked before it: HOST, HOST:PORT or either with a /PATH that the
	// repository is appended to. They get no credentials but their own. What a mirror gives to everybody, everybody can pull here.
	Mirrors map[string][]string
	// Transport makes the requests. Nil: TLS with the authorities that the process believes, and no proxy.
	Transport http.RoundTripper
	// UserAgent is prepended to the library's own.
	UserAgent string
	// Tries is how often in a row each endpoint is asked without getting on, 5 where it is 0.
	Tries int
	// Backoff is the pause before the second try, 500 ms where it is 0. It doubles up to MaxWait, 15 s where that is 0. Where a
	// registry asks for more than MaxWait, the call fails and RetryAfter tells.
	Backoff, MaxWait time.Duration
	// Stall is how long a registry may send nothing, 30 s where it is 0.
	Stall time.Duration
	// Clock is the real one where it is nil.
	Clock clock.WithDelayedExecution
}

// Client pulls from registries. It has no state but its connections, and is safe for concurrent use.
type Client struct {
	config    Config
	mirrors   map[string][]endpoint
	transport http.RoundTripper
}

// endpoint is a place where repositories are.
type endpoint struct {
	host, prefix string
}

// NewClient checks the configuration. It makes no request.
func NewClient(config Config) (*Client, error) {
	c := &Client{config: config.withDefaults(), mirrors: map[string][]endpoint{}}
	for _, host := range config.PlainHTTP {
		if !artifact.ValidHost(strings.ToLower(host)) {
			return nil, fmt.Errorf("the plain http host %s is %w: expected HOST or HOST:PORT", quote(host), artifact.ErrInvalid)
		}
	}
	for _, host := range slices.Sorted(maps.Keys(config.Mirrors)) {
		if !artifact.ValidHost(artifact.CanonicalHost(host)) {
			return nil, fmt.Errorf("mirrors: the registry %s is %w: expected HOST or HOST:PORT", quote(host), artifact.ErrInvalid)
		}
		for _, mirror := range config.Mirrors[host] {
			e := endpoint{}
			e.host, e.prefix, _ = strings.Cut(mirror, "/")
			if e.host = artifact.CanonicalHost(e.host); !artifact.ValidHost(e.host) || e.prefix != "" && !artifact.ValidRepository(e.prefix) {
				return nil, fmt.Errorf("the mirror %s of %s is %w: expected HOST, HOST:PORT or either with a /PATH, without a scheme",
					quote(mirror), host, artifact.ErrInvalid)
			}
			c.mirrors[artifact.CanonicalHost(host)] = append(c.mirrors[artifact.CanonicalHost(host)], e)
		}
	}
	secure := &answers{inner: GuardScheme(c.config.Transport, config.PlainHTTP, ""), now: c.config.Clock.Now}
	c.transport = transport.NewUserAgent(secure, config.UserAgent)
	return c, nil
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
		DialContext:            (&net.Dialer{Timeout: 15 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
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

// Source is the reference, read with these credentials, or without any where keys is nil.
func (c *Client) Source(ref artifact.Reference, keys authn.Keychain) *Source {
	s := &Source{client: c, ref: ref, keys: keys, turn: make(chan struct{}, 1), sessions: map[endpoint]*session{}}
	for _, e := range append(slices.Clone(c.mirrors[ref.Registry()]), endpoint{host: ref.Registry()}) {
		s.endpoints = append(s.endpoints, e.of(ref.Path()))
	}
	return s
}

// of is the endpoint of one repository.
func (e endpoint) of(repository string) endpoint {
	if e.prefix != "" {
		repository = e.prefix + "/" + repository
	}
	return endpoint{host: e.host, prefix: repository}
}
