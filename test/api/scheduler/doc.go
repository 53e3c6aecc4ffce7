// SPDX-License-Identifier: Apache-2.0

// Package scheduler makes plans and then lets the real kube-scheduler do the same: what pods get, and why others wait, has to agree. There
// is no kubelet: Nodes and ResourceSlices are only objects.
package scheduler
