// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/tls"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/fettle-dev/fettle/controller/certs"
	"github.com/fettle-dev/fettle/controller/metrics"
	"github.com/fettle-dev/fettle/controller/names"
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

	reader   client.Reader
	follower *certs.Follower
	reviews  *prometheus.CounterVec
}

// NewServer returns a server for a namespace. The reader must not read from a cache: it reads one Secret, and the classes,
// bitstreams and kernel caches that claims name.
func NewServer(reader client.Reader, c clock.WithTicker, namespace string) *Server {
	return &Server{
		reader: reader,
		follower: &certs.Follower{
			Client: reader, Clock: c, Name: hosts(names.Webhook, namespace)[0],
			Secret: client.ObjectKey{Namespace: namespace, Name: names.TLSSecret},
		},
		reviews: metrics.CounterBy("config_reviews_total",
			"Admission reviews answered, by resource and verdict (allowed, denied, undecided).", "resource", "verdict"),
	}
}

// Metrics returns what the server counts.
func (s *Server) Metrics() prometheus.Collector { return s.reviews }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	reviews := &httpserver.Server{
		Address: s.Address,
		TLS:     &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: s.follower.GetCertificate},
		Handler: newGuard(s.follower.State, &ctrladmission.Webhook{Handler: Handler{
			Validate: s.Validate,
			Refer:    references{reader: s.reader, judge: &admission.Judge{}}.check,
			Observe:  func(resource, verdict string) { s.reviews.WithLabelValues(resource, verdict).Inc() },
		}}),
	}
	probes := &httpserver.Server{Address: s.ProbeAddress, Handler: httpserver.Health(s.follower.Ready)}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { s.follower.Run(ctx); return nil })
	group.Go(func() error { return reviews.Run(ctx) })
	group.Go(func() error { return probes.Run(ctx) })
	return group.Wait()
}
