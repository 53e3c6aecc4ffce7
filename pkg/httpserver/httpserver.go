// SPDX-License-Identifier: Apache-2.0

// Package httpserver serves HTTP to whoever reaches the address, within fixed limits of connections, memory and time. Any pod of a cluster
// may be that, so no client can make the server grow, and clients that hold or open many connections do not use up those of the others.
package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// Limits of what one connection may take.
const (
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
	// Address is where it listens, such as ":8080". Port 0 takes a free one, which the log names. "unix:@name" is a socket that only the
	// processes of the same pod reach.
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
		ConnContext: withConn, ErrorLog: log.New(quiet{klog.FromContext(ctx)}, "", 0),
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
	bounded := bound(listener)
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
		network, at := split(address)
		if open, err = new(net.ListenConfig).Listen(ctx, network, at); err != nil {
			return nil, fmt.Errorf("serve %s on %s: %w", name, address, err)
		}
	}
	klog.FromContext(ctx).Info("Serving", "what", name, "address", open.Addr().String())
	return open, nil
}

// quiet logs what [http.Server] reports, except what any client can cause as often as it likes.
type quiet struct{ klog.Logger }

func (q quiet) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if strings.HasPrefix(text, "http: TLS handshake error") || strings.HasPrefix(text, "http2: ") {
		q.V(6).Info(text)
	} else {
		q.Info(text)
	}
	return len(line), nil
}
