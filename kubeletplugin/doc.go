// SPDX-License-Identifier: Apache-2.0

// Package kubeletplugin is the part of Fettle that runs on every node: it scans the hardware, publishes ResourceSlices, and prepares and
// unprepares claims when kubelet asks.
//
// The pieces, in the order in which data flows:
//
//	inventory.Scanner     scans the host tree, again at kernel events and at an interval
//	inventory.Snapshot    the result of one scan: immutable, shared by everything below
//	publish.Publisher     snapshot → ResourceSlices
//	prepare.Engine        claim + snapshot → record → steps → CDI device names
//	status.Reporter       snapshot, records and published slices → AcceleratorNode
//	status.ClaimWriter    refusals → Events and conditions on claims
//	Plugin                builds them all and speaks kubelet's protocol
//
// Two Plugins may serve one node during a rolling update, so no state of a claim is in memory only.
package kubeletplugin
