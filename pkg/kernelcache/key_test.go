// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fettle-dev/fettle/test/check"
)

// engine is a program that looks its cache up as vLLM 0.24 does (vllm/envs.py, compile_factors; vllm/compilation/backends.py): the first
// ten digits of a hash of its code, its configuration, its compiler and its environment are a directory below VLLM_CACHE_ROOT.
type engine struct {
	home string
	env  map[string]string
}

// variable returns a variable of the program, or what it makes of its home.
func (e engine) variable(name, inHome string) string {
	if value, ok := e.env[name]; ok {
		return value
	}
	return path.Join(e.home, inHome)
}

func (e engine) cacheRoot() string { return e.variable("VLLM_CACHE_ROOT", ".cache/vllm") }

// factors are the variables in its key. The root of the cache is none of them.
func (e engine) factors() map[string]any {
	return map[string]any{
		"VLLM_TARGET_DEVICE": "cuda", "VLLM_MAIN_CUDA_VERSION": "13.0", "VLLM_API_KEY": "/a/secret", "K_SCALE_CONSTANT": 200, "CUDA_HOME": nil,
		"VLLM_CONFIG_ROOT":    e.variable("VLLM_CONFIG_ROOT", ".config/vllm"),
		"VLLM_XLA_CACHE_PATH": e.variable("VLLM_XLA_CACHE_PATH", ".cache/vllm/xla_cache"),
	}
}

const codeHash, configHash, compilerHash = "1111", "3333333333", "2222"

// directory is where it looks for its artifacts, below the root of its cache.
func (e engine) directory(t *testing.T) string {
	t.Helper()
	env := sha256.Sum256(encoded(t, e.factors()))
	all := sha256.Sum256([]byte("['" + strings.Join([]string{hex.EncodeToString(env[:]), configHash, codeHash, compilerHash}, "', '") + "']"))
	return vllmCompile + "/" + hex.EncodeToString(all[:])[:10] + "/rank_0_0/backbone"
}

// write returns the cache that it leaves, at the top of a file system.
func (e engine) write(t *testing.T) tree {
	t.Helper()
	dir := e.directory(t)
	factors := encoded(t, map[string]any{
		"env": e.factors(), "code_hash": codeHash, "config_hash": configHash, "compiler_hash": compilerHash,
	})
	return tree{}.put(dir+"/"+vllmFactors, string(factors)).put(dir+"/artifact_compile_range_1_2048_subgraph_0", "\x80\x05x").
		put(path.Dir(dir)+"/"+vllmIndex, "{((1, 2048), 0, 'inductor_standalone'): ('x', '"+e.cacheRoot()+"/"+dir+"/artifact_0')}")
}

func encoded(t *testing.T, value any) []byte {
	t.Helper()
	data, err := json.Marshal(value)
	check.Must(t, err)
	return data
}

func planned(t *testing.T, cache *Cache, where string) Plan {
	t.Helper()
	plan, err := cache.Plan(where)
	check.Must(t, err)
	return plan
}

// finds reports whether it finds its directory in a cache that is mounted at the root where it looks.
func (e engine) finds(t *testing.T, tr tree) bool {
	t.Helper()
	_, err := fs.Stat(tr.fs(), e.directory(t))
	return err == nil
}

// TestMovedHome: a program with another home than the producer's computes another key. With what the claim sets it computes the producer's.
func TestMovedHome(t *testing.T) {
	producer := engine{home: "/home/bake"}
	tr := producer.write(t)
	if user := (engine{home: "/root"}); user.finds(t, tr) || !producer.finds(t, tr) {
		t.Fatal("the test's program finds its cache whatever its home is, or never")
	}
	cache := inspect(t, tr, Options{})
	for _, where := range []string{"", "/mnt/cache"} {
		plan := planned(t, &cache, where)
		for _, home := range []string{"/root", "/home/vllm"} {
			user := engine{home: home, env: map[string]string{}}
			for _, e := range plan.Env {
				user.env[e.Name] = e.Value
			}
			if user.cacheRoot() != plan.Mounts[0].Target || !user.finds(t, tr) {
				t.Errorf("mounted at %q, with the home %s: looks in %s/%s with %v", where, home, user.cacheRoot(), user.directory(t), plan.Env)
			}
		}
	}
	if text := string(encoded(t, cache)); strings.Contains(text, "secret") {
		t.Errorf("the description has a variable that is not for everybody: %s", text)
	}
}

// TestKeyOfPod: what decides what is compiled, a path that was set by hand and one of which there are several are left to the pod.
func TestKeyOfPod(t *testing.T) {
	factors := func(env string) string { return `{"env": {` + env + `}}` }
	one, two := vllmCompile+"/"+binaryHash+"/rank_0_0/a/"+vllmFactors, vllmCompile+"/"+binaryHash+"/rank_0_0/b/"+vllmFactors
	type kv = KeyVariable
	for name, test := range map[string]struct {
		files    map[string]string
		set      []Env
		left     []KeyVariable
		variable Env
		missed   string
	}{
		"of a home": {
			files: map[string]string{
				one: factors(`"VLLM_CONFIG_ROOT": "/home/bake/.config/vllm"`),
				two: factors(`"VLLM_CONFIG_ROOT": "/home/bake/.config/vllm"`),
			},
			set: []Env{{"VLLM_CONFIG_ROOT", "/home/bake/.config/vllm"}}, variable: Env{"VLLM_CONFIG_ROOT", "/etc/vllm"},
		},
		"set by hand": {
			files: map[string]string{one: factors(`"VLLM_CONFIG_ROOT": "/conf"`)}, left: []kv{{Name: "VLLM_CONFIG_ROOT", Value: "/conf", File: one}},
			variable: Env{"VLLM_CONFIG_ROOT", "/etc/vllm"}, missed: `VLLM_CONFIG_ROOT is "/etc/vllm", but the cache was made with /conf`,
		},
		"a library": {
			files: map[string]string{one: factors(`"CUDA_HOME": "/usr/local/cuda"`)}, variable: Env{"CUDA_HOME", "/opt/cuda"},
			left: []kv{{Name: "CUDA_HOME", Value: "/usr/local/cuda", File: one}}, missed: `CUDA_HOME is "/opt/cuda"`,
		},
		"the same": {
			files: map[string]string{one: factors(`"CUDA_HOME": "/usr/local/cuda"`)}, variable: Env{"CUDA_HOME", "/usr/local/cuda"},
			left: []kv{{Name: "CUDA_HOME", Value: "/usr/local/cuda", File: one}},
		},
		"several": {
			files: map[string]string{
				one: factors(`"VLLM_XLA_CACHE_PATH": "/a/vllm/xla_cache"`), two: factors(`"VLLM_XLA_CACHE_PATH": "/b/vllm/xla_cache"`),
			},
			left: []kv{
				{Name: "VLLM_XLA_CACHE_PATH", Value: "/a/vllm/xla_cache", File: one},
				{Name: "VLLM_XLA_CACHE_PATH", Value: "/b/vllm/xla_cache", File: two},
			},
			variable: Env{"VLLM_XLA_CACHE_PATH", "/c"}, missed: "made with /a/vllm/xla_cache and /b/vllm/xla_cache",
		},
		"no paths": {
			files: map[string]string{
				one: factors(`"CUDA_HOME": null, "VLLM_CONFIG_ROOT": 7, "VLLM_XLA_CACHE_PATH": "/a/../vllm/xla_cache"`),
				two: factors(`"CUDA_HOME": "/a\u0007", "VLLM_NCCL_SO_PATH": "/` + strings.Repeat("a", longestKeyPath) + `"`),
			},
			variable: Env{"CUDA_HOME", "/opt/cuda"},
		},
		"not known": {
			files:    map[string]string{one: factors(`"VLLM_API_KEY": "/secret", "VLLM_PLUGINS": "/x"`)},
			variable: Env{"VLLM_API_KEY", "x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := vllmBinaryTree("/old", false)
			delete(tr, vllmCompile+"/"+binaryHash+"/rank_0_0/backbone/"+vllmFactors) // which tells of no path
			for name, text := range test.files {
				tr.put(name, text)
			}
			cache := inspect(t, tr, Options{})
			plan := planned(t, &cache, "")
			if diff := cmp.Diff(append([]Env{{"VLLM_CACHE_ROOT", "/old"}}, test.set...), plan.Env); diff != "" {
				t.Errorf("variables that a claim sets (-want +got):\n%s", diff)
			}
			key := cache.KeyOfPod(true)
			if diff := cmp.Diff(test.left, key.Variables, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("what a pod has to share (-want +got):\n%s", diff)
			}
			got := key.MissedWith(test.variable.Name, test.variable.Value)
			if (got == "") != (test.missed == "") || !strings.Contains(got, test.missed) {
				t.Errorf("with %v: %q, want %q", test.variable, got, test.missed)
			}
		})
	}
}

// TestKeyBounds: what an image says of its key is bounded, and a version that is none is passed over.
func TestKeyBounds(t *testing.T) {
	tr := vllmBinaryTree("/old", false)
	for i := range 3 * maxKeyFacts {
		tr.put(fmt.Sprintf("%s/%s/rank_0_0/p%d/%s", vllmCompile, binaryHash, i, vllmFactors), fmt.Sprintf(`{"env": {"CUDA_HOME": "/%d"}}`, i))
		key := fmt.Sprintf("KEY%d", i)
		text := strings.Replace(metadata("k", hopper), "{", fmt.Sprintf(`{"triton_version": "3.%d.0", `, i), 1)
		tr.put(key+"/k.json", text).put(key+"/k.cubin", "code")
	}
	for i, version := range []string{`7`, `null`, `"\u0007"`, `"` + strings.Repeat("3", longestWord+1) + `"`} {
		text := strings.Replace(metadata("k", hopper), "{", `{"triton_version": `+version+`, `, 1)
		tr.put(fmt.Sprintf("KEX%d/k.json", i), text).put(fmt.Sprintf("KEX%d/k.cubin", i), "code")
	}
	cache := inspect(t, tr, Options{})
	key := cache.Key
	versions := strings.Join(key.Triton, " ")
	if len(key.Variables) != maxKeyFacts || len(key.Triton) != maxKeyFacts || !slices.IsSorted(key.Triton) || versions[:2] != "3." {
		t.Errorf("%d values, and the versions %q", len(key.Variables), key.Triton)
	}
	if !strings.Contains(strings.Join(cache.Notes, "\n"), "more values of CUDA_HOME than are shown") {
		t.Errorf("notes: %q", cache.Notes)
	}
}

// TestKeyOfSomeEntries: a cache that also has entries of a version without the variable in its key, or with a value that is not kept, may
// be found with any value. To refuse it keeps its kernels from a program that would have found them.
func TestKeyOfSomeEntries(t *testing.T) {
	many := make([]string, maxKeyFacts)
	for i := range many {
		many[i] = fmt.Sprintf(`"CUDA_HOME": "/cuda-%d"`, i)
	}
	const home = `"VLLM_CONFIG_ROOT": "/a/vllm"`
	for name, test := range map[string]struct {
		factors  []string
		variable Env
		// set says that the claim sets the variable.
		set bool
	}{
		"none":            {[]string{`"CUDA_HOME": "/cuda"`, `"CUDA_HOME": null`}, Env{"CUDA_HOME", "/opt"}, false},
		"not clean":       {[]string{`"CUDA_HOME": "/cuda"`, `"CUDA_HOME": "/opt/"`}, Env{"CUDA_HOME", "/opt/"}, false},
		"of a later vLLM": {[]string{`"VLLM_CONFIG_ROOT": "/conf"`, ``}, Env{"VLLM_CONFIG_ROOT", "/opt"}, false},
		"not readable":    {[]string{`"CUDA_HOME": "/cuda"`, `7`}, Env{"CUDA_HOME", "/opt"}, false},
		"too many":        {append(many, `"CUDA_HOME": "/opt"`), Env{"CUDA_HOME", "/opt"}, false},
		"too many beside others": {
			append(many[2:], `"CUDA_HOME": "/cuda", `+home, `"CUDA_HOME": "/cuda", "VLLM_CONFIG_ROOT": "/b/vllm"`),
			Env{"VLLM_CONFIG_ROOT", "/a/vllm"},
			false,
		},
		"a home and none":         {[]string{home, `"VLLM_CONFIG_ROOT": null`}, Env{"VLLM_CONFIG_ROOT", "/a/vllm"}, false},
		"a home and a later vLLM": {[]string{home, ``}, Env{"VLLM_CONFIG_ROOT", "/a/vllm"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			tr := tree{}
			for i, env := range test.factors {
				dir := fmt.Sprintf("%s/%s/rank_0_0/p%02d/", vllmCompile, binaryHash, i)
				tr.put(dir+vllmFactors, `{"env": {`+env+`}}`).put(dir+"artifact_0", "x")
			}
			for range 20 { // the order in which variables are read does not count
				cache := inspect(t, tr, Options{Labels: map[string]string{labelRootEnv: envVLLM + "=/old"}})
				key, set := cache.KeyOfPod(true), slices.Contains(planned(t, &cache, "").Env, test.variable)
				if why := key.MissedWith(test.variable.Name, test.variable.Value); why != "" || set != test.set {
					t.Fatalf("%s %s: set by the claim: %t, want %t; %s", test.variable.Name, test.variable.Value, set, test.set, why)
				}
			}
		})
	}
}

// TestMissedWithIsShort: an image has as many values, as long, as its producer likes, and each container may be told of them.
func TestMissedWithIsShort(t *testing.T) {
	tr := tree{}
	for i := range maxKeyFacts {
		dir := fmt.Sprintf("%s/%s/rank_0_0/p%02d/", vllmCompile, binaryHash, i)
		long := strings.Repeat("n", longestKeyPath-10)
		tr.put(dir+vllmFactors, fmt.Sprintf(`{"env": {"CUDA_HOME": "/%d%s"}}`, i, long)).put(dir+"artifact_0", "x")
	}
	cache := inspect(t, tr, Options{})
	key := cache.KeyOfPod(true)
	if got := key.MissedWith("CUDA_HOME", "/opt"); got == "" || len(got) > 1<<10 {
		t.Errorf("%d bytes: %.200s", len(got), got)
	}
}
