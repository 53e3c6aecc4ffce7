// SPDX-License-Identifier: Apache-2.0

// Package inventory looks at the node's hardware and keeps the newest snapshot of it.
//
//	Scanner   looks at the host tree, again whenever the kernel or the clock says so
//	Reviewer  what a feature says of the devices: which are withheld, which attributes they have beside those of the look
//	Snapshot  what one look found, with the devices' health: never changed, shared by everything
//	Holder    has the newest snapshot
package inventory
