// SPDX-License-Identifier: Apache-2.0

// Package fpgas is the feature that programs the node's FPGA regions for claims.
//
//	Plan       which bitstream each region needs, whether the claim may load it, and the steps that program it
//	Review     what is known of the regions beside discovery: their content, and which tenants may join on a chip
//	Orphans    regions that a claim left in an unknown state
//	Source     the bitstreams that are fetched before a claim asks
package fpgas
