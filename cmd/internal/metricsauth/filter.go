// SPDX-License-Identifier: Apache-2.0

// Package metricsauth has the API server decide who may read the metrics of a program.
package metricsauth

import (
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
)

// Requests a second to the API server that clients of the metrics can cause, and at once.
const (
	reviewQPS   = 20
	reviewBurst = 40
)

// Filter returns a filter that answers only callers whose bearer token a TokenReview knows, and whom a SubjectAccessReview lets get the
// path.
func Filter(config *rest.Config) (func(http.Handler) (http.Handler, error), error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = reviewQPS, reviewBurst
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client that asks who reads metrics: %w", err)
	}
	filter, err := filters.WithAuthenticationAndAuthorization(config, client)
	if err != nil {
		return nil, fmt.Errorf("make a client that asks who reads metrics: %w", err)
	}
	// Any pod can send a wrong token, so there is no log of it.
	return func(next http.Handler) (http.Handler, error) { return filter(klog.Logger{}, next) }, nil
}
