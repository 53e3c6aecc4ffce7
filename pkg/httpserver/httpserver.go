// SPDX-License-Identifier: Apache-2.0

// Package httpserver serves HTTP to whoever reaches the address, within fixed limits of connections, memory and time. Any pod of a cluster
// may be that, so no client can make the server grow, and one source alone cannot use up the connections of the others.
package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Limits of one server.
const (
	// maxConnections is how many connections are open at once, maxOfSource how many of one IP address. A connection costs some 40 kB with
	// TLS. API servers, kubelet and Prometheus have a few each.
	maxConnections = 256
	maxOfSource    = 64

	headerTimeout = 5 * time.Second
	bodyTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 60 * time.Second
	maxHeader     = 16 << 10
	// maxStreams and streamBuffer bound what HTTP/2 buffers of request bodies before a handler reads them, in requests and bytes.
	maxStreams   = 64
	streamBuffer = 64 << 10
	// stopTimeout is how long requests may go on once the server is stopped.
	stopTimeout = 5 * time.Second
)

// Server is an HTTP or HTTPS server.
type Server struct {
	// Name is what the log calls it.
	Name string
	// Address is where it listens, such as ":8080". Port 0 takes a free one, which the log names.
	Address string
	// Listener is served instead, if it is not nil. Run closes it.
	Listener net.Listener
	Handler  http.Handler
	// TLS has the certificate. Nil: plain HTTP.
	TLS *tls.Config
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	listener, err := Listen(ctx, s.Name, s.Address, s.Listener)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: s.Handler, TLSConfig: s.TLS, MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: streamBuffer, MaxReceiveBufferPerStream: streamBuffer,
		},
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(patience) != nil {
			_ = server.Close()
		}
	})
	bounded := Bound(listener)
	if s.TLS != nil {
		err = server.ServeTLS(bounded, "", "")
	} else {
		err = server.Serve(bounded)
	}
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve %s on %s: %w", s.Name, listener.Addr(), err)
}

// Listen returns the open listener, or if there is none, a new one at the address. The log names it, since port 0 takes a free one.
func Listen(ctx context.Context, name, address string, open net.Listener) (net.Listener, error) {
	if open == nil {
		var err error
		if open, err = new(net.ListenConfig).Listen(ctx, "tcp", address); err != nil {
			return nil, fmt.Errorf("serve %s on %s: %w", name, address, err)
		}
	}
	klog.FromContext(ctx).Info("Serving", "what", name, "address", open.Addr().String())
	return open, nil
}

// Bound returns the listener with the limits of connections that a [Server] has, for servers of other protocols.
func Bound(listener net.Listener) net.Listener {
	return &boundedListener{Listener: listener, open: map[string]int{}}
}

// boundedListener closes connections above the limits as soon as they are accepted, so that a client that holds many open keeps no other
// client out.
type boundedListener struct {
	net.Listener

	mu    sync.Mutex
	total int
	// open counts the connections of each IP address.
	open map[string]int
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		source, _, err := net.SplitHostPort(conn.RemoteAddr().String())
		if err == nil && l.take(source) {
			return &countedConn{Conn: conn, release: sync.OnceFunc(func() { l.release(source) })}, nil
		}
		_ = conn.Close()
	}
}

func (l *boundedListener) take(source string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= maxConnections || l.open[source] >= maxOfSource {
		return false
	}
	l.total++
	l.open[source]++
	return true
}

func (l *boundedListener) release(source string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.open[source]--; l.open[source] == 0 {
		delete(l.open, source)
	}
}

type countedConn struct {
	net.Conn
	release func()
}

func (c *countedConn) Close() error {
	c.release()
	return c.Conn.Close()
}
