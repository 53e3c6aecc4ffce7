// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"testing"
	"testing/fstest"
)

func TestInspectRefuses(t *testing.T) {
	group := keyA + "/__grp__add_kernel.json"
	index := vllmCompile + "/" + binaryHash + "/rank_0_0/backbone/" + vllmIndex
	deep := strings.Repeat("d/", 40) + "x"
	link := tritonTree(homeTriton)
	link[keyA+"/link"] = &fstest.MapFile{Data: []byte("/etc/passwd"), Mode: fs.ModeSymlink | 0o777}
	for _, test := range []struct {
		name string
		tree tree
		opts Options
		want string
	}{
		{"group is no JSON", tritonTree(homeTriton).put(group, "{"), Options{}, `file "` + group + `": not valid`},
		{"group without files", tritonTree(homeTriton).put(group, "{}"), Options{}, "want child_paths"},
		{"group of null", tritonTree(homeTriton).put(group, `{"child_paths": null}`), Options{}, "want child_paths"},
		{"group of numbers", tritonTree(homeTriton).put(group, `{"child_paths": {"a": 1}}`), Options{}, "want names with their paths"},
		{"group twice", tritonTree(homeTriton).put(group, `{"child_paths": {"a": "/x"}, "child_paths": {}}`), Options{}, "duplicate field"},
		{"child twice", tritonTree(homeTriton).put(group, `{"child_paths": {"a": "/x", "a": "/y"}}`), Options{}, "duplicate field"},
		{"child outside", tritonTree(homeTriton).put(group, `{"child_paths": {"../a": "/x"}}`), Options{}, "is no name of a file"},
		{"child in a list outside", tritonTree(homeTriton).put(group, `{"child_paths": [".."]}`), Options{}, "is no name of a file"},
		{"huge group", tritonTree(homeTriton).put(group, strings.Repeat(" ", MaxText+1)), Options{}, "want at most 4194304 bytes"},
		{"metadata is no JSON", tritonTree(homeTriton).put(keyA+"/add_kernel.json", "["), Options{}, `add_kernel.json": not valid`},
		{"target is a number", oneKernel("7", ".cubin"), Options{}, "target: not valid"},
		{"index that does not end", vllmBinaryTree(homeVLLM, false).put(index, "{'a"), Options{}, "a string that does not end"},
		{"index with triple quotes", vllmBinaryTree(homeVLLM, false).put(index, "'''a'''"), Options{}, "in triple quotes"},
		{"a link", link, Options{}, "is neither a file nor a directory"},
		{"too deep", tree{}.put(deep, ""), Options{}, "deeper than 32"},
		{"two caches", tree{}.put("io.triton.cache/x", "").put("io.vllm.cache/x", ""), Options{}, "want one cache an image"},
		{"labels of another", tree{}.put("io.triton.cache/x", ""), labelled("vllm", "cuda", "90", "32"), "there is io.triton.cache"},
		{"another type", tritonTree(homeTriton).with("io.triton.cache"), Options{Type: VLLM}, "use Triton or Auto"},
		{"no type", tree{}, Options{Type: "triton"}, `got "triton", want one of`},
		{"manifest is no JSON", withManifest(tritonTree(homeTriton), "triton", "x"), Options{}, "manifest.json: not valid"},
		{"manifest of another", withManifest(tritonTree(homeTriton), "triton", `{"vllm":[]}`), Options{}, "it is one of vllm"},
		{"manifest of two", withManifest(tritonTree(homeTriton), "triton", `{"vllm":[],"triton":[]}`), Options{}, "want one of them"},
		{"manifest of none", withManifest(tritonTree(homeTriton), "triton", `{}`), Options{}, "want a list triton or vllm"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Inspect(test.tree.fs(), test.opts)
			if err == nil || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want ErrInvalid with %q", err, test.want)
			}
		})
	}
	if cache := inspect(t, tree{}.put("io.triton.cachex/x", "").put("io.triton.cache2/y", ""), Options{}); cache.Dir != "." {
		t.Errorf("a directory that only begins like one of MCV's is taken for it: %s", cache.Dir)
	}
}

func TestTooManyFiles(t *testing.T) {
	tr := tree{}
	for i := range maxFiles + 1 {
		tr.put(fmt.Sprintf("d/%d", i), "")
	}
	if _, err := Inspect(tr.fs(), Options{}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "more than 200000 files") {
		t.Errorf("got %v, want too many files", err)
	}
}

// TestNeighbours: names that begin alike are not in each other.
func TestNeighbours(t *testing.T) {
	labels, err := ReadLabels(map[string]string{labelMounts: `[{"subPath":"a","absPath":"/tmp/a"},{"subPath":"ab","absPath":"/tmp/ab"}]`})
	if err != nil || len(labels.Mounts) != 2 {
		t.Errorf("got %+v, %v, want two mounts", labels.Mounts, err)
	}
}

func TestReadLabelsRefuses(t *testing.T) {
	mounts := func(text string) map[string]string { return map[string]string{labelMounts: text} }
	both := mcvLabels("triton", `{}`)
	maps.Copy(both, mcvLabels("vllm", `{}`))
	for _, test := range []struct {
		name   string
		labels map[string]string
		want   string
	}{
		{"summary is no JSON", mcvLabels("triton", "x"), "label cache.triton.image/summary: not valid"},
		{"targets are no list", mcvLabels("triton", `{"targets":1}`), "label cache.triton.image/summary"},
		{"targets twice", mcvLabels("triton", `{"targets":[],"targets":[]}`), "duplicate field"},
		{"too many targets", mcvLabels("triton", `{"targets":[`+strings.Repeat("{},", 300)+`{}]}`), "301 targets, want at most 256"},
		{"huge summary", mcvLabels("triton", strings.Repeat(" ", MaxText+1)), "want at most 4194304"},
		{"two formats", both, "want one format an image"},
		{"type against summary", map[string]string{"cache.triton.image/summary": "{}", labelCacheType: typeTorchCompile}, "but the summary is"},
		{"negative size", map[string]string{"cache.triton.image/summary": "{}", "cache.triton.image/cache-size-bytes": "-1"}, "want a number"},
		{
			"size beyond any",
			map[string]string{"cache.triton.image/summary": "{}", "cache.triton.image/cache-size-bytes": "9223372036854775807"},
			"want a number",
		},
		{"root without a name", map[string]string{labelRootEnv: "/x"}, "want NAME=/PATH"},
		{"root is relative", map[string]string{labelRootEnv: "VLLM_CACHE_ROOT=x"}, "must be absolute"},
		{"root over the loader", map[string]string{labelRootEnv: "VLLM_CACHE_ROOT=/usr/lib/x"}, "must not cover or lie in /usr/lib"},
		{"root over everything", map[string]string{labelRootEnv: "VLLM_CACHE_ROOT=/"}, "must not cover or lie in"},
		{"sub path outside", map[string]string{labelSubPath: "../x"}, "want the path of a directory in the cache"},
		{"mounts are no list", mounts("{}"), "label " + labelMounts},
		{"mount outside", mounts(`[{"subPath":"a/../../b","absPath":"/a"}]`), "[0].subPath"},
		{"mount of everything", mounts(`[{"subPath":".","absPath":"/a"}]`), "[0].subPath"},
		{"mount at a relative path", mounts(`[{"subPath":"a","absPath":"a"}]`), "[0].absPath"},
		{"mount over the system", mounts(`[{"subPath":"a","absPath":"/etc"}]`), "must not cover or lie in /etc"},
		{"one directory twice", mounts(`[{"subPath":"a","absPath":"/a"},{"subPath":"a/b","absPath":"/b"}]`), "[1] overlaps [0]"},
		{"one place twice", mounts(`[{"subPath":"a","absPath":"/a"},{"subPath":"b","absPath":"/a/b"}]`), "[1] overlaps [0]"},
		{"hash for a terminal", map[string]string{labelCacheHash: "\x1b[2J"}, "printable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := ReadLabels(test.labels)
			if err == nil || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want ErrInvalid with %q", err, test.want)
			}
		})
	}
}

// TestEnvIsAllowed: an image may say where a cache is, and not what is loaded into each program.
func TestEnvIsAllowed(t *testing.T) {
	labels := kserveLabels("binary", homeVLLM)
	labels[labelRootEnv] = "LD_LIBRARY_PATH=" + homeVLLM
	labels[labelMounts] = `[{"subPath":"t","absPath":"/tmp/t","env":"LD_PRELOAD"},` +
		`{"subPath":"f","absPath":"/tmp/f","env":"FLASHINFER_WORKSPACE_BASE"}]`
	cache := inspect(t, vllmAOTTree(), Options{Labels: labels})
	plan, err := cache.Plan("")
	if err != nil {
		t.Fatal(err)
	}
	want := []Env{{"FLASHINFER_WORKSPACE_BASE", "/tmp/f"}, {"VLLM_CACHE_ROOT", homeVLLM}}
	if len(plan.Env) != 2 || plan.Env[0] != want[0] || plan.Env[1] != want[1] {
		t.Errorf("got %v, want %v", plan.Env, want)
	}
	for _, name := range []string{"LD_LIBRARY_PATH", "LD_PRELOAD"} {
		if !strings.Contains(strings.Join(cache.Notes, "\n"), `variable "`+name+`" is left out`) {
			t.Errorf("nobody is told that %s is left out: %q", name, cache.Notes)
		}
	}
}

// TestErrorChains: the cause of a refusal is in the chain, and its text is still one bounded line.
func TestErrorChains(t *testing.T) {
	_, err := ReadLabels(map[string]string{labelRoot: "relative\n" + strings.Repeat("x", 4096)})
	var invalid interface{ Errors() []error } // of the API's validation
	if !errors.As(err, &invalid) || !errors.Is(err, ErrInvalid) {
		t.Errorf("the chain ends before the API's error: %v", err)
	}
	if strings.ContainsAny(err.Error(), "\n") || len(err.Error()) > 300 {
		t.Errorf("not fit to be read: %q", err)
	}
	cause := errors.New(`a "cause"`)
	if err := plain(cause); !errors.Is(err, cause) || err.Error() != "a 'cause'" {
		t.Errorf("got %q", err)
	}
}

// TestLabelNamesAFile: a label that gives a file a place of its own, where only a directory can have one, gives none.
func TestLabelNamesAFile(t *testing.T) {
	for name, content := range map[string]string{
		"K/__grp__k.json":         `{"child_paths": {"k.json": "/p/K/k.json"}}`,
		"__grp__k.json":           `{"child_paths": {"k.json": "/p/k.json"}}`,
		"K/vllm_compile_cache.py": `{0: '/p/K/artifact_1'}`,
	} {
		files := fstest.MapFS{"io.triton.cache/" + name: {Data: []byte(content)}}
		labels := map[string]string{labelMounts: `[{"subPath": "` + name + `", "absPath": "/mnt/x"}]`}
		if _, err := Inspect(files, Options{Labels: labels}); err != nil {
			t.Logf("%s: %v", name, err) // what it says is others' to test: it says something
		}
	}
}
