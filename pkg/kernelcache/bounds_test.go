// SPDX-License-Identifier: Apache-2.0

package kernelcache

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/fettle-dev/fettle/test/check"
)

// TestRewrittenFilesAreBounded: a short path becomes a long one, for each of many names.
func TestRewrittenFilesAreBounded(t *testing.T) {
	var names, paths strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&names, `"%d":"/x",`, i)
		fmt.Fprintf(&paths, `'/x/d/%d',`, i)
	}
	group := `{"child_paths":{` + names.String() + `"z":"/x"}}`
	long := "/" + strings.Repeat("n", 250)
	_, err := RewriteGroup([]byte(group), long)
	check.WantErr(t, err, ErrInvalid, "want at most 4194304 bytes")
	_, err = RewriteIndex([]byte("["+paths.String()+"]"), "d", long)
	check.WantErr(t, err, ErrInvalid, "want at most 4194304 bytes")

	cache := inspect(t, tritonTree(homeTriton).put(keyA+"/__grp__add_kernel.json", group), Options{})
	_, err = cache.Plan(long)
	check.WantErr(t, err, ErrInvalid, "__grp__add_kernel.json", "want at most 4194304 bytes")
}

// TestRelocationCountsWhatIsWritten: the memory of a claim has to hold the files with their new paths.
func TestRelocationCountsWhatIsWritten(t *testing.T) {
	tr := tritonTree("/a")
	cache := inspect(t, tr, Options{})
	plan, err := cache.Plan("/" + strings.Repeat("n", 200))
	check.Must(t, err)
	m := plan.Mounts[0]
	written := int64(0)
	for _, name := range m.Relocation.Files {
		out, err := m.Rewrite(name, tr[name].Data)
		check.Must(t, err)
		written += int64(len(out))
	}
	if m.Relocation.Bytes < written {
		t.Errorf("the plan counts %d bytes, %d are written", m.Relocation.Bytes, written)
	}
}

// TestRelocationCountsEscapes: JSON has some characters escaped, which an image may have written as they are. What a plan counts is what is
// written: with less the claim's memory would be too small for its files, and with more a cache would be refused that fits.
func TestRelocationCountsEscapes(t *testing.T) {
	separators, broken := strings.Repeat("\u2028", 60), strings.Repeat("\xff", 80)
	for name, tr := range map[string]tree{
		"usual":               tritonTree("/a"),
		"an index":            vllmBinaryTree("/a", false),
		"an index of several": tree{}.put("d/rank_0_0/"+vllmIndex, "['/a/d/rank_0_0/x', '/longer/d/rank_0_0/y']"),
		"separators": tree{}.put("d/__grp__k.json",
			`{"child_paths":{"`+separators+`":"/a/d/`+separators+`","`+separators+`2":"/a/d/`+separators+`2"}, "\u2028":  7}`),
		"no UTF-8":            tree{}.put("d/__grp__k.json", `{"child_paths":{"`+broken+`":"/a/d/`+broken+`"},"`+broken+`":1}`),
		"elsewhere":           tree{}.put("d/__grp__k.json", `{"child_paths":{"`+separators+`":""}}`),
		"escaped for nothing": tree{}.put("d/__grp__k.json", `{"child_paths":{"\u006b":"\/a\/d\/\u006b"}}`),
		"a directory":         tree{}.put(`d"\`+"\u2028/__grp__k.json", `{"child_paths":{"k":"/b/k"}}`),
	} {
		for _, target := range []string{"/b", "/longer/than/before", "/" + strings.Repeat(`"`, 200)} {
			t.Run(name+" "+target[:2], func(t *testing.T) {
				cache := inspect(t, tr, Options{})
				plan, err := cache.Plan(target)
				if strings.Contains(target, `"`) && strings.HasPrefix(name, "an index") {
					check.WantErr(t, err, ErrInvalid, "without quotes")
					return
				}
				check.Must(t, err)
				m := plan.Mounts[0]
				for range 2 { // applied to its own result, too
					written := int64(0)
					for _, name := range m.Relocation.Files {
						out, err := m.Rewrite(name, tr[name].Data)
						check.Must(t, err)
						tr[name].Data = out
						written += int64(len(out))
					}
					if m.Relocation.Bytes != written {
						t.Errorf("the plan counts %d bytes, %d are written", m.Relocation.Bytes, written)
					}
				}
			})
		}
	}
}

// TestInspectKeepsLittleOfLongTexts: texts of an image are as long as its producer likes.
func TestInspectKeepsLittleOfLongTexts(t *testing.T) {
	const files = 8
	long := strings.Repeat("n", 3<<20)
	for name, file := range map[string]func(tr tree, i int){
		"architecture": func(tr tree, i int) {
			tr.put(fmt.Sprintf("%d/k.json", i), `{"hash":"a","target":{"backend":"cuda","arch":"`+long+`"}}`).put(fmt.Sprintf("%d/k.cubin", i), "")
		},
		"architecture of a backend that is not known": func(tr tree, i int) {
			tr.put(fmt.Sprintf("%d/k.json", i), `{"hash":"a","target":{"backend":"x","arch":"`+long+`"}}`).put(fmt.Sprintf("%d/k.cubin", i), "")
		},
		"backend": func(tr tree, i int) {
			tr.put(fmt.Sprintf("%d/k.json", i), `{"hash":"a","target":{"backend":"`+long+`","arch":90}}`).put(fmt.Sprintf("%d/k.cubin", i), "")
		},
		"features": func(tr tree, i int) {
			tr.put(fmt.Sprintf("%d/k.json", i), `{"hash":"a","target":{"backend":"hip","arch":"gfx942:`+long+`+"}}`).
				put(fmt.Sprintf("%d/k.hsaco", i), "")
		},
		"root": func(tr tree, i int) {
			tr.put(fmt.Sprintf("%d/__grp__k.json", i), fmt.Sprintf(`{"child_paths":{"k":"/%s%d/%d/k"}}`, long, i, i))
		},
		"label of a variable": func(tree, int) {},
	} {
		t.Run(name, func(t *testing.T) {
			tr := tree{}.put("x", "")
			for i := range files {
				file(tr, i)
			}
			var caches [2]Cache
			before := check.Heap()
			opts := Options{Labels: map[string]string{labelRootEnv: envVLLM + "=/a," + strings.Repeat("n", 3<<20)}}
			for i := range caches {
				var err error
				caches[i], err = Inspect(tr.fs(), opts)
				check.Must(t, err)
			}
			clear(opts.Labels)
			if kept := check.Heap() - before; kept > 2<<20 {
				t.Errorf("%d caches keep %d MiB", len(caches), kept>>20)
			}
			runtime.KeepAlive(caches)
			runtime.KeepAlive(tr)
		})
	}
}

// TestReasonsAreShort: an image has as many targets, with names as long, as its producer likes, and each may be why it does not fit.
func TestReasonsAreShort(t *testing.T) {
	tr := tree{}
	deep := strings.Repeat(strings.Repeat("n", 250)+"/", 15)
	for i := range 200 {
		tr.put(fmt.Sprintf("%s%d/k.json", deep, i), fmt.Sprintf(`{"hash":"a","target":{"backend":"x%d","arch":90}}`, i))
		tr.put(fmt.Sprintf("%s%d/k.cubin", deep, i), "")
	}
	cache := inspect(t, tr, Options{})
	for _, d := range []Device{h100(), {Name: "other", Backend: "x0"}} {
		said := 0
		for _, reason := range cache.Fits(d) {
			said += len(reason.Message)
		}
		if said == 0 || said > 8<<10 {
			t.Errorf("%s: the reasons have %d bytes", d, said)
		}
	}
}

// TestInspectRefusesWhatGrows: what a scan keeps, reads or looks up for each file is bounded for all files together.
func TestInspectRefusesWhatGrows(t *testing.T) {
	roots, paths := tree{}, tree{}
	for i := range maxRoots + 1 {
		roots.put(fmt.Sprintf("%d/__grp__k.json", i), fmt.Sprintf(`{"child_paths":{"k":"/r%d/%d/k"}}`, i, i))
	}
	var names strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&names, `"%d":"",`, i)
	}
	group := &fstest.MapFile{Data: []byte(`{"child_paths":{` + names.String() + `"z":""}}`), Mode: 0o644}
	for i := range maxPaths / 100_000 {
		paths[fmt.Sprintf("%d/__grp__k.json", i)] = group
	}
	dense := tree{}.put("a/k.json", `{"hash":"a","debug":[`+strings.Repeat("{},", 1_300_000)+`{}]}`).put("a/k.cubin", "")
	dirs := make([]string, maxFiles+1)
	artifacts := make([]string, maxKept/250)
	for i := range dirs {
		dirs[i] = fmt.Sprint(i)
	}
	for i := range artifacts {
		artifacts[i] = fmt.Sprintf("%s%0240d", vllmArtifact, i)
	}
	for name, test := range map[string]struct {
		fsys fs.FS
		want string
	}{
		"directories of producers": {roots.fs(), "want at most 256"},
		"paths in groups":          {paths.fs(), "more than 400000 paths"},
		"values in a text":         {dense.fs(), "too many values"},
		"directories":              {wideFS{".": dirs}, "more than 200000 files"},
		"names": {
			wideFS{".": {"h"}, "h": {"rank_0_0"}, "h/rank_0_0": {"p"}, "h/rank_0_0/p": artifacts},
			"more than 33554432 bytes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Inspect(test.fsys, Options{})
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want ErrInvalid with %q", err, test.want)
			}
		})
	}
}

// wideFS has the names of directories in each directory.
type wideFS map[string][]string

// Open implements fs.FS.
func (wideFS) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// ReadDir implements fs.ReadDirFS.
func (w wideFS) ReadDir(name string) ([]fs.DirEntry, error) {
	entries := make([]fs.DirEntry, 0, len(w[name]))
	for _, name := range w[name] {
		entries = append(entries, wideDir(name))
	}
	return entries, nil
}

type wideDir string

func (d wideDir) Name() string             { return string(d) }
func (wideDir) IsDir() bool                { return true }
func (wideDir) Type() fs.FileMode          { return fs.ModeDir }
func (wideDir) Info() (fs.FileInfo, error) { return nil, fs.ErrInvalid }

// TestManyDirectories: a directory of vLLM's artifacts is found by its name. To compare it with all others took minutes for one image of
// very many.
func TestManyDirectories(t *testing.T) {
	s := scanner{cache: &Cache{models: map[string]*manifestModel{}}, layouts: map[string]bool{}, binaries: map[[3]string]int{}}
	const directories = 1000
	for i := range directories {
		parts := []string{"torch_compile_cache", "hash", "rank_0_0", strconv.Itoa(i), "artifact_0"}
		s.artifact(parts, 2, "binary")
		s.artifact(parts, 2, "binary")
		if s.binaries[[3]string(parts[1:4])] != i {
			t.Fatalf("directory %d is not found by its name", i)
		}
	}
	binaries := s.cache.models["hash/"+LayoutBinary].Binary
	if len(binaries) != directories || len(s.binaries) != directories || binaries[1].Prefix != "1" || binaries[1].ArtifactCount != 2 {
		t.Errorf("%d directories, of which one is %+v", len(binaries), binaries[1])
	}
}

// TestManyFilesAreRewritten: whether a file is one to rewrite is asked for each. A search from the first one on would compare five thousand
// million names for this cache, which takes minutes, while a node makes others wait.
func TestManyFilesAreRewritten(t *testing.T) {
	const files, most = 100_000, 20
	m := Mount{Source: ".", Target: "/cache", Relocation: &Relocation{}}
	for i := range files {
		m.Relocation.Files = append(m.Relocation.Files, fmt.Sprintf("%064d/__grp__kernel.json", i))
	}
	compared := 0
	counting := func(a, b string) int {
		compared++
		return strings.Compare(a, b)
	}
	for _, name := range m.Relocation.Files {
		if !contains(m.Relocation.Files, name, counting) {
			t.Fatalf("%s is not found", name)
		}
	}
	if compared > most*files {
		t.Errorf("%d names were compared for %d files", compared, files)
	}
	if _, err := m.Rewrite("another/__grp__kernel.json", nil); err == nil || !strings.Contains(err.Error(), "not one that is rewritten") {
		t.Errorf("a file that stays as it is: %v", err)
	}
}
