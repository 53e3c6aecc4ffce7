// SPDX-License-Identifier: Apache-2.0

// Package preset decides what the presets of a cluster give to the claims of a pod: which presets select which claims, in which order they
// apply, what their values become together, and which preset each value is from. It knows no node. Other packages look up libraries by
// name, mount, and write files.
package preset
