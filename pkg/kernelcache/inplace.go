// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"path"
	"slices"
	"strings"
)

// WritesInPlace says whether programs open a file of the cache for writing where it is, so that a link to what nobody may write to would
// not do. They put nearly all of their files there by a rename, which replaces a link as well. The name's last part tells.
func (c *Cache) WritesInPlace(name string) bool {
	base := path.Base(name)
	if base == "lock" || strings.HasSuffix(base, ".lock") { // opened to be locked, by all of them
		return true
	}
	switch c.Type {
	case VLLM:
		return slices.Contains(vllmWritten(), base) || strings.HasSuffix(base, inductorBest)
	case Inductor:
		return strings.HasSuffix(base, inductorBest)
	case CUDACompute:
		return base == cudaIndex
	default:
		return false
	}
}

// vllmWritten are what vLLM writes beside its artifacts (vllm/compilation/backends.py): the index after each start that compiled something,
// and what it was made of.
func vllmWritten() []string {
	return []string{vllmIndex, vllmFactors, "computation_graph.py", "transformed_code.py"}
}

// cudaIndex is the list of entries that CUDA's driver keeps beside them.
const cudaIndex = "index"

// inductorBest ends the name of a file with what its autotuner found (torch/_inductor/runtime/autotune_cache.py).
const inductorBest = ".best_config"
