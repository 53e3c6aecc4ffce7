// SPDX-License-Identifier: Apache-2.0

// Package chart tests what the Helm chart renders, what it refuses and which rights it gives, without a cluster.
package chart
