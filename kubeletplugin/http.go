// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
)

// serveHTTP serves /metrics, /healthz and /readyz until ctx ends. ready returns why the plugin is not ready.
func serveHTTP(ctx context.Context, address string, registry *prometheus.Registry, ready func() error) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	const headerTimeout = 5 * time.Second
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP on %s: %w", address, err)
	}
	return nil
}

// readiness is whether the plugin serves claims.
type readiness struct {
	holder *inventory.Holder

	mu sync.Mutex
	// registration is what kubelet says of the plugin. It says that nothing is known before the plugin is served.
	registration func() *registerapi.RegistrationStatus
	served       bool
	// publishErr is the last error of publishing that no success followed.
	publishErr error
}

// serve notes that kubelet can ask.
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

// ready returns nil once kubelet knows the plugin, the machine was looked at, and the API server took what was published.
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
		return errors.New("the machine was not looked at yet")
	}
	if r.publishErr != nil {
		return fmt.Errorf("ResourceSlices are not as wanted: %w", r.publishErr)
	}
	return nil
}
