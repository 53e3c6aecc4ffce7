// SPDX-License-Identifier: Apache-2.0

// Package image makes OCI images of caches of compiled kernels, and extracts caches from them.
//
// Pack writes a cache as the only layer of an image. The same files give the same bytes, whatever their owners and times are. Inspect
// reads the facts of an image without keeping its files. Extract brings the cache to a new directory, and Into fills an existing one, such
// as a volume, and marks it complete at the end. All readers use package unpack, which trusts nothing that a layer says.
//
// The package verifies no signature: the caller asks package trust about the digest before it extracts.
package image
