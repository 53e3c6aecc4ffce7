// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/layout"
	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/lazylayer"
)

const home = "/opt/app-root/src/.triton/cache"

// tritonCache has so many kernels, each with a group that names its place.
func tritonCache(kernels int) fstest.MapFS {
	tree := fstest.MapFS{}
	put := func(name, text string) { tree[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o600} }
	for i := range kernels {
		dir := fmt.Sprintf("KEY%04d", i)
		put(dir+"/add.cubin", strings.Repeat("\x7fELF", 100+i))
		put(dir+"/add.json", `{"hash":"x","target":{"backend":"cuda","arch":90,"warp_size":32},"num_warps":4,"name":"add"}`)
		at := home + "/" + dir
		put(dir+"/__grp__add.json", fmt.Sprintf(`{"child_paths":{"add.json":"%[1]s/add.json","add.cubin":"%[1]s/add.cubin"}}`, at))
	}
	tree["KEY0000/launcher.so"] = &fstest.MapFile{Data: []byte("\x7fELF"), Mode: 0o755}
	return tree
}

// packed is an image in memory.
type packedImage struct {
	*Packed
	layer []byte
	cache kernelcache.Cache
}

func (p *packedImage) Open(_ context.Context, d artifact.Descriptor) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(p.layer[:d.Size])), nil
}

func pack(t testing.TB, fsys fs.FS, o Options) *packedImage {
	t.Helper()
	cache, err := kernelcache.Inspect(fsys, kernelcache.Options{})
	check.Must(t, err)
	described, err := cache.Describe()
	check.Must(t, err)
	var layer bytes.Buffer
	p, err := Pack(fsys, &cache, described, &layer, o)
	check.Must(t, err)
	return &packedImage{p, layer.Bytes(), cache}
}

// TestPack: the same files give the same bytes, whoever has them where, and read back the same with every compression.
func TestPack(t *testing.T) {
	tree := tritonCache(3)
	dir := t.TempDir()
	check.Must(t, os.CopyFS(dir, tree))
	check.Must(t, os.Chtimes(filepath.Join(dir, "KEY0000/add.json"), time.Unix(1e9, 0), time.Unix(1e9, 0)))
	check.Must(t, os.Chmod(filepath.Join(dir, "KEY0001/add.json"), 0o640))
	for _, c := range append(Compressions(), "") {
		one, two := pack(t, tree, Options{Compression: c}), pack(t, os.DirFS(dir), Options{Compression: c})
		if one.Image.Digest != two.Image.Digest || !bytes.Equal(one.layer, two.layer) {
			t.Errorf("%s: two digests of the same files: %s and %s", c, one.Image.Digest, two.Image.Digest)
		}
		read, err := artifact.ReadImage(t.Context(), source{one}, artifact.Descriptor{Digest: one.Image.Digest}, "linux/amd64")
		check.Must(t, err)
		if diff := cmp.Diff(&one.Image, read); diff != "" {
			t.Errorf("%s: (-made +read):\n%s", c, diff)
		}
		check.Must(t, Check(t.Context(), one, read))
		cache, err := Inspect(t.Context(), one, read, unpack.Limits{})
		check.Must(t, err)
		same := cmpopts.IgnoreFields(kernelcache.Cache{}, "Dir", "Labels", "Notes", "Targets")
		if diff := cmp.Diff(one.cache, cache, same, cmpopts.IgnoreUnexported(kernelcache.Cache{})); diff != "" {
			t.Errorf("%s: (-was +is):\n%s", c, diff)
		}
	}
	if other := pack(t, tree, Options{Platform: "linux/arm64"}); other.Image.Digest == pack(t, tree, Options{}).Image.Digest {
		t.Error("an image for another platform has the same digest")
	}
}

// source reads what was packed as from a registry.
type source struct{ *packedImage }

func (s source) Manifest(context.Context, artifact.Descriptor) (*artifact.Manifest, error) {
	return s.Packed.Manifest, nil
}

func (s source) ReadBlob(context.Context, artifact.Descriptor) ([]byte, error) { return s.Config, nil }

// TestMCV: the image is what MCV's readers take: one gzip layer, OCI media types, directories and labels of its format.
func TestMCV(t *testing.T) {
	p := pack(t, tritonCache(2), Options{})
	want := map[string]string{
		"cache.triton.image/entry-count": "2", "cache.triton.image/cache-size-bytes": fmt.Sprint(p.cache.Bytes),
		"cache.triton.image/summary": `{"targets":[{"backend":"cuda","arch":"90","warp_size":32}]}`,
	}
	if diff := cmp.Diff(want, p.Image.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if m := p.Manifest; m.MediaType != manifestType || len(m.Layers) != 1 || m.Layers[0].MediaType != layerType+"+gzip" {
		t.Errorf("got %s", m.Raw)
	}
	plain := pack(t, tritonCache(2), Options{Compression: None})
	var names []string
	r := tar.NewReader(bytes.NewReader(plain.layer))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		check.Must(t, err)
		names = append(names, fmt.Sprintf("%s %o %d:%d %d", h.Name, h.Mode, h.Uid, h.Gid, h.ModTime.Unix()))
	}
	wantNames := []string{
		"io.triton.cache/ 755 0:0 0", "io.triton.cache/KEY0000/ 755 0:0 0", "io.triton.cache/KEY0000/__grp__add.json 644 0:0 0",
		"io.triton.cache/KEY0000/add.cubin 644 0:0 0", "io.triton.cache/KEY0000/add.json 644 0:0 0",
		"io.triton.cache/KEY0000/launcher.so 755 0:0 0", "io.triton.cache/KEY0001/ 755 0:0 0",
		"io.triton.cache/KEY0001/__grp__add.json 644 0:0 0", "io.triton.cache/KEY0001/add.cubin 644 0:0 0",
		"io.triton.cache/KEY0001/add.json 644 0:0 0", "io.triton.manifest/ 755 0:0 0", "io.triton.manifest/manifest.json 644 0:0 0",
	}
	if diff := cmp.Diff(wantNames, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPackRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(fstest.MapFS)
		options Options
		want    string
	}{
		"a whiteout":  {func(m fstest.MapFS) { m["KEY0000/.wh.x"] = &fstest.MapFile{} }, Options{}, `.wh.x": no layer can have this name`},
		"grown":       {func(m fstest.MapFS) { m["KEY0000/add.cubin"].Data = []byte("more") }, Options{}, "the cache changed while it was read"},
		"another":     {func(m fstest.MapFS) { m["KEY0000/new"] = &fstest.MapFile{} }, Options{}, "7 files with"},
		"compression": {func(fstest.MapFS) {}, Options{Compression: "xz"}, "want one of [gzip zstd none]"},
		"platform":    {func(fstest.MapFS) {}, Options{Platform: "arm64"}, "want OS/ARCHITECTURE"},
	} {
		tree := tritonCache(2)
		delete(tree, "KEY0001/add.json")
		cache, err := kernelcache.Inspect(tree, kernelcache.Options{})
		check.Must(t, err)
		described, err := cache.Describe()
		check.Must(t, err)
		test.change(tree)
		if _, err := Pack(tree, &cache, described, io.Discard, test.options); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// contents lists a directory: names with modes and content.
func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	check.Must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		relative, _ := filepath.Rel(dir, name)
		all[relative] = info.Mode().String()
		if d.Type().IsRegular() {
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			all[relative] += " " + string(data)
		}
		return nil
	}))
	return all
}

// wantTree is what a tree is when it was extracted.
func wantTree(tree fstest.MapFS) map[string]string {
	all := map[string]string{}
	for name, file := range tree {
		mode := "-rw-r--r--"
		if file.Mode&0o111 != 0 {
			mode = "-rwxr-xr-x"
		}
		all[name] = mode + " " + string(file.Data)
		for dir := filepath.Dir(name); dir != "."; dir = filepath.Dir(dir) {
			all[dir] = "drwxr-xr-x"
		}
	}
	return all
}

// TestExtract: what was packed comes back, for everybody to read whatever the umask is, and DIR is the cache.
func TestExtract(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	tree := tritonCache(3)
	p := pack(t, tree, Options{Compression: Zstd})
	parent := t.TempDir()
	for _, name := range []string{"new", "empty"} {
		dir := filepath.Join(parent, name)
		if name == "empty" {
			check.Must(t, os.Mkdir(dir, 0o700))
		}
		done, err := (&Extraction{Source: p, Image: &p.Image}).Extract(t.Context(), dir+"/")
		check.Must(t, err)
		if diff := cmp.Diff(wantTree(tree), contents(t, dir)); diff != "" || done.Cache.Files != p.cache.Files {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: got %v (%v), want mode 0755", name, info.Mode(), err)
		}
	}
	_, err := (&Extraction{Source: p, Image: &p.Image}).Extract(t.Context(), filepath.Join(parent, "new"))
	check.WantErr(t, err, nil, `holds "KEY0000": want an empty directory or none`)
	if entries, err := os.ReadDir(parent); err != nil || len(entries) != 2 {
		t.Errorf("there is %v (%v), want nothing else", entries, err)
	}
}

// TestLazyLayers: an image that was converted for lazy pulling is the same cache, for whoever looks at it and whoever extracts it.
func TestLazyLayers(t *testing.T) {
	tree := tritonCache(3)
	p := pack(t, tree, Options{Compression: None})
	for name, convert := range map[string]func(plain []byte) (lazylayer.Layer, error){
		"eStargz":      func(plain []byte) (lazylayer.Layer, error) { return lazylayer.EStargz(plain, 1000, 2) },
		"zstd:chunked": func(plain []byte) (lazylayer.Layer, error) { return lazylayer.ZstdChunked(plain, 1000) },
		"gzip members": func(plain []byte) (lazylayer.Layer, error) { return lazylayer.GzipMembers(plain, 1000) },
		"zstd frames":  func(plain []byte) (lazylayer.Layer, error) { return lazylayer.ZstdFrames(plain, 1000) },
	} {
		l, err := convert(p.layer)
		check.Must(t, err)
		d := artifact.Descriptor{MediaType: l.MediaType, Digest: artifact.DigestOf(l.Data), Size: int64(len(l.Data))}
		converted := &packedImage{p.Packed, l.Data, p.cache}
		image := artifact.Image{
			Digest: p.Image.Digest, Labels: p.Image.Labels, Layers: []artifact.TreeLayer{{Descriptor: d, DiffID: artifact.DigestOf(l.Tar)}},
		}
		check.Must(t, Check(t.Context(), converted, &image))
		was, err := Inspect(t.Context(), p, &p.Image, unpack.Limits{})
		check.Must(t, err)
		is, err := Inspect(t.Context(), converted, &image, unpack.Limits{})
		check.Must(t, err)
		if diff := cmp.Diff(was, is, cmpopts.IgnoreUnexported(kernelcache.Cache{})); diff != "" {
			t.Errorf("%s: (-was +is):\n%s", name, diff)
		}
		dir := filepath.Join(t.TempDir(), "out")
		_, err = (&Extraction{Source: converted, Image: &image}).Extract(t.Context(), dir)
		check.Must(t, err)
		if diff := cmp.Diff(wantTree(tree), contents(t, dir)); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
	}
}

// TestMountPath: at another place the groups name that place, and nothing else changes.
func TestMountPath(t *testing.T) {
	tree := tritonCache(2)
	p := pack(t, tree, Options{})
	dir := filepath.Join(t.TempDir(), "out")
	done, err := (&Extraction{Source: p, Image: &p.Image, MountPath: "/cache"}).Extract(t.Context(), dir)
	check.Must(t, err)
	group, err := os.ReadFile(filepath.Join(dir, "KEY0001/__grp__add.json"))
	check.Must(t, err)
	if want := `"add.cubin":"/cache/KEY0001/add.cubin"`; done.Rewritten != 2 || !strings.Contains(string(group), want) {
		t.Errorf("%d files rewritten, one of them %s: want 2, and %s in it", done.Rewritten, group, want)
	}
	cache, err := kernelcache.Inspect(os.DirFS(dir), kernelcache.Options{})
	check.Must(t, err)
	if len(cache.Roots) != 1 || cache.Roots[0].Path != "/cache" {
		t.Errorf("got roots %+v, want /cache", cache.Roots)
	}
}

// TestMountPathOfParts: a part for which a label has a path of its own names that path, as for a claim.
func TestMountPathOfParts(t *testing.T) {
	tree := fstest.MapFS{}
	for name, file := range tritonCache(2) {
		tree["part/"+name] = file
	}
	p := pack(t, tree, Options{})
	p.Image.Labels["io.kserve.km/cache-mounts"] = `[{"subPath":"part","absPath":"/parts/triton"}]`
	dir := filepath.Join(t.TempDir(), "out")
	done, err := (&Extraction{Source: p, Image: &p.Image, MountPath: "/cache"}).Extract(t.Context(), dir)
	check.Must(t, err)
	group, err := os.ReadFile(filepath.Join(dir, "part/KEY0001/__grp__add.json"))
	check.Must(t, err)
	if want := `"add.cubin":"/parts/triton/KEY0001/add.cubin"`; done.Rewritten != 2 || !strings.Contains(string(group), want) {
		t.Errorf("%d files rewritten, one of them %s: want 2, and %s in it", done.Rewritten, group, want)
	}
}

// TestInto fills, does nothing the second time, and replaces what an earlier image put there and nothing else.
func TestInto(t *testing.T) {
	old, tree := pack(t, tritonCache(4), Options{}), tritonCache(2)
	p := pack(t, tree, Options{})
	dir := t.TempDir()
	check.Must(t, os.MkdirAll(filepath.Join(dir, "lost+found"), 0o700))
	check.Must(t, os.MkdirAll(filepath.Join(dir, staging+"LEFT/x"), 0o700))
	for _, name := range []string{disk.TemporaryPrefix + Marker + "-1", Marker + ".LEFT"} { // the second is one of an older version
		check.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	into := func(p *packedImage) *Extracted {
		t.Helper()
		done, err := (&Extraction{Source: p, Image: &p.Image}).Into(t.Context(), dir, p.Image.Digest)
		check.Must(t, err)
		return done
	}
	into(old)
	if done := into(p); done.Present {
		t.Error("another digest is taken for what is there")
	}
	want := wantTree(tree)
	want["lost+found"] = "drwx------"
	want[Marker] = "-rw-r--r-- " + p.Image.Digest.String() + "\n"
	want[ours] = `-rw-r--r-- ["KEY0000","KEY0001"]` + "\n"
	if diff := cmp.Diff(want, contents(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	done, err := (&Extraction{Image: &p.Image}).Into(t.Context(), dir, p.Image.Digest) // without a source
	if err != nil || !done.Present {
		t.Errorf("got %+v (%v), want it to be there", done, err)
	}
	if there, err := Present(dir, p.Image.Digest, "/elsewhere"); err != nil || there {
		t.Errorf("what is for the producer's place is taken for what is for another (%v)", err)
	}
	check.Must(t, os.Mkdir(filepath.Join(dir, "KEY0003"), 0o700)) // by somebody else
	_, err = (&Extraction{Source: old, Image: &old.Image}).Into(t.Context(), dir, old.Image.Digest)
	check.WantErr(t, err, nil, `has "KEY0003", which no extraction put there`)
	delete(want, "KEY0003")
	got := contents(t, dir)
	delete(got, "KEY0003")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after a refusal (-want +got):\n%s", diff)
	}
}

// broken ends in the middle of a layer.
type broken struct{ *packedImage }

var errBroken = errors.New("broken off")

func (b broken) Open(context.Context, artifact.Descriptor) (io.ReadCloser, error) {
	half := bytes.NewReader(b.layer[:len(b.layer)/2])
	return io.NopCloser(io.MultiReader(half, &failing{})), nil
}

type failing struct{}

func (*failing) Read([]byte) (int, error) { return 0, errBroken }

// TestIntoBroken: what breaks off leaves no marker and nothing of the cache, and what was there stays.
func TestIntoBroken(t *testing.T) {
	p := pack(t, tritonCache(50), Options{Compression: None})
	dir := t.TempDir()
	if _, err := (&Extraction{Source: broken{p}, Image: &p.Image}).Into(t.Context(), dir, p.Image.Digest); !errors.Is(err, errBroken) {
		t.Fatalf("got %v, want %v", err, errBroken)
	}
	if diff := cmp.Diff(map[string]string{}, contents(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := (&Extraction{Source: broken{p}, Image: &p.Image}).Extract(t.Context(), filepath.Join(dir, "x")); !errors.Is(err, errBroken) {
		t.Fatalf("got %v, want %v", err, errBroken)
	}
	if diff := cmp.Diff(map[string]string{}, contents(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestIntoHalfway breaks off at each rename of one image into the place of another: there is no marker then, and the next run completes.
func TestIntoHalfway(t *testing.T) {
	old, tree := pack(t, tritonCache(3), Options{}), tritonCache(2)
	p := pack(t, tree, Options{})
	for at := range 5 {
		dir, n := t.TempDir(), 0
		_, err := (&Extraction{Source: old, Image: &old.Image}).Into(t.Context(), dir, old.Image.Digest)
		check.Must(t, err)
		breaks := func(root *os.Root, from, to string) error {
			if n++; n > at {
				return errBroken
			}
			return root.Rename(from, to)
		}
		e := &Extraction{Source: p, Image: &p.Image, rename: breaks}
		if _, err := e.Into(t.Context(), dir, p.Image.Digest); !errors.Is(err, errBroken) {
			t.Fatalf("at rename %d: got %v, want %v", at, err, errBroken)
		}
		if data, err := os.ReadFile(filepath.Join(dir, Marker)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("at rename %d there is the marker %q (%v)", at, data, err)
		}
		e.rename = nil
		if _, err := e.Into(t.Context(), dir, p.Image.Digest); err != nil {
			t.Fatal(err)
		}
		wantComplete(t, dir, tree)
	}
}

// What a child of TestIntoKilled is told.
var (
	childLayout = flag.String("child-layout", "", "layout that the child extracts")
	childTag    = flag.String("child-tag", "", "tag in the layout")
	childDir    = flag.String("child-dir", "", "directory that the child fills")
)

// TestIntoChild is the process that is killed.
func TestIntoChild(t *testing.T) {
	if *childDir == "" {
		t.Skip("for TestIntoKilled")
	}
	check.Must(t, fill(t.Context(), *childLayout, *childTag, *childDir))
}

func fill(ctx context.Context, from, tag, dir string) error {
	src := layout.At(from).Source(tag, artifact.Digest{}, artifact.Reference{})
	d, err := src.Resolve(ctx)
	if err != nil {
		return err
	}
	image, err := artifact.ReadImage(ctx, src, d, "linux/amd64")
	if err != nil {
		return err
	}
	_, err = (&Extraction{Source: src, Image: image}).Into(ctx, dir, d.Digest)
	return err
}

// TestIntoKilled kills extractions of two images in turn into one directory, and wants a marker only beside all of its image.
func TestIntoKilled(t *testing.T) {
	l := layout.At(filepath.Join(t.TempDir(), "layout"))
	check.Must(t, l.Create())
	trees := map[string]fstest.MapFS{"a": tritonCache(40), "b": tritonCache(20)}
	digests := map[string]string{}
	for tag, tree := range trees {
		p := pack(t, tree, Options{})
		open := func(ctx context.Context) (io.ReadCloser, error) { return p.Open(ctx, p.Manifest.Layers[0]) }
		check.Must(t, p.Push(t.Context(), l, tag, open))
		digests[p.Image.Digest.String()] = tag
	}
	dir, killed, marked := t.TempDir(), 0, 0
	start := func(tag string) *exec.Cmd {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestIntoChild$",
			"-child-layout="+l.Dir(), "-child-tag="+tag, "-child-dir="+dir)
		check.Must(t, child.Start())
		return child
	}
	began := time.Now()
	check.Must(t, start("b").Wait())
	whole := time.Since(began)
	for i := range 12 {
		child := start([]string{"a", "b"}[i%2])
		timer := time.AfterFunc(whole*time.Duration(i)/10, func() { _ = child.Process.Kill() })
		if child.Wait() != nil {
			killed++
		}
		timer.Stop()
		mark, err := os.ReadFile(filepath.Join(dir, Marker))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		check.Must(t, err)
		marked++
		wantComplete(t, dir, trees[digests[strings.TrimSpace(string(mark))]])
	}
	check.Must(t, fill(t.Context(), l.Dir(), "a", dir))
	wantComplete(t, dir, trees["a"])
	t.Logf("%d of 12 killed, %d left a marker", killed, marked)
}

// wantComplete compares all but this program's own files.
func wantComplete(t *testing.T, dir string, tree fstest.MapFS) {
	t.Helper()
	got := contents(t, dir)
	maps.DeleteFunc(got, func(name, _ string) bool { return strings.HasPrefix(name, ".fettle-") })
	if diff := cmp.Diff(wantTree(tree), got); diff != "" {
		t.Fatalf("a marker is there, but (-want +got):\n%s", diff)
	}
}

// TestHostile: what no image may have leaves nothing, and the message says what it is.
func TestHostile(t *testing.T) {
	file := func(name, content string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content)), Linkname: content}
	}
	for name, test := range map[string]struct {
		headers []tar.Header
		want    string
	}{
		"traversal":    {[]tar.Header{file("io.triton.cache/../../x", "x")}, `part ".."`},
		"absolute":     {[]tar.Header{file("/etc/x", "x")}, "absolute"},
		"elsewhere":    {[]tar.Header{file("etc/x", "x")}, "not part of a kernel cache"},
		"link":         {[]tar.Header{{Name: "io.triton.cache/l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}}, `a symbolic link to "/etc"`},
		"hard link":    {[]tar.Header{{Name: "io.triton.cache/l", Typeflag: tar.TypeLink, Linkname: "x"}}, "a hard link"},
		"device":       {[]tar.Header{{Name: "io.triton.cache/d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}, "a device"},
		"setuid":       {[]tar.Header{{Name: "io.triton.cache/s", Typeflag: tar.TypeReg, Mode: 0o4755}}, "setuid"},
		"our own name": {[]tar.Header{file("io.fettle.cache/.fettle-digest", "x")}, "a name of this program's own"},
		"two caches":   {[]tar.Header{file("io.fettle.cache/a", "x"), file("io.triton.cache/a", "x")}, "want one cache an image"},
		"no cache":     {[]tar.Header{file("io.triton.manifest/manifest.json", "{}")}, "there is no cache in it"},
	} {
		t.Run(name, func(t *testing.T) {
			var layer bytes.Buffer
			w := tar.NewWriter(&layer)
			for _, h := range test.headers {
				content := h.Linkname
				if h.Typeflag == tar.TypeReg {
					h.Linkname = ""
				}
				check.Must(t, w.WriteHeader(&h))
				_, err := io.WriteString(w, content[:h.Size])
				check.Must(t, err)
			}
			check.Must(t, w.Close())
			d := artifact.Digest(sha256.Sum256(layer.Bytes()))
			image := &artifact.Image{Digest: d, Layers: []artifact.TreeLayer{{
				Descriptor: artifact.Descriptor{MediaType: layerType, Digest: d, Size: int64(layer.Len())}, DiffID: d,
			}}}
			e := &Extraction{Source: &packedImage{layer: layer.Bytes()}, Image: image}
			dir := t.TempDir()
			_, err := e.Into(t.Context(), dir, d)
			check.WantErr(t, err, nil, test.want)
			if left := slices.Collect(maps.Keys(contents(t, dir))); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// TestNotWritable wants an error to tell whose the directory is: a pod's init container may have given a volume away.
func TestNotWritable(t *testing.T) {
	dir := t.TempDir()
	if os.Geteuid() == 0 {
		check.Must(t, os.Chown(dir, 1000, 1001))
	}
	check.Must(t, os.Chmod(dir, 0o575))
	root, err := os.OpenRoot(dir)
	check.Must(t, err)
	defer root.Close()
	info, err := root.Stat(".")
	check.Must(t, err)
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatal("no owner")
	}
	got := notWritable(root, fmt.Errorf("make a file: %w", fs.ErrPermission))
	want := fmt.Sprintf("make a file: permission denied: this is user %d, and %s belongs to %d:%d with mode 0575: let this user write there; "+
		"if it is a volume, delete its PersistentVolumeClaim, and have no pod change the owner", os.Geteuid(), dir, owner.Uid, owner.Gid)
	if got.Error() != want || !errors.Is(got, fs.ErrPermission) {
		t.Errorf("got  %v\nwant %s", got, want)
	}
}
