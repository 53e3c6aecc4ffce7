// SPDX-License-Identifier: Apache-2.0

// Package nvmlsim simulates NVIDIA GPUs that can be divided into MIG instances, as far as fettle-nvml asks NVIDIA's library about them. It
// knows the profiles and placements of several GPUs, which places are occupied, that an instance in use cannot be destroyed, both results
// of a change of the MIG mode, resets and reboots. It keeps the capability files of the instances in a host tree.
//
// The state is one locked file, so that many short-lived processes see one machine. Package library below it puts go-nvml's interface in
// front; the program fettle-nvml below it is the real one with that library linked in. A test makes the machine and changes what the
// library cannot: it starts and ends processes, resets GPUs, has the driver report critical errors, makes instances as an
// administrator does, and scripts faults.
//
// What it answers about an H100 and an H200 is what cards answered; the other tables follow NVIDIA's MIG user guide, with memory sizes that
// are near. What changes a card was not compared with one (docs/design/hardware.md).
package nvmlsim
