// SPDX-License-Identifier: Apache-2.0

// Package kernelcaches is the feature that gives claims the caches of compiled GPU kernels that they name.
//
//	Plan        resolves the objects that a claim names, checks access and fit to its GPUs, and fetches missing caches
//	Await       does the same before the pod is bound to the node
//	Source      lists the caches to fetch before a claim asks for them
//	NodeStatus  reports the node's caches for AcceleratorNode
//
// Mounting is the step of package pkg/kernelcache/cachemount.
//
// A claim may have a cache once the node itself has read the image with the object's own credentials, and has verified its signatures
// without asking any service but the image's registry. The result is kept in a verification record, a small file for each object. While the
// record fits the object and the TrustPolicies, a claim costs no request to the registry or to the API server. A refusal is remembered in
// memory for half a minute.
package kernelcaches
