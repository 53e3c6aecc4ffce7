// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"bytes"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"testing"
)

// checkTargets wants what is shown and compared in bounds, and an answer for every device.
func checkTargets(t *testing.T, c Cache) {
	t.Helper()
	if len(c.Targets) > 3*maxTargets {
		t.Errorf("%d targets", len(c.Targets))
	}
	for _, target := range c.Targets {
		if target.Backend == "" || len(target.Backend) > longestWord || len(target.Arch) > longestWord || target.WarpSize < 0 {
			t.Errorf("got the target %+v", target)
		}
		if target.Arch != "" && len(c.Fits(deviceOf(target))) > 0 && target.Code != PTX && target.Source == FromFiles {
			t.Errorf("%+v does not fit its own device: %v", target, c.Fits(deviceOf(target)))
		}
	}
	for _, d := range []Device{h100(), mi300x(), {Name: "intel", Backend: "intel"}} {
		for _, reason := range c.Fits(d) {
			if reason.Code == "" || !strings.Contains(reason.Message, d.Name) {
				t.Errorf("got the reason %+v", reason)
			}
		}
	}
	if _, err := json.Marshal(c); err != nil {
		t.Error(err)
	}
}

// checkPlans wants mounts that are clean and away from the system, variables of the list, and files that can be rewritten.
func checkPlans(t *testing.T, tr tree, c Cache) {
	t.Helper()
	for _, where := range []string{"", "/mnt/cache"} {
		plan, err := c.Plan(where)
		if err != nil {
			continue
		}
		for _, m := range plan.Mounts {
			if !path.IsAbs(m.Target) || path.Clean(m.Target) != m.Target || below(m.Target, "/etc") || below(m.Target, "/usr/lib") {
				t.Errorf("got the target %q", m.Target)
			}
			if m.Relocation == nil {
				continue
			}
			for _, name := range m.Relocation.Files {
				checkRewrite(t, m, name, tr[path.Join(m.Source, name)].Data)
			}
		}
		for _, env := range plan.Env {
			ending, ofKey := keyPaths()[env.Name]
			if !ofKey && !slices.Contains(AllowedEnv(), env.Name) || ofKey && ending == "" || !path.IsAbs(env.Value) {
				t.Errorf("got the variable %+v", env)
			}
		}
	}
}

// checkRewrite wants a file that could be read rewritten, and left alone the second time.
func checkRewrite(t *testing.T, m Mount, name string, data []byte) {
	t.Helper()
	once, err := m.Rewrite(name, data)
	if err != nil {
		t.Errorf("%s was read and cannot be rewritten: %v", name, err)
		return
	}
	again, err := m.Rewrite(name, once)
	if err != nil || !bytes.Equal(once, again) {
		t.Errorf("%s: rewritten twice is %q, once %q, %v", name, again, once, err)
	}
}

// FuzzLabels: what an image's labels say is refused or in bounds.
func FuzzLabels(f *testing.F) {
	_, split := splitTree()
	for _, seed := range []map[string]string{split, kserveLabels("binary", homeVLLM), mcvLabels("triton", `{"targets":[{"arch":90.5}]}`)} {
		f.Add(seed["cache.vllm.image/summary"], seed[labelRootEnv], seed[labelMounts], seed[labelSubPath], seed[labelCacheType])
	}
	f.Add(`{"targets":[{"backend":"cuda","arch":"sm_12.9","ptx_version":590}]}`, "A=/b,false,1", `[{"subPath":"a","absPath":"/b"}]`, "x", "y")
	f.Fuzz(func(t *testing.T, summary, root, mounts, subPath, kind string) {
		labels := map[string]string{
			"cache.vllm.image/summary": summary, labelRootEnv: root, labelMounts: mounts, labelSubPath: subPath, labelCacheType: kind,
		}
		tr := vllmBinaryTree(homeVLLM, false)
		cache, err := Inspect(tr.fs(), Options{Labels: labels})
		if err != nil {
			return
		}
		checkTargets(t, cache)
		checkPlans(t, tr, cache)
	})
}

// FuzzManifest: a manifest is refused or in bounds.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"triton":[{"hash":"h","dummy_key":"d","ptx_version":590,"backend":"cuda","arch":"90","warp_size":32}]}`))
	f.Add([]byte(`{"vllm":[{"vllmHash":"h","cacheFormat":"binary,triton","binary":[{"target_device":"rocm"}],"triton":[{"backend":"hip"}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ReadManifest(data, "m")
		if err != nil {
			return
		}
		checkTargets(t, Cache{Type: typeOf(m.Format), Targets: m.Targets})
	})
}

// FuzzGroup: a group file and a kernel's metadata in a cache.
func FuzzGroup(f *testing.F) {
	good := tritonTree(homeTriton)
	f.Add(good[keyA+"/__grp__add_kernel.json"].Data, []byte(metadata("add_kernel", hopper)), []byte(ptxText))
	f.Add([]byte(`{"child_paths": ["a"]}`), []byte(metadata("add_kernel", `["cuda", 80]`)), []byte(".version 9.9\n.target sm_1\n"))
	f.Add([]byte(`{"child_paths": {"x": "/a/b/`+keyA+`/x"}, "more": 1}`), []byte(metadata("add_kernel", mi300)), []byte(""))
	f.Fuzz(func(t *testing.T, group, meta, ptx []byte) {
		tr := tritonTree(homeTriton).
			put(keyA+"/__grp__add_kernel.json", string(group)).put(keyA+"/add_kernel.json", string(meta)).put(keyA+"/add_kernel.ptx", string(ptx))
		delete(tr, keyA+"/add_kernel.cubin")
		cache, err := Inspect(tr.fs(), Options{})
		if err != nil {
			return
		}
		checkTargets(t, cache)
		checkPlans(t, tr, cache)
	})
}

// FuzzIndex: vLLM's index, its factors and a source of Inductor's.
func FuzzIndex(f *testing.F) {
	dir := vllmCompile + "/" + binaryHash + "/rank_0_0/backbone/"
	good := vllmBinaryTree(homeVLLM, true)
	f.Add(good[dir+vllmIndex].Data, good[dir+vllmFactors].Data, []byte(sourceText("'gfx942'", "hip", 64)))
	f.Add([]byte(`{"a\"": '/x/`+dir+`y', # '`), []byte(`{"env":{"VLLM_TARGET_DEVICE":1}}`), []byte(sourceText("90", "cuda", 32)))
	f.Fuzz(func(t *testing.T, index, factors, source []byte) {
		tr := vllmBinaryTree(homeVLLM, true).put(dir+vllmIndex, string(index)).put(dir+vllmFactors, string(factors)).
			put(dir+"artifact_compile_range_1_2048_subgraph_0/ab/cabcdefghijklmnopqrstuvwxyz.py", string(source))
		cache, err := Inspect(tr.fs(), Options{})
		if err != nil {
			return
		}
		checkTargets(t, cache)
		checkPlans(t, tr, cache)
	})
}

// FuzzDirectory: names of files decide about types and layouts.
func FuzzDirectory(f *testing.F) {
	f.Add("torch_compile_cache/a/rank_0_0/b/artifact_1", "rank_0_0/model", "ab/cab.json")
	f.Add("rank_0_0/artifact_", "io.vllm.cache/x/rank_1_1/model", "io.vllm.manifest/manifest.json")
	f.Add("index", "a/b", "__grp__.json")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		tr := tree{}
		for _, name := range []string{a, b, c} {
			if path.Clean(name) != name || name == "." || path.IsAbs(name) || strings.HasPrefix(name, "..") {
				return
			}
			tr.put(name, "{}")
		}
		cache, err := Inspect(tr.fs(), Options{})
		if err != nil {
			return
		}
		checkTargets(t, cache)
		checkPlans(t, tr, cache)
		if image, err := cache.Describe(Target{Backend: CUDA, Arch: "90"}); err == nil {
			if _, err := ReadManifest(image.Manifest, "m"); err != nil {
				t.Errorf("the manifest that is made cannot be read: %v", err)
			}
		}
	})
}
