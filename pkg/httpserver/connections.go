// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Limits of the connections of one server.
const (
	// maxConnections is how many are open at once, and maxStrangers how many of these are of sources that never sent a valid request. A
	// connection costs some 40 kB with TLS. API servers, kubelet and Prometheus have a few each.
	maxConnections = 256
	maxStrangers   = 192
	// maxOfSource is how many are open at once of one source. A stranger may open as many in arrivalWindow, so that connections which are
	// closed in favor of new ones had time to send a request.
	maxOfSource   = 64
	arrivalWindow = 4 * time.Second
	// maxSources is how many sources are counted in a window, and how many are remembered because of a valid request.
	maxSources = 4096
	maxKnown   = 64
	// knownFor is how long a source is remembered after its last valid request.
	knownFor = 24 * time.Hour
)

// Bound returns the listener with the limits of connections that a [Server] has, for servers of other protocols.
func Bound(listener net.Listener) net.Listener { return bound(listener) }

func bound(listener net.Listener) *boundedListener {
	return &boundedListener{
		Listener: listener, of: map[netip.Prefix]int{}, arrived: map[netip.Prefix]int{}, known: map[netip.Prefix]time.Time{},
	}
}

// boundedListener limits the connections of a server. When a limit is reached it closes a connection for the new one, and which one
// depends on what clients did, so that many clients that hold or open connections keep no other client out:
//
//   - connections that sent a valid request ([Proven]) are kept,
//   - then those of sources that did so before, and of the server's own address, which is kubelet's on the network of the node,
//   - of all others, the source with the most connections loses its oldest.
type boundedListener struct {
	net.Listener

	mu sync.Mutex
	// open are the connections, in the order in which they came, and of is how many of them each source has.
	open []*countedConn
	of   map[netip.Prefix]int
	// arrived counts the connections of each source since the time begun.
	arrived map[netip.Prefix]int
	begun   time.Time
	// known says when each source sent a valid request last.
	known map[netip.Prefix]time.Time
}

// countedConn is an open connection.
type countedConn struct {
	net.Conn

	listener *boundedListener
	source   netip.Prefix
	// own says that the client has the server's own address.
	own bool
	// proven says that it sent a valid request.
	proven bool
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &countedConn{Conn: conn, listener: l}
		c.source, c.own = sourceOf(conn)
		admitted, evicted := l.admit(c, time.Now())
		if evicted != nil {
			_ = evicted.Conn.Close()
		}
		if admitted {
			return c, nil
		}
		_ = conn.Close()
	}
}

// sourceOf returns what counts as one client: an IPv4 address, or a network of 64 bits, since a machine may have all of its IPv6
// addresses. own says that the client is on the machine or in the pod of the server: it has the same address, or a unix socket.
func sourceOf(conn net.Conn) (source netip.Prefix, own bool) {
	remote, isTCP := conn.RemoteAddr().(*net.TCPAddr)
	if !isTCP {
		return netip.Prefix{}, true
	}
	address := remote.AddrPort().Addr().Unmap().WithZone("")
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	local, isTCP := conn.LocalAddr().(*net.TCPAddr)
	own = isTCP && local.AddrPort().Addr().Unmap().WithZone("") == address
	return netip.PrefixFrom(address, bits).Masked(), own
}

// admit counts a new connection, unless there is no room for it. evicted is the connection that the caller must close for it.
func (l *boundedListener) admit(c *countedConn, now time.Time) (admitted bool, evicted *countedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.begun) >= arrivalWindow || len(l.arrived) >= maxSources {
		clear(l.arrived)
		l.begun = now
	}
	if l.rank(c, now) == stranger {
		if l.arrived[c.source]++; l.arrived[c.source] > maxOfSource {
			return false, nil
		}
	}
	full, evicted := l.victim(c, now)
	if full && evicted == nil {
		return false, nil
	}
	if evicted != nil {
		l.remove(evicted)
	}
	l.open = append(l.open, c)
	l.of[c.source]++
	return true, evicted
}

// Ranks of connections. One with a lower rank is closed first.
const (
	stranger = iota
	known
	proven
)

func (l *boundedListener) rank(c *countedConn, now time.Time) int {
	last, remembered := l.known[c.source]
	switch {
	case c.proven:
		return proven
	case c.own || remembered && now.Sub(last) < knownFor:
		return known
	}
	return stranger
}

// victim says whether a limit is reached for a new connection, and which one to close for it: nil if there is none.
func (l *boundedListener) victim(c *countedConn, now time.Time) (full bool, evicted *countedConn) {
	strangers := 0
	for _, o := range l.open {
		if l.rank(o, now) == stranger {
			strangers++
		}
	}
	may := func(o *countedConn) bool { return l.rank(o, now) < proven }
	switch isStranger := l.rank(c, now) == stranger; {
	case l.of[c.source] >= maxOfSource:
		may = func(o *countedConn) bool { return o.source == c.source && l.rank(o, now) < proven }
	case isStranger && strangers >= maxStrangers:
		may = func(o *countedConn) bool { return l.rank(o, now) == stranger }
	case len(l.open) < maxConnections:
		return false, nil
	}
	for _, o := range l.open { // the oldest first
		if !may(o) {
			continue
		}
		if evicted == nil || l.rank(o, now) < l.rank(evicted, now) ||
			l.rank(o, now) == l.rank(evicted, now) && l.of[o.source] > l.of[evicted.source] {
			evicted = o
		}
	}
	return true, evicted
}

func (l *boundedListener) remove(c *countedConn) {
	if i := slices.Index(l.open, c); i >= 0 {
		l.open = slices.Delete(l.open, i, i+1)
		if l.of[c.source]--; l.of[c.source] == 0 {
			delete(l.of, c.source)
		}
	}
}

// prove notes that a connection sent a valid request, and remembers its source.
func (l *boundedListener) prove(c *countedConn, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.proven = true
	l.known[c.source] = now
	for len(l.known) > maxKnown {
		oldest := c.source
		for source, last := range l.known {
			if last.Before(l.known[oldest]) {
				oldest = source
			}
		}
		delete(l.known, oldest)
	}
}

func (c *countedConn) Close() error {
	c.listener.mu.Lock()
	c.listener.remove(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

type connKey struct{}

// withConn returns the context of the requests of a connection.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, conn)
}

// Proven says that the client of a request of a [Server] showed a secret that strangers do not have. The server then keeps the connection,
// and prefers others of its source, when strangers open too many.
func Proven(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*countedConn); ok {
		c.listener.prove(c, time.Now())
	}
}

// Source returns the client of a request of a [Server] as the server counts it.
func Source(ctx context.Context) netip.Prefix {
	if c, ok := ctx.Value(connKey{}).(*countedConn); ok {
		return c.source
	}
	return netip.Prefix{}
}
