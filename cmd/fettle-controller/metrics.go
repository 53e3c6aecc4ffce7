// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	"github.com/fettle-dev/fettle/pkg/httpserver"
)

// metricsFlags are the flags about metrics, which all programs have.
type metricsFlags struct {
	address, certificateDir string
	authentication          bool
}

// add defines the flags.
func (m *metricsFlags) add(fs *flag.FlagSet) {
	fs.StringVar(&m.address, "metrics-bind-address", ":8080", "where /metrics is served; 0 serves none")
	fs.BoolVar(&m.authentication, "metrics-authentication", true,
		"serve /metrics by HTTPS, and only to callers whose token may get that path; false serves it by HTTP to all")
	fs.StringVar(&m.certificateDir, "metrics-certificate-dir", "",
		"`directory` with tls.crt and tls.key of /metrics; empty makes a certificate that no authority signed")
}

// Requests a second to the API server that clients of the metrics can cause, and at once.
const (
	reviewQPS   = 20
	reviewBurst = 40
)

// server returns how metrics are served.
func (m *metricsFlags) server(config *rest.Config) (httpserver.Metrics, error) {
	served := httpserver.Metrics{Address: m.address, CertificateDir: m.certificateDir}
	if !m.authentication {
		return served, nil
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = reviewQPS, reviewBurst
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return served, fmt.Errorf("make a client that asks who reads metrics: %w", err)
	}
	filter, err := filters.WithAuthenticationAndAuthorization(config, client)
	if err != nil {
		return served, fmt.Errorf("make a client that asks who reads metrics: %w", err)
	}
	// Any pod can send a wrong token, so there is no log of it.
	served.Filter = func(next http.Handler) (http.Handler, error) { return filter(klog.Logger{}, next) }
	return served, nil
}
