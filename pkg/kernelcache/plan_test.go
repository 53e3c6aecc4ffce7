// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"bytes"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestProducersDisagree: two roots are told, with a file of each, and a path that is named resolves both.
func TestProducersDisagree(t *testing.T) {
	tr := tritonTree("/root/.triton/cache").entry(homeTriton, keyC, "k", hopper, ".cubin")
	cache := inspect(t, tr, Options{})
	_, err := cache.Plan("")
	if !errors.Is(err, ErrNoPath) {
		t.Fatalf("got %v, want ErrNoPath", err)
	}
	for _, part := range []string{"/root/.triton/cache", "by 2 files such as", keyA, homeTriton, "by 1 such as", keyC} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q in it", err, part)
		}
	}
	for where, files := range map[string]int{"/mnt/cache": 3, homeTriton: 2, "/root/.triton/cache": 1} {
		plan, err := cache.Plan(where)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(plan.Mounts[0].Relocation.Files); got != files {
			t.Errorf("at %s %d files are rewritten, want %d", where, got, files)
		}
		if found, missing := resolve(t, tr, plan); found != 17 || len(missing) > 0 {
			t.Errorf("at %s %d files are found, want 17; not found: %q", where, found, missing)
		}
	}
}

// TestDisplacedGroup: a cache that somebody moved already without rewriting it, or of which only a part was taken.
func TestDisplacedGroup(t *testing.T) {
	tr := tree{}.entry("/build/step-1", "other-directory", "k", hopper, ".cubin")
	moved := tree{}
	for name, file := range tr {
		moved[path.Join(keyA, path.Base(name))] = file
	}
	cache := inspect(t, moved, Options{})
	if len(cache.Roots) != 0 || !strings.Contains(strings.Join(cache.Notes, "\n"), "lead out of the cache") {
		t.Errorf("got the roots %v and the notes %q, want a note that the paths lead out", cache.Roots, cache.Notes)
	}
	if _, err := cache.Plan(""); !errors.Is(err, ErrNoPath) {
		t.Errorf("got %v, want ErrNoPath", err)
	}
	plan, err := cache.Plan("/mnt/cache")
	if err != nil {
		t.Fatal(err)
	}
	if found, missing := resolve(t, moved, plan); found != 5 || len(missing) > 0 {
		t.Errorf("%d files are found, want 5; not found: %q", found, missing)
	}
}

// TestGroupInTwoPlaces: a group of which only some files lie where it says is rewritten, and is no producer's root.
func TestGroupInTwoPlaces(t *testing.T) {
	tr := oneKernel(hopper, ".cubin").put(keyA+"/__grp__k.json",
		`{"child_paths": {"k.cubin": "/a/`+keyA+`/k.cubin", "k.json": "/b/`+keyA+`/k.json"}}`)
	cache := inspect(t, tr, Options{})
	if len(cache.Roots) != 0 {
		t.Errorf("got the roots %v of files that disagree", cache.Roots)
	}
	for _, where := range []string{"/mnt/cache", "/a", "/b"} {
		plan, err := cache.Plan(where)
		if err != nil {
			t.Fatal(err)
		}
		if found, missing := resolve(t, tr, plan); found != 2 || len(missing) > 0 {
			t.Errorf("at %s %d files are found, want 2; not found: %q", where, found, missing)
		}
	}
}

// TestPortableGroup: a group that lists names is found anywhere.
func TestPortableGroup(t *testing.T) {
	tr := oneKernel(hopper, ".cubin").put(keyA+"/__grp__k.json", `{"child_paths": ["k.cubin", "k.json"]}`)
	cache := inspect(t, tr, Options{})
	plan, err := cache.Plan("/mnt/cache")
	if err != nil {
		t.Fatal(err)
	}
	if cache.Portable != 1 || plan.Mounts[0].Relocation != nil {
		t.Errorf("got %d portable groups and %+v, want 1 and nothing to rewrite", cache.Portable, plan.Mounts[0].Relocation)
	}
}

func TestPlanRefuses(t *testing.T) {
	split, labels := splitTree()
	twice := maps.Clone(labels)
	twice[labelMounts] = `[{"subPath":"triton","absPath":"/tmp/triton","env":"VLLM_CACHE_ROOT"}]`
	for _, test := range []struct {
		name string
		tree tree
		opts Options
		path string
		want string
	}{
		{"producer in the system", tritonTree("/usr/lib/triton"), Options{}, "", "must not cover or lie in /usr/lib"},
		{"producer over the system", tritonTree("/usr"), Options{}, "", "must not cover"},
		{"relative", tritonTree(homeTriton), Options{}, "cache", "must be absolute"},
		{"unclean", tritonTree(homeTriton), Options{}, "/mnt/../etc", "must be clean"},
		{"over a part", split, Options{Labels: labels}, "/tmp", "would cover each other"},
		{"in a part", split, Options{Labels: labels}, "/tmp/triton/x", "would cover each other"},
		{"variable twice", split, Options{Labels: twice}, "", "would have two values"},
		{"not for an index", vllmBinaryTree("/old", false), Options{}, "/it's", "want a path without quotes"},
	} {
		cache := inspect(t, test.tree, test.opts)
		if _, err := cache.Plan(test.path); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
}

func TestRewriteGroup(t *testing.T) {
	for _, test := range []struct{ name, data, want string }{
		{
			"paths", `{"child_paths": {"b.json": "/old/K/b.json", "a<b.cubin": "/elsewhere/a"}}`,
			`{"child_paths":{"a<b.cubin":"/new/K/a<b.cubin","b.json":"/new/K/b.json"}}`,
		},
		{"other keys stay", `{"later": {"x": [1, 2.50]}, "child_paths": {}}`, `{"child_paths":{},"later":{"x":[1,2.50]}}`},
		{"names stay as they are", `{"child_paths":  ["a"]}`, `{"child_paths":  ["a"]}`},
	} {
		got, err := RewriteGroup([]byte(test.data), "/new/K")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		if again, err := RewriteGroup(got, "/new/K"); err != nil || !bytes.Equal(again, got) {
			t.Errorf("%s: a second time gives %s, %v", test.name, again, err)
		}
	}
}

func TestRewriteIndex(t *testing.T) {
	dir := vllmCompile + "/" + binaryHash + "/rank_0_0/backbone"
	for _, test := range []struct{ name, data, want string }{
		{"its own directory", `{(1, 'a'): ('x', '/old/` + dir + `/x')}`, `{(1, 'a'): ('x', '/new/` + dir + `/x')}`},
		{"one beside it", `['/old/` + path.Dir(dir) + `/inductor_cache/a.py']`, `['/new/` + path.Dir(dir) + `/inductor_cache/a.py']`},
		{"double quotes", `["/old/` + dir + `/x"]`, `["/new/` + dir + `/x"]`},
		{
			"another hash stays", `['/old/torch_compile_cache/0000000000/rank_0_0/backbone/x']`,
			`['/old/torch_compile_cache/0000000000/rank_0_0/backbone/x']`,
		},
		{"what is no path stays", `['` + dir + `/x', 'a\'/old/` + dir + `/x'] # '`, `['` + dir + `/x', 'a\'/old/` + dir + `/x'] # '`},
		{"unclean stays", `['/old/../` + dir + `/x']`, `['/old/../` + dir + `/x']`},
	} {
		got, err := RewriteIndex([]byte(test.data), dir, "/new")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
	if _, err := RewriteIndex([]byte("['/old/"+dir+"/x']"), dir, "/it's"); err == nil {
		t.Error("a path with a quote is written into a literal")
	}
}

// TestRewriteOnlyWhatIsPlanned: no other file is changed by mistake.
func TestRewriteOnlyWhatIsPlanned(t *testing.T) {
	cache := inspect(t, tritonTree(homeTriton), Options{})
	at, err := cache.Plan("")
	if err != nil {
		t.Fatal(err)
	}
	moved, err := cache.Plan("/mnt/cache")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := at.Mounts[0].Rewrite(keyA+"/__grp__add_kernel.json", nil); err == nil {
		t.Error("a file is rewritten where nothing has to be")
	}
	if _, err := moved.Mounts[0].Rewrite(keyA+"/add_kernel.json", nil); err == nil {
		t.Error("a file is rewritten that is not in the plan")
	}
}

// TestDescribe: what the cache does not tell must be given, and not against it.
func TestDescribe(t *testing.T) {
	aot := inspect(t, vllmAOTTree(), Options{})
	if _, err := aot.Describe(); err == nil || !strings.Contains(err.Error(), "name its backend and architecture") {
		t.Errorf("got %v, want to be asked for the architecture", err)
	}
	image, err := aot.Describe(Target{Backend: CUDA, Arch: "90"})
	if err != nil {
		t.Fatal(err)
	}
	read := inspect(t, vllmAOTTree().with(image.CacheDir).add(manifestOf(t, image)), Options{Labels: image.Labels})
	if reasons := read.Fits(h100()); len(reasons) > 0 {
		t.Errorf("got %v, want that it fits", reasons)
	}
	if reasons := read.Fits(b200()); len(reasons) != 1 || reasons[0].Code != ReasonArchitecture {
		t.Errorf("got %v, want another architecture", reasons)
	}
	triton := inspect(t, tritonTree(homeTriton), Options{})
	for _, given := range []Target{{Backend: CUDA, Arch: "80"}, {Backend: HIP, Arch: "gfx942"}, {Backend: CUDA}} {
		if _, err := triton.Describe(given); err == nil {
			t.Errorf("%s is believed of a cache for sm_90", given)
		}
	}
	binary := inspect(t, vllmBinaryTree(homeVLLM, false), Options{})
	image, err = binary.Describe(Target{Backend: CUDA, Arch: "90"})
	if err != nil {
		t.Fatal(err)
	}
	if all := string(image.Manifest) + strings.Join(slices.Collect(maps.Values(image.Labels)), ""); strings.Contains(all, "a-secret") {
		t.Error("vLLM's API key is in the manifest or the labels")
	}
	if _, err := binary.Describe(); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

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
