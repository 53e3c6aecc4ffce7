// SPDX-License-Identifier: Apache-2.0

// Package harness runs Fettle on a test cluster the way a person does: with the cluster's program, Helm, kubectl and the images that
// make builds. It knows how to ask and to wait; what must be seen is the business of the end-to-end tests and of the demo.
//
// A Harness is made by New from a Config, which ConfigFrom reads from the environment that make exports. Nothing is started by New:
// Tools builds what is missing, Up starts the cluster, Place puts a simulated machine on a node, Install installs the chart.
package harness
