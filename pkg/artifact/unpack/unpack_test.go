// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/check"
)

// look lists a tree as a person would.
func look(t testing.TB, fsys fs.FS) map[string]string {
	t.Helper()
	all := map[string]string{}
	check.Must(t, fs.WalkDir(fsys, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		all[path] = info.Mode().String()
		if info.Mode().IsRegular() {
			data, err := fs.ReadFile(fsys, path)
			if err != nil {
				return err
			}
			all[path] += " " + string(data)
		}
		if at := info.ModTime().Unix(); at != 0 {
			t.Errorf("%s has the time %d", path, at)
		}
		return nil
	}))
	return all
}

// extractBoth extracts with each sink and compares what is there with what is wanted and with the tree that was returned.
func extractBoth(t *testing.T, layers []packed, want map[string]string) {
	t.Helper()
	var trees [][]Entry
	for name, build := range sinks() {
		root := openRoot(t, filepath.Join(t.TempDir(), name))
		s, read := build(t, root)
		summing := sum(s)
		tree, err := Extract(t.Context(), layersOf(layers), opener(layers), summing, Options{Paths: cachePaths})
		check.Must(t, err)
		fsys := read()
		if diff := cmp.Diff(want, look(t, fsys)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		checkTree(t, tree, summing, fsys)
		for i := range tree.Entries {
			tree.Entries[i].At = 0
		}
		trees = append(trees, tree.Entries)
	}
	if diff := cmp.Diff(trees[0], trees[1]); diff != "" {
		t.Errorf("two trees of one image: %s", diff)
	}
}

const (
	dirText  = "drwxrwxrwx"
	fileText = "-rw-rw-rw- "
	execText = "-rwxrwxrwx "
)

func TestExtract(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	large := noise(1, 1_200_000)
	plain := tarOf(t,
		in{name: cacheDir, edit: mode(0o3700)},
		in{name: cacheDir + "a/kernel.cubin", content: "kernel", edit: mode(0o400)},
		in{name: cacheDir + "a/launcher.so", content: "so", edit: mode(0o755)},
		in{name: cacheDir + "a/"},
		in{name: cacheDir + "empty"},
		in{name: cacheDir + "a/große Datei", content: large},
		in{name: cacheDir + "b/" + strings.Repeat("n", 255), content: "long", edit: pax("mtime", "1.5")},
		in{name: tritonDoc, content: "{}"},
	)
	want := map[string]string{
		"io.triton.cache": dirText, "io.triton.cache/a": dirText, "io.triton.cache/b": dirText, "io.triton.manifest": dirText,
		"io.triton.cache/a/kernel.cubin":                fileText + "kernel",
		"io.triton.cache/a/launcher.so":                 execText + "so",
		"io.triton.cache/empty":                         fileText,
		"io.triton.cache/a/große Datei":                 fileText + large,
		"io.triton.cache/b/" + strings.Repeat("n", 255): fileText + "long",
		"io.triton.manifest/manifest.json":              fileText + "{}",
	}
	for _, mediaType := range []string{ociTar, ociGzip, ociZstd} {
		extractBoth(t, []packed{pack(t, mediaType, plain)}, want)
	}
	legacy := pack(t, ociGzip, plain)
	legacy.MediaType = "application/cache.triton.content.layer.v1+triton"
	extractBoth(t, []packed{legacy}, want)
	extractBoth(t, []packed{pack(t, ociGzip, tarOf(t, in{name: cacheDir}))}, map[string]string{"io.triton.cache": dirText})
}

func TestLayers(t *testing.T) {
	f := func(name, content string) in { return in{name: cacheDir + name, content: content} }
	layers := func(ls ...[]in) (out []packed) {
		for i, l := range ls {
			out = append(out, pack(t, []string{ociGzip, ociZstd, ociTar}[i%3], tarOf(t, l...)))
		}
		return out
	}
	for name, c := range map[string]struct {
		layers []packed
		want   string
	}{
		"later wins":               {layers([]in{f("a", "1"), f("b", "1")}, []in{f("a", "2")}), "a=2 b=1"},
		"whiteout":                 {layers([]in{f("a", "1"), f("b", "1")}, []in{f(".wh.a", "")}), "b=1"},
		"whiteout of nothing here": {layers([]in{f("a", "1")}, []in{f(".wh.z", "")}), "a=1"},
		"whiteout of a directory":  {layers([]in{f("d/x/y", "1"), f("d/z", "1"), f("e", "1")}, []in{f(".wh.d", "")}), "e=1"},
		"whiteout, then the same name": {
			layers([]in{f("a", "1")}, []in{f(".wh.a", ""), f("a", "2")}), "a=2",
		},
		"the same name, then its whiteout": {
			layers([]in{f("a", "1")}, []in{f("a", "2"), f(".wh.a", "")}), "a=2",
		},
		"whiteout of a directory that is made anew": {
			layers([]in{f("d/x", "1"), f("d/y", "1")}, []in{f("d/y", "2"), f(".wh.d", "")}), "d d/y=2",
		},
		"opaque": {layers([]in{f("d/x", "1"), f("d/e/y", "1"), f("z", "1")}, []in{f("d/"+opaqueWhiteout, ""), f("d/new", "2")}), "d d/new=2 z=1"},
		"opaque directory without anything new": {
			layers([]in{f("d/x", "1"), f("z", "1")}, []in{f("d/"+opaqueWhiteout, "")}), "d z=1",
		},
		"file over a directory":   {layers([]in{f("d/x", "1"), f("d/e/y", "1")}, []in{f("d", "2")}), "d=2"},
		"directory over a file":   {layers([]in{f("d", "1")}, []in{f("d/x", "2")}), "d d/x=2"},
		"directory in both":       {layers([]in{f("d/", ""), f("d/x", "1")}, []in{f("d/", ""), f("d/y", "2")}), "d d/x=1 d/y=2"},
		"hidden and back":         {layers([]in{f("a", "1")}, []in{f(".wh.a", "")}, []in{f("a", "3")}), "a=3"},
		"hidden two layers later": {layers([]in{f("a", "1")}, []in{f("b", "2")}, []in{f(".wh.a", "")}), "b=2"},
	} {
		t.Run(name, func(t *testing.T) {
			want := map[string]string{"io.triton.cache": dirText}
			for w := range strings.FieldsSeq(c.want) {
				path, content, isFile := strings.Cut(w, "=")
				want[cacheDir+path] = dirText
				if isFile {
					want[cacheDir+path] = fileText + content
				}
			}
			extractBoth(t, c.layers, want)
		})
	}
}

func noise(seed, size int) string {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(data)
	return string(data)
}

// TestMountImage: the kernel reads from an image what was written, and refuses to write.
func TestMountImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	entries := []in{{name: cacheDir + "empty"}, {name: cacheDir + "so", content: "so", edit: mode(0o755)}}
	for i := range 300 {
		entries = append(entries, in{name: fmt.Sprintf("%sd%d/kernel-%03d", cacheDir, i%7, i), content: noise(i, i*150)})
	}
	layers := []packed{pack(t, ociZstd, tarOf(t, entries...)), pack(t, ociGzip, tarOf(t, entries[1], in{name: cacheDir + ".wh.d3"}))}
	root := openRoot(t, filepath.Join(t.TempDir(), "image"))
	build := sinks()["image"]
	s, read := build(t, root)
	written := sum(s)
	tree, err := Extract(t.Context(), layersOf(layers), opener(layers), written, Options{})
	check.Must(t, err)
	at := t.TempDir()
	err = unix.Mount(filepath.Join(root.Name(), ImageIndex), at, "erofs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV,
		"device="+filepath.Join(root.Name(), ImageData))
	if errors.Is(err, unix.ENOTBLK) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EPERM) {
		t.Skipf("this kernel does not mount EROFS from a file, or not here: %v", err)
	}
	check.Must(t, err)
	defer func() { check.Must(t, unix.Unmount(at, 0)) }()
	checkTree(t, tree, written, os.DirFS(at))
	if diff := cmp.Diff(look(t, read()), look(t, os.DirFS(at))); diff != "" {
		t.Error(diff)
	}
	if err := os.WriteFile(filepath.Join(at, cacheDir, "new"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write: %v", err)
	}
	var st unix.Stat_t
	check.Must(t, unix.Stat(filepath.Join(at, cacheDir, "so"), &st))
	if st.Uid != 0 || st.Gid != 0 || st.Nlink != 1 {
		t.Errorf("owner %d:%d, %d links", st.Uid, st.Gid, st.Nlink)
	}
	t.Logf("%d entries mounted", len(tree.Entries))
}

// TestHugeCache: what an autotuner leaves, some hundred variants of one kernel that differ in a few numbers, is far from a bomb,
// at any point and with the compressor that makes the most of it.
func TestHugeCache(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(name string, content []byte) {
		check.Must(t, w.WriteHeader(&tar.Header{Name: cacheDir + name, Size: int64(len(content)), Mode: 0o644, Typeflag: tar.TypeReg}))
		_, err := w.Write(content)
		check.Must(t, err)
	}
	add("padded.cubin", make([]byte, 12<<20)) // the worst begin
	source := bytes.Repeat([]byte("  %a = tt.load %p, %mask : tensor<128x64x!tt.ptr<f16>> loc(#loc17)\n"), 600)
	for i := range 300 {
		sum := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		dir, variant := fmt.Sprintf("%X/", sum), bytes.Clone(source)
		for at := range 20 {
			copy(variant[at*2000:], fmt.Sprintf("%d", sum[at]))
		}
		for _, kind := range []string{"source", "ttir"} {
			add(dir+"kernel."+kind, source)
		}
		for _, kind := range []string{"ttgir", "llir", "ptx"} {
			add(dir+"kernel."+kind, variant)
		}
		code := make([]byte, 64<<10) // most of a small kernel's file is headers, symbols and padding
		for at := range 3 << 10 {
			code[8*at] = sum[at%32] ^ byte(at*i)
		}
		add(dir+"kernel.cubin", code)
		add(dir+"kernel.json", []byte(fmt.Sprintf(`{"hash":"%x","num_warps":%d,"shared":%d}`, sum, 1<<(i%4), i*1024)))
	}
	check.Must(t, w.Close())
	for _, mediaType := range []string{ociGzip, ociZstd} {
		layer := pack(t, mediaType, b.Bytes())
		sink, _ := sinks()["image"](t, openRoot(t, filepath.Join(t.TempDir(), "tmp")))
		_, err := Extract(t.Context(), layersOf([]packed{layer}), opener([]packed{layer}), sink, Options{Paths: cachePaths})
		check.Must(t, err)
		t.Logf("%s: %d bytes of %d, %d times", mediaType, layer.Size, b.Len(), int64(b.Len())/layer.Size)
	}
}
