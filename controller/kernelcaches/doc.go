// SPDX-License-Identifier: Apache-2.0

// Package cache is what the controller knows of GPUKernelCaches and ClusterGPUKernelCaches, apart from its queue: what their references
// mean, who vouches for that, what nodes and volumes have of it, and how all of this reads in a status. Layers are the nodes' to read.
package kernelcaches
