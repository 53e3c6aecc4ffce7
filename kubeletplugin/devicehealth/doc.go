// SPDX-License-Identifier: Apache-2.0

// Package devicehealth watches the node's devices: the kernel's counters, NVIDIA's library, and other drivers that hand out the same
// devices. The ledger of package health decides what each finding means; this package puts the verdicts into the snapshots, tells kubelet
// and people, and keeps claims from devices that failed.
package devicehealth
