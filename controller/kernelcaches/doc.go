// SPDX-License-Identifier: Apache-2.0

// Package kernelcaches resolves and verifies the images of GPUKernelCaches and ClusterGPUKernelCaches, and sums up in their status what
// nodes and volumes have of them. It reads manifests, configurations and signatures; only nodes and the Jobs of volumes read layers.
package kernelcaches
