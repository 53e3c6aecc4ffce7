// SPDX-License-Identifier: Apache-2.0

// Package region implements the steps for a claim's FPGA regions: driver parameters, wiping between tenants, and programming. Each step
// looks its region up when it acts, since kernel numbers change. It reads and writes the region's content file, which outlives claims: what
// a region holds, and whose it was, decides what the next claim needs.
//
// Before an operation that may leave a region in an unknown state, the file says so, durably. Only the hardware's own answer makes the
// state known again: the image's accelerator id, read back under the lease.
package region
