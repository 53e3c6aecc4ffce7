// SPDX-License-Identifier: Apache-2.0

// Package region is the steps that a claim's FPGA regions go through: driver parameters, wiping between tenants, programming. Each
// step looks its region up anew when it acts, since kernel numbers move, and reads and writes the region's content file, which
// outlives claims: what a region holds and whose it was decides what the next claim needs.
//
// Before anything that may leave a region in an unknown state the file says so, durably. Only what the hardware itself says afterwards
// makes it known again: the image's accelerator id, read back under the lease.
package region
