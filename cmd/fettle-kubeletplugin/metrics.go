// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"

	"github.com/fettle-dev/fettle/cmd/internal/metricsauth"
)

// metricsFilter returns the filter of callers who may not read the metrics.
func metricsFilter(o options) (func(http.Handler) (http.Handler, error), error) {
	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	return metricsauth.Filter(config)
}
