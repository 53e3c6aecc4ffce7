// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestProbe asks a server at a unix socket, in a directory and without a name in a directory.
func TestProbe(t *testing.T) {
	directory := t.TempDir()
	for _, address := range []string{"unix:" + filepath.Join(directory, "probe.sock"), "unix:@" + directory} {
		network, at := split(address)
		l, err := new(net.ListenConfig).Listen(t.Context(), network, at)
		if err != nil {
			t.Fatal(err)
		}
		var down atomic.Bool
		ready := func() error {
			if down.Load() {
				return errors.New("not scanned yet")
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- (&Server{Listener: l, Handler: Health(ready)}).Run(ctx) }()
		if err := errors.Join(Probe(t.Context(), address, "/healthz"), Probe(t.Context(), address, "/readyz")); err != nil {
			t.Error(err)
		}
		down.Store(true)
		if err := Probe(t.Context(), address, "/readyz"); err == nil || !strings.Contains(err.Error(), "not scanned yet") {
			t.Errorf("not ready: %v", err)
		}
		for range 3 * maxConnections { // whatever other processes of the pod do
			conn, err := new(net.Dialer).DialContext(t.Context(), network, at)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close() //nolint:errcheck // nothing is lost
		}
		if err := Probe(t.Context(), address, "/healthz"); err != nil {
			t.Errorf("after many connections: %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if Probe(t.Context(), address, "/healthz") == nil {
			t.Error("a server that ended is healthy")
		}
	}
	if err := Probe(t.Context(), "127.0.0.1:1", "/healthz"); err == nil || !strings.Contains(err.Error(), "expected unix:") {
		t.Errorf("a port: %v", err)
	}
}
