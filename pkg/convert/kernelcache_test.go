// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/check"
)

// TestKernelCaches converts each archive to claims and to volumes.
func TestKernelCaches(t *testing.T) {
	paths, err := filepath.Glob("testdata/caches-*.txtar")
	if err != nil || len(paths) < 6 {
		t.Fatalf("%d archives, %v: expected one for each way to have a cache", len(paths), err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			in := section(t, archive, "in.yaml")
			got := []txtar.File{{Name: "in.yaml", Data: in}}
			for _, form := range []string{"claims", "volumes"} {
				options := Options{KernelCacheVolumes: form == "volumes"}
				result, err := IntelFPGA(in, "in.yaml", options)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, txtar.File{Name: form + ".yaml", Data: result.YAML},
					txtar.File{Name: form + ".notes", Data: []byte(strings.Join(result.Notes, "\n") + "\n")})
				checkOutput(t, result.YAML, options)
				checkCaches(t, result.YAML)
			}
			if check.Updating() {
				if err := os.WriteFile(path, txtar.Format(&txtar.Archive{Comment: archive.Comment, Files: got}), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			for _, f := range got {
				if diff := cmp.Diff(string(section(t, archive, f.Name)), string(f.Data)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", f.Name, diff)
				}
			}
		})
	}
}

// checkCaches wants caches of which every field is one, and none of the older API.
func checkCaches(t *testing.T, out []byte) {
	t.Helper()
	for _, d := range split(Input{Data: out}) {
		raw, err := yaml.YAMLToJSONStrict(d.text)
		if err != nil {
			t.Fatal(err)
		}
		for kind, typed := range map[string]any{
			v1alpha1.KindGPUKernelCache: &v1alpha1.GPUKernelCache{}, v1alpha1.KindClusterGPUKernelCache: &v1alpha1.ClusterGPUKernelCache{},
		} {
			if !bytes.Contains(raw, []byte(`,"kind":"`+kind+`","metadata"`)) {
				continue
			}
			if unknown, err := strictjson.UnmarshalStrict(raw, typed); err != nil || len(unknown) > 0 {
				t.Errorf("%v %v: %s", err, unknown, raw)
			}
		}
		for _, kind := range []string{oldCacheKind, oldClusterCacheKind} {
			if bytes.Contains(raw, []byte(`"kind":"`+kind+`"`)) {
				t.Errorf("a %s is left: %s", kind, raw)
			}
		}
	}
}

// withCache is a cache and a pod that mounts it.
func withCache(spec, mount, rest string) string {
	return `{"apiVersion":"gkm.io/v1alpha1","kind":"GKMCache","metadata":{"name":"k"},"spec":{"image":"r.example/a:b"` + spec +
		"}}\n---\n" +
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"` + rest + `,"volumeMounts":[` +
		mount + `]}],"volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"k"}},{"name":"w","emptyDir":{}}]}}`
}

func TestKernelCacheFaults(t *testing.T) {
	const mount = `{"name":"v","mountPath":"/cache"}`
	cluster := func(text string) string { return strings.Replace(text, "GKMCache", "ClusterGKMCache", 1) }
	second := "\n---\n" + `{"apiVersion":"gkm.io/v1alpha1","kind":"GKMCache","metadata":{"name":"K"},"spec":{"image":"r.example/a:b"}}`
	for name, test := range map[string]struct {
		in, want string
		volumes  bool
	}{
		"version": {
			in:   strings.Replace(withCache("", mount, ""), "gkm.io/v1alpha1", "gkm.io/v1", 1),
			want: `GKMCache k: apiVersion "gkm.io/v1": expected`,
		},
		"no image": {
			in:   strings.Replace(withCache("", mount, ""), "r.example/a:b", "", 1),
			want: "GKMCache k: spec.image: expected an image",
		},
		"unknown field": {in: withCache(`,"images":[]`, mount, ""), want: `GKMCache k: unknown field "spec.images"`},
		"wrong type":    {in: withCache(`,"accessModes":1`, mount, ""), want: "GKMCache k: a field has a value of the wrong type"},
		"unknown mode": {
			in:   withCache(`,"accessModes":["Read"]`, mount, ""),
			want: `spec.accessModes[0]: "Read": expected one of`, volumes: true,
		},
		"no namespaces":   {in: cluster(withCache("", mount, "")), want: "ClusterGKMCache k: spec.workloadNamespaces: expected"},
		"no legal name":   {in: strings.ReplaceAll(withCache("", mount, ""), `"k"`, `"_"`), want: "metadata.name: a lowercase RFC 1123"},
		"names that meet": {in: withCache("", mount, "") + second, want: "GKMCache K: k would have its name, k: rename one"},
		"format": {
			in:   strings.Replace(withCache("", mount, ""), `"name":"k"}`, `"name":"k","labels":{"gkm.io/signature-format":"v2"}}`, 1),
			want: `label gkm.io/signature-format: "v2": expected cosign-v2 or cosign-v3`,
		},
		"part of it": {
			in:   withCache("", `{"name":"v","mountPath":"/cache","subPath":"a"}`, ""),
			want: "Pod p: container c: volumeMounts v: subPath",
		},
		"twice": {in: withCache("", mount+`,{"name":"v","mountPath":"/b"}`, ""), want: "k is mounted twice"},
		"nowhere": {
			in:   withCache("", `{"name":"w","mountPath":"/cache"}`, ""),
			want: "Pod p: no container mounts its volumes of caches: v",
		},
		"forbidden path": {in: withCache("", `{"name":"v","mountPath":"/proc"}`, ""), want: "kernelCaches[0].mountPath"},
		"half a GPU": {
			in:   withCache("", mount, `,"resources":{"limits":{"amd.com/gpu":"500m"}}`),
			want: "resource amd.com/gpu: quantity",
		},
		"misspelt in pods": {
			in:   withCache("", mount, `,"imagePolicy":"x"`),
			want: `Pod p: unknown field "spec.containers[0].imagePolicy"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := IntelFPGA([]byte(test.in), "in", Options{KernelCacheVolumes: test.volumes})
			check.WantErr(t, err, nil, test.want)
		})
	}
}

// TestPermissions tells containers that only set owner and mode from those that do more, or do it elsewhere.
func TestPermissions(t *testing.T) {
	for command, want := range map[string]bool{
		`[sh, -c, "chown -R 1000:1000 /cache\nchmod -R 775 /cache\n"]`:      true,
		`[/bin/sh, -c, "set -e; chown -R a /cache/x && chmod a+rX /cache"]`: true,
		`[chmod, -R, "775", /cache]`:                                        true,
		`[]`:                                                                false,
		`[sh, -c, "chown -R 1000:1000 /cache /data"]`:                       false,
		`[sh, -c, "chown -R 1000:1000 /cache/../data"]`:                     false,
		`[sh, -c, "chmod 775 /cache; curl http://example.com"]`:             false,
		`[sh, -c, "chmod 775 /cache | tee /cache/log"]`:                     false,
		`[sh, -c, "chmod 775 $(cat /cache/x)"]`:                             false,
		`[sh, -c, "chmod 775 /cache2"]`:                                     false,
		`[chmod]`:                                                           false,
	} {
		n, err := parse([]byte("command: " + command))
		if err != nil {
			t.Fatal(err)
		}
		if got := onlyPermissions(n, []string{"/cache"}); got != want {
			t.Errorf("%s: got %t", command, got)
		}
	}
}

func TestLegalName(t *testing.T) {
	for name, want := range map[string]string{"cacheNs": "cachens", "a_b": "a-b", "-a.": "a", "a.b-c9": "a.b-c9", "é": "", "": ""} {
		if got := legalName(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestWithRegistry(t *testing.T) {
	for image, want := range map[string]string{
		"quay.io/a/b:c": "quay.io/a/b:c", "localhost/a": "localhost/a", "host:5000/a": "host:5000/a", "a": "docker.io/library/a",
		"a:b": "docker.io/library/a:b", "a/b": "docker.io/a/b",
	} {
		if got := withRegistry(image); got != want {
			t.Errorf("%s: got %s, want %s", image, got, want)
		}
	}
}

// TestNothingOfOthers wants pods without caches as they came, whatever else is in the stream.
func TestNothingOfOthers(t *testing.T) {
	pod := "# A comment.\napiVersion: v1\nkind: Pod\nmetadata: {name: Other}\nspec:\n  containers: []\n  volumes:\n" +
		"  - {name: v, persistentVolumeClaim: {claimName: data}}\n"
	claim := "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n"
	cache := strings.Split(withCache("", "", ""), "---\n")[0]
	result, err := IntelFPGA([]byte(pod+"---\n"+claim+"---\n"+cache), "in", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(result.YAML, []byte(pod+"---\n"+claim)) {
		t.Errorf("got\n%s", result.YAML)
	}
	if slices.ContainsFunc(result.Notes, func(note string) bool { return strings.HasPrefix(note, "Pod") }) {
		t.Errorf("got notes %q for a pod with a claim of the input's own", result.Notes)
	}
}

// TestCachePodsLoseWhatChoosesGPUsPastTheClaim: the runtime class and the variable give a container the GPUs that they name.
func TestCachePodsLoseWhatChoosesGPUsPastTheClaim(t *testing.T) {
	const in = `apiVersion: gkm.io/v1alpha1
kind: GKMCache
metadata: {name: cache, namespace: team-a}
spec: {image: "quay.io/example/my-image:tag"}
---
apiVersion: v1
kind: Pod
metadata: {name: pod, namespace: team-a}
spec:
  runtimeClassName: nvidia
  containers:
  - name: main
    image: quay.io/example/server
    env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]
    resources: {limits: {nvidia.com/gpu: "1"}}
    volumeMounts: [{name: kernels, mountPath: /cache}]
  volumes:
  - name: kernels
    persistentVolumeClaim: {claimName: cache}
`
	result, err := IntelFPGA([]byte(in), "in.yaml", Options{})
	check.Must(t, err)
	for _, word := range []string{"runtimeClassName", "NVIDIA_VISIBLE_DEVICES"} {
		if bytes.Contains(result.YAML, []byte(word)) {
			t.Errorf("%s is kept:\n%s", word, result.YAML)
		}
		if notes := strings.Join(result.Notes, "\n"); !strings.Contains(notes, word) {
			t.Errorf("no note says that %s is left out: %s", word, notes)
		}
	}
}
