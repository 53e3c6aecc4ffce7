// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

// clusterRanges are those that the tests' API server tells.
func clusterRanges(context.Context) ([]netip.Prefix, error) {
	return ParseRanges("10.96.0.0/16", "fd00:10:96::/112", "10.244.1.0/24", "192.0.2.7", "node-1"), nil
}

func rules(t *testing.T, c Config) *destinations {
	t.Helper()
	if c.Ranges == nil {
		c.Ranges = clusterRanges
	}
	d, err := newDestinations(&c)
	check.Must(t, err)
	d.own = func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.ParseIP("198.51.100.9"), Mask: net.CIDRMask(24, 32)}}, nil
	}
	return d
}

// TestAddresses: which addresses are contacted, in all the forms that an address has.
func TestAddresses(t *testing.T) {
	d := rules(t, Config{
		AllowedDestinations: []string{"10.96.7.0/24", "::ffff:10.97.0.0/112", "127.0.0.9/32"},
		ClusterCIDRs:        []string{"10.245.0.0/16", "fd01::/48"},
	})
	for address, refused := range map[string]bool{
		"127.0.0.1": true, "127.8.9.10": true, "127.0.0.9": false, "::1": true, "::ffff:127.0.0.1": true, "::127.0.0.1": true,
		"64:ff9b::7f00:1": true, "64:ff9b:1::7f00:1": true, "2002:7f00:1::": true, "2002:7f00:1::5": true,
		"169.254.169.254": true, "169.254.0.1": true, "::ffff:169.254.169.254": true, "fe80::1": true, "fe80::1%eth0": true,
		"64:ff9b::a9fe:a9fe": true, "2002:a9fe:a9fe::1": true, "fd00:ec2::254": true, "168.63.129.16": true, "100.100.100.200": true,
		"0.0.0.0": true, "0.1.2.3": true, "::": true, "::ffff:0.0.0.0": true,
		"224.0.0.1": true, "239.1.2.3": true, "ff02::1": true, "ff0e::1": true, "255.255.255.255": true,
		"10.96.0.1": true, "10.96.255.255": true, "::ffff:10.96.0.1": true, "64:ff9b::a60:1": true, "10.96.7.3": false, "10.95.0.1": false,
		"fd00:10:96::1": true, "fd00:10:97::1": false, "10.244.1.9": true, "10.244.2.9": false, "10.245.9.9": true, "fd01::9": true,
		"192.0.2.7": true, "192.0.2.8": false, "198.51.100.9": true, "198.51.100.10": false,
		"203.0.113.5": false, "2606:4700::1": false, "10.0.0.5": false, "192.168.1.5": false, "172.16.0.9": false, "10.97.0.1": false,
	} {
		err := d.check(t.Context(), "registry.example", netip.MustParseAddr(address))
		if errors.Is(err, artifact.ErrDestination) != refused || !refused && err != nil {
			t.Errorf("%s: got %v, want refused %v", address, err, refused)
		}
		if refused && !strings.Contains(err.Error(), "bitstreams.registries.allowedDestinations") {
			t.Errorf("%s: no next step: %v", address, err)
		}
	}
	unknown := rules(t, Config{Ranges: func(context.Context) ([]netip.Prefix, error) { return nil, errors.New("no answer") }})
	if err := unknown.check(t.Context(), "registry.example", netip.MustParseAddr("203.0.113.5")); !errors.Is(err, artifact.ErrUnavailable) {
		t.Errorf("the cluster's addresses are not known: %v", err)
	}
}

// TestNames: what a name alone tells is refused without asking a name server, and what the administrator names is not refused.
func TestNames(t *testing.T) {
	d := rules(t, Config{
		AllowedDestinations: []string{"Registry.infra.svc:5000", "10.96.0.7:443", "[fd00:10:96::7]:5000"}, PlainHTTP: []string{"localhost:5000"},
		Mirrors: Mirrors{"docker.io": {{Host: "mirror.svc:5000/cache"}}},
	})
	for host, refused := range map[string]bool{
		"registry.infra.svc:5000": false, "registry.infra.svc:05000": false, "registry.infra.svc": true, "10.96.0.7": false,
		"10.96.0.7:443":  false,
		"10.96.0.7:5000": true, "[fd00:10:96::7]:5000": false, "[fd00:10:96:0::7]:5000": false, "[fd00:10:96::7]": true, "localhost:5000": false,
		"localhost": true, "localhost:5001": true, "a.localhost": true, "localhost.:5001": true, "mirror.svc:5000": false, "mirror.svc": true,
		"kubernetes.default.svc": true, "x.y.svc.cluster.local:443": true, "127.0.0.1:5000": true, "[::1]:5000": true,
		"[::ffff:127.0.0.1]:443": true, "registry.example": false, "docker.io": false, "svc.example": false, "169.254.169.254": true,
	} {
		if err := d.checkName(t.Context(), host); errors.Is(err, artifact.ErrDestination) != refused {
			t.Errorf("%s: got %v, want refused %v", host, err, refused)
		}
	}
	var anywhere *destinations
	check.Must(t, anywhere.checkName(t.Context(), "localhost"))
	for _, c := range []Config{
		{AllowedDestinations: []string{"https://a"}}, {AllowedDestinations: []string{"a/b"}}, {ClusterCIDRs: []string{"a"}},
	} {
		if _, err := NewClient(c); !errors.Is(err, artifact.ErrInvalid) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}

// trap is a listener that nobody may contact. It returns its port and how many did.
func trap(t *testing.T) (port string, contacts *atomic.Int64) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	check.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	contacts = &atomic.Int64{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			contacts.Add(1)
			_ = c.Close()
		}
	}()
	_, port, err = net.SplitHostPort(l.Addr().String())
	check.Must(t, err)
	return port, contacts
}

// nameServer answers every question for an address of IPv4 with the next of the answers, the last one for ever.
func nameServer(t *testing.T, answers ...[4]byte) *net.Resolver {
	t.Helper()
	c, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	check.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &dnsmessage.AResource{A: answers[0]},
				}}
				answers = answers[min(1, len(answers)-1):]
			}
			if packed, err := m.Pack(); err == nil {
				_, _ = c.WriteTo(packed, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", c.LocalAddr().String())
	}}
}

// TestRebinding: a name that means another address each time is checked each time, at the address that is connected to.
func TestRebinding(t *testing.T) {
	port, contacts := trap(t)
	d := rules(t, Config{})
	d.resolver = nameServer(t, [4]byte{203, 0, 113, 5}, [4]byte{127, 0, 0, 1})
	addresses, err := d.resolver.LookupNetIP(t.Context(), "ip4", "rebind.example")
	check.Must(t, err)
	check.Must(t, d.check(t.Context(), "rebind.example", addresses[0])) // who only looks first lets it pass
	_, err = d.dial(t.Context(), "tcp", "rebind.example:"+port)
	if !errors.Is(err, artifact.ErrDestination) || contacts.Load() != 0 {
		t.Errorf("%d contacts, %v", contacts.Load(), err)
	}
	allowed := rules(t, Config{AllowedDestinations: []string{"127.0.0.0/8"}})
	allowed.resolver = nameServer(t, [4]byte{127, 0, 0, 1})
	c, err := allowed.dial(t.Context(), "tcp", "registry.example:"+port)
	check.Must(t, err)
	check.Must(t, c.Close())
}

// TestProxy: a person's client asks through the proxy of the environment, and one that may not connect anywhere asks through none.
func TestProxy(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		config := Config{}
		if guarded {
			config.Ranges = clusterRanges
		}
		c, err := NewClient(config)
		check.Must(t, err)
		inner, err := c.guarded()
		check.Must(t, err)
		if plain, ok := inner.(*http.Transport); !ok || (plain.Proxy == nil) != guarded {
			t.Errorf("guarded %t: transport %T, which asks for a proxy: %t", guarded, inner, ok && plain.Proxy != nil)
		}
	}
}

// TestGuardedClient: neither a reference nor a redirect nor a token server leads a client to the node itself.
func TestGuardedClient(t *testing.T) {
	port, contacts := trap(t)
	h := plainHub(t)
	h.push(t, "v1", []byte("x"))
	config := h.quick() // its plain http host is allowed
	config.Ranges = clusterRanges
	for _, host := range []string{"127.0.0.1:" + port, "[::1]:" + port, "localhost:" + port, "[::ffff:127.0.0.1]:" + port} {
		ref, err := artifact.ParseReference(host + "/" + repo + ":v1")
		if err != nil {
			continue // a reference cannot spell it
		}
		c, err := NewClient(config)
		check.Must(t, err)
		_, err = c.Source(ref, nil).Resolve(t.Context())
		wantErr(t, err, artifact.ErrDestination, ref.Registry())
		_, err = c.TenantSource(ref, nil).Resolve(t.Context())
		wantErr(t, err, artifact.ErrDestination, ref.Registry(), "allowedDestinations")
	}
	src := newSource(t, config, h.host()+"/"+repo+":v1")
	_, err := src.Resolve(t.Context())
	check.Must(t, err)
	for name, before := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"redirect": func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "https://127.0.0.1:"+port+"/", http.StatusTemporaryRedirect)
			return true
		},
		"realm": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://localhost:%s/token",service="s"`, port))
			w.WriteHeader(http.StatusUnauthorized)
			return true
		},
	} {
		h.set(before)
		_, err := newSource(t, config, h.host()+"/"+repo+":v1").Resolve(t.Context())
		wantErr(t, err, artifact.ErrDestination, "127.0.0.1")
		if name == "realm" && !strings.Contains(err.Error(), "localhost:"+port) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := contacts.Load(); n != 0 {
		t.Errorf("%d contacts", n)
	}
	config.Transport = answers(nil)
	if _, err := NewClient(config); !errors.Is(err, artifact.ErrInvalid) {
		t.Errorf("a transport that cannot be checked: %v", err)
	}
}

// answers is a transport that is no *http.Transport.
type answers func(*http.Request) (*http.Response, error)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

// TestTokenServerRedirects: a token server may not send a request on for ever either.
func TestTokenServerRedirects(t *testing.T) {
	h := plainHub(t)
	h.push(t, "v1", []byte("x"))
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/token") {
			http.Redirect(w, r, r.URL.Path+"x", http.StatusTemporaryRedirect)
			return true
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="s"`, h.URL))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	config := h.quick()
	config.Tries = 1
	_, err := newSource(t, config, h.host()+"/"+repo+":v1").Resolve(t.Context())
	wantErr(t, err, artifact.ErrUnavailable, "more than 5 redirects")
	if n := h.count("/token"); n != maxRedirects+1 {
		t.Errorf("%d requests to the token server", n)
	}
}
