// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
)

// TestProducedAt: a place that the files do not tell is read back from the image, and one that they contradict is refused.
func TestProducedAt(t *testing.T) {
	for name, test := range map[string]struct {
		tree      tree
		root      string
		given     []Target
		label     string
		wantLabel string
		wantErr   string
	}{
		"generic":  {tree: tree{}.put("a/b.bin", "x"), root: "/srv/cache", label: labelRoot, wantLabel: "/srv/cache"},
		"cuda":     {tree: computeTree(), root: "/root/.nv/ComputeCache", label: labelRoot, wantLabel: "/root/.nv/ComputeCache"},
		"portable": {tree: portableTree(), root: "/c", label: labelRoot, wantLabel: "/c"},
		"vllm aot": {
			tree: vllmAOTTree(), root: "/c", given: []Target{{Backend: CUDA, Arch: "90"}},
			label: labelRootEnv, wantLabel: "VLLM_CACHE_ROOT=/c",
		},
		"the files say so too": {tree: tritonTree(homeTriton), root: homeTriton, label: labelRoot},
		"the files say another": {
			tree: tritonTree(homeTriton), root: "/c", wantErr: `said to have had the cache at "/c", but "` + keyA + `/__grp__add_kernel.json" says`,
		},
		"not a place": {tree: tritonTree(homeTriton), root: "/usr/lib", wantErr: "the producer's directory:"},
	} {
		t.Run(name, func(t *testing.T) {
			cache := inspect(t, test.tree, Options{})
			if err := cache.ProducedAt(test.root); test.wantErr != "" {
				check.WantErr(t, err, ErrInvalid, test.wantErr)
				return
			} else if err != nil {
				t.Fatal(err)
			}
			image, err := cache.Describe(test.given...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.wantLabel, image.Labels[test.label]); diff != "" {
				t.Errorf("label %s (-want +got):\n%s", test.label, diff)
			}
			read := inspect(t, test.tree.with(image.CacheDir).add(manifestOf(t, image)), Options{Labels: image.Labels})
			plan, err := read.Plan("")
			if err != nil || plan.Mounts[0].Target != test.root {
				t.Errorf("the image is mounted at %+v (%v), want %s", plan.Mounts, err, test.root)
			}
		})
	}
}

// portableTree has Triton's group in its older form, which is bound to no place.
func portableTree() tree {
	return tree{}.
		put(keyA+"/add_kernel.json", metadata("add_kernel", hopper)).put(keyA+"/add_kernel.cubin", "\x7fELF").
		put(keyA+"/"+groupPrefix+"add_kernel.json", `{"child_paths": ["add_kernel.json", "add_kernel.cubin"]}`)
}

// TestOwnLabels: our own labels and manifest are read as strictly as MCV's.
func TestOwnLabels(t *testing.T) {
	summary := labelPrefix + formatFettle + labelSummary
	for name, test := range map[string]struct {
		labels  map[string]string
		wantErr string
	}{
		"no type": {map[string]string{summary: `{}`}, `label cache.fettle.image/type: not valid: got ""`},
		"MCV's type": {
			map[string]string{summary: `{}`, labelType: "Triton"},
			`got "Triton", want one of [Inductor CUDACompute Generic]`,
		},
		"two formats": {
			map[string]string{summary: `{}`, labelType: "Generic", "cache.triton.image/summary": `{}`},
			"want one format an image",
		},
		"a place that no cache may have": {map[string]string{labelRoot: "/proc"}, "label cache.fettle.image/root: not valid"},
		"two places": {
			map[string]string{labelRoot: "/a", labelRootEnv: "TRITON_CACHE_DIR=/b"},
			`got "/b", but label cache.fettle.image/root says "/a"`,
		},
	} {
		if _, err := ReadLabels(test.labels); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.wantErr) {
			t.Errorf("%s: got %v, want %q", name, err, test.wantErr)
		}
	}
	for text, wantErr := range map[string]string{
		`{"fettle": {"type": "Triton"}}`:                 `fettle.type: got "Triton"`,
		`{"fettle": {"type": "Generic", "entries": -1}}`: "with -1 entries",
		`{"fettle": {"type": "Generic"}, "triton": []}`:  "fettle and triton: want one of them",
		`{"vllm": [], "triton": []}`:                     "triton and vllm: want one of them",
		`{}`:                                             "want a list triton or vllm, or fettle",
	} {
		if _, err := ReadManifest([]byte(text), "m"); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s: got %v, want %q", text, err, wantErr)
		}
	}
}
