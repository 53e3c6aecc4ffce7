// SPDX-License-Identifier: Apache-2.0

// Package mpssim stands in for NVIDIA's Multi-Process Service: Control is what nvidia-cuda-mps-control does, with its pipe directory, its
// commands, its exit statuses, and a server process for the user of its clients; Join is what a CUDA program does with it. Its sources are
// NVIDIA's manual, the manual page, and logs of real daemons in public issues. Settings makes it slow, deaf or ill.
package mpssim
