// SPDX-License-Identifier: Apache-2.0

// Package claim turns the allocation of a ResourceClaim and the opaque configurations in it into what each allocated device
// of this driver is to become: one effective configuration a result, every field with the place it came from, and the
// container edits.
//
// It is pure: the same claim gives the same answer on a node, in the controller and in the CLI, and nothing is read or written.
// Prepare does what Resolve says and refuses what Resolve refuses; admission only says so earlier.
package claim
