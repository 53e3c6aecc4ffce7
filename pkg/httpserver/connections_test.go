// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// preface is what a client of HTTP/2 sends first, with an empty frame SETTINGS.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// TestManySourcesTakeNoConnection: pods with several addresses open all connections that they can, speak HTTP/2 on them, and open others as
// soon as the server closes one. Another client is served meanwhile, and the node's own probes at once.
func TestManySourcesTakeNoConnection(t *testing.T) {
	for _, sources := range []int{4, 16, 250} {
		t.Run(fmt.Sprint(sources), func(t *testing.T) {
			settings, err := TLS("")
			if err != nil {
				t.Fatal(err)
			}
			address := startServer(t, &Server{TLS: settings, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				Proven(r.Context())
				fmt.Fprintln(w, "ok")
			})})
			ctx, stop := context.WithCancel(t.Context())
			var attackers sync.WaitGroup
			t.Cleanup(func() { stop(); attackers.Wait() })
			ready := make(chan struct{}, sources)
			for i := range sources {
				attackers.Go(func() { attack(ctx, fmt.Sprintf("127.1.%d.%d", i/200, i%200+1), address, sources, ready) })
			}
			for range sources { // each has as many connections as there are for its number
				<-ready
			}
			check.Eventually(t, "another client is served", func() bool {
				return getTLS(t.Context(), "127.2.0.1", address) == "HTTP/1.1 200"
			})
			for range 5 {
				if got := getTLS(t.Context(), "127.0.0.1", address); got != "HTTP/1.1 200" {
					t.Errorf("a probe from the server's own address: %s", got)
				}
				if got := getTLS(t.Context(), "127.2.0.1", address); got != "HTTP/1.1 200" {
					t.Errorf("a client that was served before: %s", got)
				}
			}
		})
	}
}

// attack opens connections until ctx ends, and keeps 64 of them. It is one of so many sources, which together use up the connections of the
// server before they report, and open two hundred in a second afterwards: the server and they have the same processors.
func attack(ctx context.Context, from, to string, sources int, ready chan<- struct{}) {
	enough := 256/sources + 1
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}()
	pace := time.NewTicker(5 * time.Duration(sources) * time.Millisecond)
	defer pace.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		if i == enough {
			ready <- struct{}{}
		}
		if i >= enough {
			<-pace.C
		}
		if conn, err := dialFrom(ctx, from, to); err == nil {
			// Every eighth has a whole handshake, which costs the attacker as much as the server.
			if i%8 == 0 {
				secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
				conn = secure
				if secure.HandshakeContext(ctx) == nil {
					_, _ = io.WriteString(conn, preface)
				}
			}
			open = append(open, conn)
		}
		if len(open) > maxOfSource {
			_ = open[0].Close()
			open = open[1:]
		}
	}
}

func dialFrom(ctx context.Context, from, to string) (net.Conn, error) {
	return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, "tcp", to)
}

func getTLS(ctx context.Context, from, to string) string {
	conn, err := dialFrom(ctx, from, to)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	return get(tls.Client(conn, &tls.Config{InsecureSkipVerify: true}))
}

// TestStrangersStarveNobody lets up to 1,000 sources open and close connections in any order and as fast as a server accepts them. Whatever
// they do, the server's own address and known sources are always served, another source within two windows, and limits hold.
func TestStrangersStarveNobody(t *testing.T) {
	choices := seed.New(t)
	for range 4 {
		starve(t, choices)
	}
}

// handshake is how long a client takes from the connection to its first request.
const handshake = 10 * time.Millisecond

func starve(t *testing.T, r *rand.Rand) {
	t.Helper()
	l, now := bound(nil), time.Unix(1_000_000, 0)
	attackers, each := 1+r.IntN(1000), time.Second/time.Duration(1000+r.IntN(19_000))
	name := fmt.Sprintf("%d attackers, one connection each %s", attackers, each)
	gone := map[*countedConn]bool{}
	arrive := func(c *countedConn) bool {
		admitted, evicted := l.admit(c, now)
		if evicted != nil {
			gone[evicted] = true
		}
		if !admitted {
			gone[c] = true
		}
		if r.IntN(50) == 0 {
			strangers, of := 0, map[netip.Prefix]int{}
			for _, o := range l.open {
				if of[o.source]++; of[o.source] > maxOfSource {
					t.Fatalf("%s: %d connections of %s", name, of[o.source], o.source)
				}
				if l.rank(o, now) == stranger {
					strangers++
				}
			}
			if len(l.open) > maxConnections || strangers > maxStrangers {
				t.Fatalf("%s: %d connections, %d of strangers", name, len(l.open), strangers)
			}
		}
		return admitted
	}
	flood := func(until time.Time) {
		for ; now.Before(until); now = now.Add(each) {
			if len(l.open) > 0 && r.IntN(10) == 0 {
				if c := l.open[r.IntN(len(l.open))]; l.rank(c, now) == stranger {
					l.remove(c)
				}
			}
			arrive(&countedConn{source: address(1 + r.IntN(attackers))})
		}
	}
	// serve has a client connect, and send its request after the handshake.
	serve := func(c *countedConn) bool {
		if !arrive(c) {
			return false
		}
		flood(now.Add(handshake))
		if gone[c] {
			return false
		}
		l.prove(c, now)
		return true
	}
	flood(now.Add(time.Second))
	begun, apiServer := now, &countedConn{source: address(0)}
	for !serve(apiServer) {
		if now.Sub(begun) > 2*arrivalWindow {
			t.Fatalf("%s: a new source is not served within %s", name, now.Sub(begun))
		}
		flood(now.Add(handshake))
		apiServer = &countedConn{source: address(0)}
	}
	for range 50 {
		own, again := &countedConn{source: address(2000), own: true}, &countedConn{source: address(0)}
		if !serve(own) || !serve(again) {
			t.Fatalf("%s: the own address lost its connection: %v; the known source: %v", name, gone[own], gone[again])
		}
		l.remove(own)
		l.remove(again)
	}
	if gone[apiServer] {
		t.Errorf("%s: a connection that sent a valid request was closed for another", name)
	}
}

func address(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i / 256), byte(i % 256)}), 32)
}

// TestSource: one machine is one source, whichever of its IPv6 addresses it uses, and however an IPv4 address is written.
func TestSource(t *testing.T) {
	for _, test := range []struct {
		remote, local, want string
		own                 bool
	}{
		{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.1/32", false},
		{"10.0.0.2:1", "10.0.0.2:2", "10.0.0.2/32", true},
		{"[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.1]:2", "10.0.0.1/32", true},
		{"[2001:db8::1]:1", "[2001:db8:1::1]:1", "2001:db8::/64", false},
		{"[2001:db8::ffff:2]:1", "[2001:db8::1]:1", "2001:db8::/64", false},
		{"[fe80::1%eth0]:1", "[fe80::1%eth0]:1", "fe80::/64", true},
	} {
		tcp := func(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
		got, own := sourceOf(addressed{remote: tcp(test.remote), local: tcp(test.local)})
		if got.String() != test.want || own != test.own {
			t.Errorf("%s to %s: %s, own %v, want %s, %v", test.remote, test.local, got, own, test.want, test.own)
		}
	}
}

type addressed struct {
	net.Conn
	remote, local net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.remote }
func (a addressed) LocalAddr() net.Addr  { return a.local }

// TestKnownSourcesAreBounded: what is remembered does not grow with the sources that are seen, and ends.
func TestKnownSourcesAreBounded(t *testing.T) {
	l, now := bound(nil), time.Unix(1_000_000, 0)
	for i := range 3 * maxSources {
		now = now.Add(time.Microsecond)
		c := &countedConn{source: address(i)}
		l.admit(c, now)
		if i%3 == 0 {
			l.prove(c, now)
		}
		l.remove(c)
	}
	if len(l.known) > maxKnown || len(l.arrived) > maxSources {
		t.Errorf("%d sources are known and %d are counted", len(l.known), len(l.arrived))
	}
	last := &countedConn{source: address(3*maxSources - 3)}
	if now, later := l.rank(last, now), l.rank(last, now.Add(knownFor)); now != known || later != stranger {
		t.Errorf("the last source has rank %d, and a day later %d", now, later)
	}
}
