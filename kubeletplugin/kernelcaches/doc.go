// SPDX-License-Identifier: Apache-2.0

// Package kernelcaches is the feature that gives claims the caches of compiled GPU kernels that they name.
//
//	Plan        which objects a claim names, whether it may have them, whether they fit its GPUs; it fetches what is not here
//	Await       the same before the pod is bound to the node
//	Source      the caches that are fetched before a claim asks
//	NodeStatus  what AcceleratorNode says of the node's caches
//
// Mounting is the step of package pkg/kernelcache/cachemount.
//
// A claim may have a cache once the node itself has seen, with the object's own credentials, that the image may be read, and has verified,
// offline but for the image's registry, who signed it. The result is kept in a verification record, a small file for each object. While the
// record fits the object and the TrustPolicies, a claim costs no request to the registry or to the API server. A refusal is remembered in
// memory for half a minute.
package kernelcaches
