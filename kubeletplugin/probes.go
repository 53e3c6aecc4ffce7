// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/httpserver"
)

// serveHealth serves /livez, /healthz and /readyz until ctx ends, for the probes of the plugin's own container.
func (p *Plugin) serveHealth(ctx context.Context, live *liveness) error {
	if p.config.ProbeAddress == "" {
		return nil
	}
	mux := httpserver.Health(p.Ready)
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) {
		if answer, err := live.Check(r.Context(), &healthpb.HealthCheckRequest{}); err != nil ||
			answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			http.Error(w, "the plugin's sockets do not answer", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return (&httpserver.Server{Name: "probes", Address: p.config.ProbeAddress, Handler: mux}).Run(ctx)
}

// serveHTTP serves /healthz and /readyz until ctx ends, and /metrics if these have no address of their own.
func (p *Plugin) serveHTTP(ctx context.Context) error {
	if p.config.HTTPAddress == "" && p.config.HTTPListener == nil {
		return nil
	}
	mux := httpserver.Health(p.Ready)
	if p.config.Metrics.Address == "" {
		mux.Handle("GET /metrics", promhttp.HandlerFor(p.metrics.registry, promhttp.HandlerOpts{}))
	}
	server := &httpserver.Server{Name: "health", Address: p.config.HTTPAddress, Listener: p.config.HTTPListener, Handler: mux}
	return server.Run(ctx)
}

// readiness holds the conditions under which the plugin is ready.
type readiness struct {
	holder *inventory.Holder

	mu sync.Mutex
	// registration returns kubelet's answer to the plugin's registration, nil until there is one. It is set when the plugin is served.
	registration func() *registerapi.RegistrationStatus
	served       bool
	// publishErr is the last publishing error, nil after a success.
	publishErr error
}

// serve is called when kubelet can call the plugin.
func (r *readiness) serve(registration func() *registerapi.RegistrationStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.served, r.registration = true, registration
}

func (r *readiness) setPublishError(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publishErr = err
}

// ready returns nil when kubelet has registered the plugin, the machine was scanned, and the API server has the published slices.
func (r *readiness) ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.served {
		return errors.New("not started yet")
	}
	status := r.registration()
	switch {
	case status == nil:
		return errors.New("kubelet has not registered the plugin yet")
	case !status.PluginRegistered:
		return fmt.Errorf("kubelet refused to register the plugin: %s", status.Error)
	}
	if s, _ := r.holder.Get(); s == nil {
		return errors.New("the machine was not scanned yet")
	}
	if r.publishErr != nil {
		return fmt.Errorf("ResourceSlices are not up to date: %w", r.publishErr)
	}
	return nil
}

// livenessService is the service name that the chart's probe and the Kernel Module Management operator use.
const livenessService = "liveness"

// liveness answers the gRPC health protocol by calling the plugin's own sockets like kubelet, so it also detects a deadlocked server.
type liveness struct {
	healthpb.UnimplementedHealthServer
	registration, plugin *grpc.ClientConn
}

// newLiveness returns clients of this instance's sockets. They connect at the first check.
func newLiveness(c *Config) (*liveness, error) {
	registrar, plugin := c.sockets()
	var l liveness
	var err error
	if l.registration, err = dialSocket(registrar); err != nil {
		return nil, err
	}
	if l.plugin, err = dialSocket(plugin); err != nil {
		return nil, err
	}
	return &l, nil
}

func dialSocket(path string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return conn, nil
}

// Check is the only call of the health protocol that probes use.
func (l *liveness) Check(ctx context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if req.GetService() != "" && req.GetService() != livenessService {
		return nil, status.Errorf(codes.NotFound, "service %q is not known, expected %q", req.GetService(), livenessService)
	}
	serving := &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}
	if _, err := registerapi.NewRegistrationClient(l.registration).GetInfo(ctx, &registerapi.InfoRequest{}); err != nil {
		serving.Status = healthpb.HealthCheckResponse_NOT_SERVING
	}
	if _, err := drapb.NewDRAPluginClient(l.plugin).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{}); err != nil {
		serving.Status = healthpb.HealthCheckResponse_NOT_SERVING
	}
	return serving, nil
}

// Limits of the port for liveness probes, which any pod may reach. A probe is one request of a few bytes.
const (
	maxProbes       = 4 // at once, of one connection
	maxProbeSize    = 4 << 10
	maxProbeHeaders = 8 << 10
	probeTimeout    = 10 * time.Second
	maxProbeIdle    = time.Minute
)

// listen answers on a TCP port until ctx ends. -1 is none.
func (l *liveness) listen(ctx context.Context, port int) error {
	if port < 0 {
		<-ctx.Done()
		l.close()
		return nil
	}
	listener, err := httpserver.Listen(ctx, "liveness probes", fmt.Sprintf(":%d", port), nil)
	if err != nil {
		return err
	}
	return l.serve(ctx, listener)
}

// serve answers on a listener, which it closes, until ctx ends.
func (l *liveness) serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(grpc.MaxConcurrentStreams(maxProbes), grpc.MaxRecvMsgSize(maxProbeSize), grpc.MaxHeaderListSize(maxProbeHeaders),
		grpc.ConnectionTimeout(probeTimeout), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxProbeIdle}))
	healthpb.RegisterHealthServer(server, l)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	defer l.close()
	if err := server.Serve(httpserver.Bound(listener)); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve liveness probes: %w", err)
	}
	return nil
}

func (l *liveness) close() {
	_ = l.registration.Close()
	_ = l.plugin.Close()
}
