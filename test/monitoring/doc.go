// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests the rules for Prometheus and the dashboards for Grafana that the chart has, against the metrics that the
// programs register.
package monitoring
