// SPDX-License-Identifier: Apache-2.0

// Package chart tests the Helm chart: what it renders, what it refuses, which rights it gives, and that its admission policies
// do what they say in a real API server.
package chart
