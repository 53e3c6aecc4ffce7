// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics serves the metrics of a process.
type Metrics struct {
	// Address is where it listens, ":8080"; "0" serves nothing.
	Address string
	// CertificateDir has tls.crt and tls.key. Empty: the process signs its certificate itself.
	CertificateDir string
	// Filter answers callers who may not read the metrics, and hands the others on. Metrics are served by HTTPS then, since callers send
	// credentials. Nil: all may read them, by HTTP.
	Filter func(next http.Handler) (http.Handler, error)
}

// Run serves the path /metrics until ctx ends.
func (m Metrics) Run(ctx context.Context, gatherer prometheus.Gatherer) error {
	if m.Address == "0" {
		<-ctx.Done()
		return nil
	}
	server := &Server{Name: "metrics", Address: m.Address}
	handler := promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{})
	if m.Filter != nil {
		var err error
		if server.TLS, err = TLS(m.CertificateDir); err != nil {
			return err
		}
		if handler, err = m.Filter(allowed(handler)); err != nil {
			return err
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", handler)
	server.Handler = mux
	return server.Run(ctx)
}

// allowed notes that the filter let a request through.
func allowed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Proven(r.Context())
		next.ServeHTTP(w, r)
	})
}
