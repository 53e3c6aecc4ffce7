// SPDX-License-Identifier: Apache-2.0

// Package kernelcache knows caches of compiled GPU kernels: what an extracted one is, which devices it is for, and how it has to be
// mounted so that the program finds its entries. It is pure: it reads an fs.FS and the labels of an image, and gives values.
//
//	cache, err := kernelcache.Inspect(fsys, kernelcache.Options{Labels: labels})
//	reasons := cache.Fits(dev)             // empty: it fits
//	plan, err := cache.Plan("")            // at the producer's path
//	text, err := plan.Mounts[0].Rewrite(name, text)
//
// An image is laid out as MCV, GKM's tool, makes them: io.TYPE.cache/ and io.TYPE.manifest/manifest.json in one file system, and labels in
// its configuration. A bare cache directory is read as well.
//
// # Evidence
//
// What a cache is for is told by its files, its manifest and its labels, and they need not agree: labels may be about the GPU of the
// machine that built the image. The files are believed first, then the manifest, then the labels; see docs/design/kernelcache.md.
//
// # Paths
//
// Triton writes the absolute paths of an entry's files into a group file, and vLLM those of its artifacts into an index. Found elsewhere,
// such an entry counts as not there, without a word. So a cache is mounted where its producer had it; for any other place the plan names
// the small files that are rewritten, and Rewrite is the function that does it.
package kernelcache
