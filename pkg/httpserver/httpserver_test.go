// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/check"
)

func start(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	return startServer(t, &Server{Handler: handler})
}

func startServer(t *testing.T, server *Server) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	server.Listener = l
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("stopped with %v", err)
		}
	})
	return l.Addr().String()
}

func dial(t *testing.T, from, to string) net.Conn {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// get asks over a connection and returns the first bytes of the answer, or why there is none.
func get(conn net.Conn) string {
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // ends a test that hangs
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err.Error()
	}
	answer := make([]byte, 12)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err.Error()
	}
	return string(answer)
}

// TestIdleConnections: a client that holds as many connections as it can keeps no other client out. Its oldest are closed for its next.
func TestIdleConnections(t *testing.T) {
	address := start(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	first := dial(t, "127.0.0.1", address)
	for range maxOfSource {
		_ = get(dial(t, "127.0.0.1", address))
	}
	if got := get(first); got == "HTTP/1.1 200" {
		t.Error("a client has more connections than its share")
	}
	for range 2 * maxOfSource {
		_ = dial(t, "127.0.0.2", address)
	}
	if got := get(dial(t, "127.0.0.3", address)); got != "HTTP/1.1 200" {
		t.Errorf("another client: %s", got)
	}
}

// TestConnectionsAreCounted: a connection that ended makes room for the next.
func TestConnectionsAreCounted(t *testing.T) {
	address := start(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	for range 3 * maxOfSource {
		check.Eventually(t, "the server sees that the last connection ended", func() bool {
			conn := dial(t, "127.0.0.1", address)
			got := get(conn)
			_ = conn.Close()
			return got == "HTTP/1.1 200"
		})
	}
}
