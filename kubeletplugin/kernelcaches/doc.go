// SPDX-License-Identifier: Apache-2.0

// Package caches gives claims of a node the caches of compiled GPU kernels that they name.
//
//	Decide            which objects a claim names, whether it may have them, whether they fit its GPUs: edits and steps
//	Kind              the step that mounts a cache for a claim, and takes it away
//	Wanted            what the node fetches before a claim asks
//	Status            what AcceleratorNode says of it all
//
// A cache is here once the node itself has seen, with the object's own credentials, that the image may be read, and, offline but for the
// image's registry, who signed it; what it found is noted in a grant, a small file for each object. As long as the grant is of the object
// as it is and of the TrustPolicies as they are, a claim costs no request to anybody: neither to the registry nor to the API server. A
// refusal is remembered in the same way, in memory and for a moment.
package kernelcaches
