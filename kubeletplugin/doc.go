// SPDX-License-Identifier: Apache-2.0

// Package kubeletplugin is the part of Fettle that runs on every node: it looks at the hardware, publishes ResourceSlices, and
// prepares and unprepares claims when kubelet asks.
//
// The pieces, in the order in which data flows:
//
//	looker     looks at the host tree, again whenever the kernel or the clock says so
//	view       what one look found: immutable, shared by everything below
//	publisher  view → ResourceSlices
//	preparer   claim + view → record → steps → CDI device names
//	reporter   view, records and published slices → AcceleratorNode
//	teller     refusals → Events and conditions on claims
//	Plugin     owns them all and speaks kubelet's protocol
//
// Two Plugins may serve one node during a rolling update, so no claim's truth is in memory.
package kubeletplugin
