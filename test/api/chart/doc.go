// SPDX-License-Identifier: Apache-2.0

// Package chart installs the Helm chart in a real API server and tests what its admission policies and rights do there.
package chart
