// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"

	"k8s.io/client-go/rest"

	"github.com/fettle-dev/fettle/cmd/internal/metricsauth"
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

// server returns how metrics are served.
func (m *metricsFlags) server(config *rest.Config) (served httpserver.Metrics, err error) {
	served = httpserver.Metrics{Address: m.address, CertificateDir: m.certificateDir}
	if m.authentication {
		served.Filter, err = metricsauth.Filter(config)
	}
	return served, err
}
