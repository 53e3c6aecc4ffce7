// SPDX-License-Identifier: Apache-2.0

package kernelcache

import "testing"

func TestWritesInPlace(t *testing.T) {
	const entry = keyA + "/"
	for name, in := range map[string][]Type{
		entry + "add_kernel.cubin":       nil,
		entry + "__grp__add_kernel.json": nil, // by a rename
		entry + "lock":                   Types(),
		"locks/abc.lock":                 Types(),
		"torch_compile_cache/0123456789/rank_0_0/" + vllmIndex:       {VLLM},
		"torch_compile_cache/0123456789/rank_0_0/" + vllmFactors:     {VLLM},
		"torch_compile_cache/0123456789/rank_0_0/artifact_shape_1":   nil,
		"torch_compile_cache/0123456789/rank_0_0/x/ab/cab.py":        nil,
		"torch_compile_cache/0123456789/rank_0_0/x/ab/k.best_config": {VLLM, Inductor},
		"index":              {CUDACompute},
		"2/c/9f3a1e7c55d2b8": nil,
	} {
		want := map[Type]bool{}
		for _, of := range in {
			want[of] = true
		}
		for _, of := range Types() {
			c := Cache{Type: of}
			if got := c.WritesInPlace(name); got != want[of] {
				t.Errorf("%s of %s: written in place: %v, want %v", name, of, got, want[of])
			}
		}
	}
}
