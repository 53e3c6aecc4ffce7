// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/fettle-dev/fettle/test/check"
)

// TestLivenessIsBounded: whoever holds connections to the port for probes, or sends large requests, keeps kubelet's probes from no answer.
func TestLivenessIsBounded(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	check.Must(t, err)
	live, err := newLiveness(&Config{PluginsDir: t.TempDir(), RegistryDir: t.TempDir()})
	check.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- live.serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		check.Must(t, <-ended)
	})
	address := listener.Addr().String()
	from := func(source string) *net.Dialer { return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}} }
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			return from("127.0.0.3").DialContext(ctx, "tcp", to)
		}))
	check.Must(t, err)
	defer connection.Close() //nolint:errcheck // nothing is lost
	look := func(service string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := healthpb.NewHealthClient(connection).Check(ctx, &healthpb.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
		return err
	}
	check.Must(t, look(livenessService))

	const most = 200 // more than one source may have
	closed := 0
	for range most {
		conn, err := from("127.0.0.2").DialContext(t.Context(), "tcp", address)
		check.Must(t, err)
		defer conn.Close() //nolint:errcheck // nothing is lost
		check.Must(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		// A server of HTTP/2 speaks first.
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			closed++
		}
	}
	if closed == 0 {
		t.Errorf("%d connections of one source were served", most)
	}
	check.Must(t, look(livenessService))
	if err := look(strings.Repeat("x", maxProbeSize)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request of %d bytes: %v", maxProbeSize, err)
	}
}
