// SPDX-License-Identifier: Apache-2.0

// Package kernelcache recognizes caches of compiled GPU kernels: the type of an extracted cache, the devices that it fits, and how it has
// to be mounted so that the program finds its entries. It is pure: it reads an fs.FS and the labels of an image, and returns values.
//
//	cache, err := kernelcache.Inspect(fsys, kernelcache.Options{Labels: labels})
//	reasons := cache.Fits(dev)             // empty: it fits
//	plan, err := cache.Plan("")            // at the producer's path
//	text, err := plan.Mounts[0].Rewrite(name, text)
//
// Images have the layout of MCV, GKM's tool: io.TYPE.cache/ and io.TYPE.manifest/manifest.json in one file system, and labels in the
// configuration. A bare cache directory is read as well.
//
// # Evidence
//
// The files, the manifest and the labels of a cache name the devices that it is for. They need not agree: labels may be about the GPU of
// the machine that built the image. The files are trusted first, then the manifest, then the labels; see docs/design/kernelcache.md.
//
// # Paths
//
// Triton writes the absolute paths of an entry's files into a group file, and vLLM those of its artifacts into an index. In another
// directory the program ignores such an entry without a message. So a cache is mounted in its producer's directory. For any other
// directory the plan names the small files that have to be rewritten, and Rewrite rewrites them.
package kernelcache
