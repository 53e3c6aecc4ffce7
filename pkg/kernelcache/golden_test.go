// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
)

// mcvLabels are those of an image as MCV makes it.
func mcvLabels(format, summary string) map[string]string {
	return map[string]string{
		"cache." + format + ".image/summary": summary, "cache." + format + ".image/entry-count": "1",
	}
}

func kserveLabels(format, root string) map[string]string {
	labels := mcvLabels("vllm", `{"targets":[{"backend":"cuda","arch":"90","warp_size":32,"ptx_version":590,"cuda_version":"12.9"}]}`)
	maps.Copy(labels, map[string]string{
		"cache.vllm.image/format": format, "io.kserve.km/framework": "vllm", "io.kserve.km/cache-type": "torch-compile",
		"io.kserve.km/cache-hash": binaryHash, "io.kserve.km/cache-mount-subpath": vllmCompile,
		"io.kserve.km/cache-root-env": "VLLM_CACHE_ROOT=" + root,
	})
	return labels
}

// splitTree has Triton's cache beside vLLM's, as MCV's split capture does.
func splitTree() (tree, map[string]string) {
	tr := vllmBinaryTree("/home/kserve/.cache/vllm", false).add(tritonTree("/tmp/triton").with("triton")).with("io.vllm.cache")
	labels := kserveLabels("binary", "/home/kserve/.cache/vllm")
	labels[labelMounts] = `[{"subPath":"triton","absPath":"/tmp/triton","env":"TRITON_CACHE_DIR","requiresWritable":true}]`
	labels[labelSplit] = "true"
	return tr, labels
}

// TestGolden compares what is read of realistic caches, how they are mounted where they were and elsewhere, and the image that is made of
// them, and wants every entry found in both places.
func TestGolden(t *testing.T) {
	split, splitLabels := splitTree()
	for _, test := range []struct {
		name   string
		tree   tree
		opts   Options
		files  int
		images bool
	}{
		{name: "triton", tree: tritonTree(homeTriton), files: 12, images: true},
		{
			name: "triton-image", tree: tritonTree("/workspace/cache").with("io.triton.cache"), files: 12, images: true,
			opts: Options{Labels: mcvLabels("triton", `{"targets":[{"backend":"cuda","arch":"sm_90","warp_size":32,"ptx_version":590}]}`)},
		},
		{name: "vllm-triton", tree: vllmTritonTree(homeVLLM), files: 13, images: true},
		{
			name: "vllm-binary", tree: vllmBinaryTree("/home/kserve/.cache/vllm", false).with("io.vllm.cache"), files: 2, images: true,
			opts: Options{Labels: kserveLabels("binary", "/home/kserve/.cache/vllm")},
		},
		{name: "vllm-unpacked", tree: vllmBinaryTree(homeVLLM, true), files: 2, images: true},
		{
			name: "vllm-aot", tree: vllmAOTTree().with("io.vllm.cache"), images: true,
			opts: Options{Labels: kserveLabels("aot_compile", "/home/kserve/.cache/vllm")},
		},
		{name: "vllm-split", tree: split, opts: Options{Labels: splitLabels}, files: 14, images: true},
		{name: "inductor", tree: inductorTree("/var/cache/inductor"), files: 6, images: true},
		{name: "cuda", tree: computeTree(), images: true},
		{name: "generic", tree: tree{}.put("a/b.bin", "x"), images: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			cache := inspect(t, test.tree, test.opts)
			got := map[string]any{"cache": cache}
			for _, where := range []string{"", "/mnt/cache"} {
				plan, err := cache.Plan(where)
				if err != nil {
					got["plan "+where] = err.Error()
					continue
				}
				got["plan "+where] = plan
				if found, missing := resolve(t, test.tree, plan); found != test.files || len(missing) > 0 {
					t.Errorf("at %q %d files are found, want %d; not found are %q", plan.Mounts[0].Target, found, test.files, missing)
				}
			}
			if test.images {
				got["image"] = describe(t, cache, test.tree)
			}
			golden(t, test.name, got)
		})
	}
}

// describe makes an image of a cache, reads it back, and wants it to say the same.
func describe(t *testing.T, cache Cache, tr tree) any {
	t.Helper()
	image, err := cache.Describe()
	if err != nil {
		t.Fatal(err)
	}
	made := tree{}
	for name, file := range tr {
		if below(name, cache.Dir) {
			relative := name
			if cache.Dir != "." {
				relative = name[len(cache.Dir)+1:]
			}
			made[image.CacheDir+"/"+relative] = file
		}
	}
	read := inspect(t, made.add(manifestOf(t, image)), Options{Labels: image.Labels})
	for _, target := range read.Targets {
		if target.Source != FromFiles && target.Arch != "" && len(read.Fits(deviceOf(target))) > 0 {
			t.Errorf("a device that %s of the image that was made tells does not fit: %v", target.where(), read.Fits(deviceOf(target)))
		}
	}
	// What is told by the files themselves must be the same as before.
	type facts struct {
		Type     Type
		Layouts  []string
		Bytes    int64
		Files    int
		Entries  int
		Roots    []Root
		Bound    []BoundFile
		Portable int
	}
	was := facts{cache.Type, cache.Layouts, cache.Bytes, cache.Files, cache.Entries, cache.Roots, cache.Bound, cache.Portable}
	is := facts{read.Type, read.Layouts, read.Bytes, read.Files, read.Entries, read.Roots, read.Bound, read.Portable}
	if diff := cmp.Diff(was, is); diff != "" {
		t.Errorf("the image that was made reads otherwise (-was +is):\n%s", diff)
	}
	return map[string]any{
		"cacheDir": image.CacheDir, "manifestPath": image.ManifestPath, "labels": image.Labels, "manifest": json.RawMessage(image.Manifest),
	}
}

func deviceOf(t Target) Device {
	return Device{Name: "gpu", Backend: t.Backend, Arch: t.Arch, WarpSize: t.WarpSize}
}

func golden(t *testing.T, name string, value any) {
	t.Helper()
	check.GoldenJSON(t, filepath.Join("testdata", name+".golden.json"), value)
}
