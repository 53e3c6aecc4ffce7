// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/tls"
	"io/fs"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/fettle-dev/fettle/controller/certs"
	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/pkg/admission"
	"github.com/fettle-dev/fettle/pkg/httpserver"
)

// Server answers the API server's reviews. It runs in a process of its own, with an account of its own: what a flood of requests uses up,
// or a fault in a decoder gives away, is not the controllers'.
type Server struct {
	// Address is where reviews arrive, ProbeAddress where /healthz and /readyz are served.
	Address, ProbeAddress string
	// Validate returns every fault of the Fettle configurations in an object.
	Validate func(runtime.Object) field.ErrorList
	// Kept has what decides over new pods. Nil: pods are not changed.
	Kept *Kept

	reader   client.Reader
	follower *certs.Follower
	reviews  *prometheus.CounterVec
	expiry   prometheus.Gauge
}

// NewServer returns a server with the certificate, the key and the secret of the path in files. The reader must not read from a cache: it
// reads the classes, bitstreams and kernel caches that claims name.
func NewServer(reader client.Reader, c clock.WithTicker, files fs.FS) *Server {
	expiry := metrics.Gauge("certificate_expiry_timestamp_seconds", "When the webhook's certificate ends.")
	return &Server{
		reader: reader,
		follower: &certs.Follower{
			Files: files, Clock: c, Changed: func(end time.Time) { expiry.Set(float64(end.Unix())) },
		},
		expiry: expiry,
		reviews: metrics.CounterBy("config_reviews_total",
			"Admission reviews answered, by resource and verdict (allowed, denied, undecided).", "resource", "verdict"),
	}
}

// Metrics returns what the server counts, and when its certificate ends.
func (s *Server) Metrics() []prometheus.Collector { return []prometheus.Collector{s.reviews, s.expiry} }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	reviews := &httpserver.Server{
		Name: "reviews", Address: s.Address,
		TLS:     &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: s.follower.GetCertificate},
		Handler: newGuard(s.follower.Token, s.routes()),
	}
	probes := &httpserver.Server{Name: "probes", Address: s.ProbeAddress, Handler: httpserver.Health(s.ready)}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { s.follower.Run(ctx); return nil })
	group.Go(func() error { return reviews.Run(ctx) })
	if s.Kept != nil {
		group.Go(func() error { return s.Kept.Run(ctx) })
	}
	group.Go(func() error { return probes.Run(ctx) })
	return group.Wait()
}

// ready returns why the API server should not call this webhook.
func (s *Server) ready() error {
	if s.Kept != nil {
		if err := s.Kept.Ready(); err != nil {
			return err
		}
	}
	return s.follower.Ready()
}

// routes returns what is served, by the beginning of its path.
func (s *Server) routes() map[string]http.Handler {
	observe := func(resource, verdict string) { s.reviews.WithLabelValues(resource, verdict).Inc() }
	judge, shares := &admission.Judge{}, newShares()
	routes := map[string]http.Handler{PathPrefix: &ctrladmission.Webhook{Handler: Handler{
		Validate: s.Validate, Refer: references{reader: s.reader, judge: judge, shares: shares}.check, Observe: observe,
		shares: shares,
	}}}
	if s.Kept != nil {
		routes[PodsPathPrefix] = &ctrladmission.Webhook{Handler: pods{
			reader: s.reader, known: s.Kept.read, judge: judge, observe: observe, shares: shares,
		}}
	}
	return routes
}
