// SPDX-License-Identifier: Apache-2.0

package kernelcache

// ImagePaths are what the file system of an image of a cache may have: for each format the cache and its manifest.
func ImagePaths() []string {
	var out []string
	for _, format := range []string{"triton", "vllm", "habana", "fettle"} {
		out = append(out, mcvDir(format)+"/", mcvManifest(format))
	}
	return out
}
