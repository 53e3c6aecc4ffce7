// SPDX-License-Identifier: Apache-2.0

// Package preset decides what the presets of a cluster give to the claims of a pod: which of them are for whom, in which order, what
// their values become together, and where each is from. It knows no node: names of libraries are looked up elsewhere, and nothing is
// mounted or written here.
package preset
