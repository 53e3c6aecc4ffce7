// SPDX-License-Identifier: Apache-2.0

// Package image makes OCI images of caches of compiled kernels, and takes caches out of them.
//
// Pack writes a cache as the one layer of an image: the same files give the same bytes, whoever owns them and whenever they were written.
// Inspect reads what an image is without keeping its files, and Extract brings the cache to a directory, of which Into fills one that is
// there, such as a volume, and marks it complete at the end. Both go through package unpack, which believes nothing of a layer.
//
// It verifies no signature: whoever extracts has asked package trust about the digest before.
package image
