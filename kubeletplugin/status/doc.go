// SPDX-License-Identifier: Apache-2.0

// Package status says what became of claims and of the node: Events for people, conditions and AcceleratorNode for machines.
//
//	ClaimWriter   Events and status.devices of a claim
//	NodeEvents    Events of the node
//	Reporter      the node's AcceleratorNode
package status
