// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/lazylayer"
	"github.com/fettle-dev/fettle/test/treesum"
)

// image is an image's layers, as a registry has them, and the tars of what they hold.
type image struct {
	TreeSpec
	layers, tars [][]byte
	opened       atomic.Int64
}

func tarOf(t testing.TB, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, name := range names {
		content := bytes.Repeat([]byte{byte(i + 1)}, 1000*i)
		check.Must(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644, Typeflag: tar.TypeReg}))
		_, err := w.Write(content)
		check.Must(t, err)
	}
	check.Must(t, w.Close())
	return b.Bytes()
}

// newImage is of bare tars, a layer each, with a digest made of the seed.
func newImage(seed string, form TreeForm, tars ...[]byte) *image {
	i := &image{layers: slices.Clone(tars), tars: tars, TreeSpec: TreeSpec{
		Digest: DigestOf([]byte("image " + seed)), Room: 1 << 20, Form: form,
		Options: unpack.Options{Paths: []string{"cache/"}}, Labels: map[string]string{"seed": seed}, Origin: "registry.example/by/hand",
	}}
	for _, data := range tars {
		d := Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: DigestOf(data), Size: int64(len(data))}
		i.Layers = append(i.Layers, TreeLayer{Descriptor: d, DiffID: d.Digest})
	}
	return i
}

func smallImage(t testing.TB, seed string, form TreeForm) *image {
	t.Helper()
	return newImage(seed, form, tarOf(t, "cache/a", "cache/d/b", "cache/d/c"), tarOf(t, "cache/d/e/f", "cache/d/b"))
}

func (i *image) open(_ context.Context, layer int) (io.ReadCloser, error) {
	i.opened.Add(1)
	return io.NopCloser(bytes.NewReader(i.layers[layer])), nil
}

func forms(t *testing.T, test func(t *testing.T, form TreeForm)) {
	t.Helper()
	for _, form := range []TreeForm{TreeDirectory, TreeImage} {
		t.Run(string(form), func(t *testing.T) { test(t, form) })
	}
}

// contents is what the trees of images hold, as treesum has it.
type contents map[Digest]map[string]string

func contentsOf(t testing.TB, images ...*image) contents {
	t.Helper()
	all := contents{}
	for _, i := range images {
		var err error
		all[i.Digest], err = treesum.OfTars(i.tars...)
		check.Must(t, err)
	}
	return all
}

// wrongTrees hashes every file of every tree, and lists the trees that are not what their image holds or not what their metadata says.
func wrongTrees(t testing.TB, dir string, want contents) (bad []string, good int) {
	t.Helper()
	s, err := storeAt(dir, StoreConfig{})
	check.Must(t, err)
	defer func() { _ = s.Close() }()
	entries, err := os.ReadDir(filepath.Join(dir, treesDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := s.wrongTree(e.Name(), want); err != nil {
			bad = append(bad, fmt.Sprintf("%s: %v", e.Name(), err))
			continue
		}
		good++
	}
	return bad, good
}

func (s *Store) wrongTree(name string, want contents) error {
	tree, err := s.readTree(treesDir + "/" + name)
	if err != nil {
		return err
	}
	if tree.Digest.Hex() != name || want[tree.Digest] == nil {
		return fmt.Errorf("of the image %s", tree.Digest)
	}
	return s.ReadTree(tree, func(fsys fs.FS) error {
		is, err := treesum.Of(fsys)
		if err != nil {
			return err
		}
		diff := cmp.Diff(want[tree.Digest], is)
		if diff != "" || tree.Entries != len(is) {
			return fmt.Errorf("it is said to have %d entries, and has %d (-want +is):\n%s", tree.Entries, len(is), diff)
		}
		return nil
	})
}

// checkTrees fails unless there are the trees of the images, and no others.
func checkTrees(t testing.TB, s *Store, images ...*image) {
	t.Helper()
	if bad, good := wrongTrees(t, s.dir, contentsOf(t, images...)); len(bad) > 0 || good != len(images) {
		t.Errorf("%d good trees, want %d; wrong: %v", good, len(images), bad)
	}
}

func TestUnpack(t *testing.T) {
	forms(t, func(t *testing.T, form TreeForm) {
		s := newStore(t, StoreConfig{})
		i := smallImage(t, "1", form)
		if _, err := s.OpenTree(i.Digest); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("before: %v", err)
		}
		made, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
		check.Must(t, err)
		again, err := s.again(t).Unpack(t.Context(), i.TreeSpec, i.open)
		check.Must(t, err)
		if diff := cmp.Diff(made.TreeMetadata, again.TreeMetadata); diff != "" || i.opened.Load() != 2 {
			t.Errorf("opened %d layers; %s", i.opened.Load(), diff)
		}
		if made.Entries != 7 || made.Bytes != 3000 || made.Size < made.Bytes || made.Labels["seed"] != "1" ||
			made.Origin != "registry.example/by/hand" || !cmp.Equal(made.DiffIDs, []Digest{i.Layers[0].DiffID, i.Layers[1].DiffID}) {
			t.Errorf("%+v", made.TreeMetadata)
		}
		index, data := made.Image()
		for _, path := range []string{made.Root(), index, data} {
			if _, err := os.Stat(path); path != "" && err != nil || (path == made.Root()) != (form == TreeDirectory) && path != "" {
				t.Errorf("%q: %v", path, err)
			}
		}
		if form == TreeDirectory {
			info, err := os.Stat(made.Root())
			if err != nil || info.Mode() != fs.ModeDir|0o777 {
				t.Errorf("%v %v", info.Mode(), err)
			}
			check.Must(t, filepath.WalkDir(made.Root(), func(path string, d fs.DirEntry, err error) error {
				if err != nil || path == made.Root() {
					return err
				}
				if info, err := d.Info(); err != nil || info.ModTime().Unix() != 0 {
					t.Errorf("%s: %v %v: expected the time 0", path, info.ModTime(), err)
				}
				return nil
			}))
		}
		checkTrees(t, s, i)
		if left, _ := os.ReadDir(s.path(tmpDir)); len(left) > 0 {
			t.Errorf("left in tmp: %v", left)
		}
	})
}

// TestUnpackParts: layers of many gzip members or zstd frames become the tree that their tars are.
func TestUnpackParts(t *testing.T) {
	converters := map[string]func(plain []byte) (lazylayer.Layer, error){
		"eStargz":      func(plain []byte) (lazylayer.Layer, error) { return lazylayer.EStargz(plain, 300, 1) },
		"zstd:chunked": func(plain []byte) (lazylayer.Layer, error) { return lazylayer.ZstdChunked(plain, 300) },
		"gzip members": func(plain []byte) (lazylayer.Layer, error) { return lazylayer.GzipMembers(plain, 300) },
		"zstd frames":  func(plain []byte) (lazylayer.Layer, error) { return lazylayer.ZstdFrames(plain, 300) },
	}
	for name, convert := range converters {
		t.Run(name, func(t *testing.T) {
			forms(t, func(t *testing.T, form TreeForm) {
				i := smallImage(t, name, form)
				for at, plain := range i.tars {
					l, err := convert(plain)
					check.Must(t, err)
					i.layers[at] = l.Data
					d := Descriptor{MediaType: l.MediaType, Digest: DigestOf(l.Data), Size: int64(len(l.Data)), Annotations: l.Annotations}
					i.Layers[at] = TreeLayer{Descriptor: d, DiffID: DigestOf(l.Tar)}
				}
				s := newStore(t, StoreConfig{})
				_, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
				check.Must(t, err)
				checkTrees(t, s, i)
			})
		})
	}
}

func TestUnpackOnce(t *testing.T) {
	s := newStore(t, StoreConfig{})
	i := smallImage(t, "once", TreeDirectory)
	var all sync.WaitGroup
	for n := range 8 {
		from := s
		if n%2 == 0 {
			from = s.again(t)
		}
		all.Go(func() {
			if _, err := from.Unpack(t.Context(), i.TreeSpec, i.open); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if i.opened.Load() != 2 {
		t.Errorf("opened %d layers, want 2", i.opened.Load())
	}
	checkTrees(t, s, i)
}

// TestUnpackRefused: nothing that is wrong gets a name, and what it had reserved is free again.
func TestUnpackRefused(t *testing.T) {
	good := tarOf(t, "cache/a", "cache/b")
	lie := func(edit func(i *image)) *image {
		i := newImage("lie", TreeDirectory, good)
		edit(i)
		return i
	}
	for name, c := range map[string]struct {
		image *image
		kind  error
		words string
	}{
		"hostile":        {newImage("x", TreeDirectory, good, tarOf(t, "cache/../../escaped")), ErrInvalid, `entry "cache/../../escaped"`},
		"hostile, image": {newImage("x", TreeImage, tarOf(t, "cache/a", "../escaped")), ErrInvalid, "names"},
		"outside":        {newImage("x", TreeImage, tarOf(t, "etc/passwd")), ErrInvalid, "cache/"},
		"digest":         {lie(func(i *image) { i.Layers[0].Digest[0] ^= 1 }), ErrMismatch, "digest"},
		"diffID":         {lie(func(i *image) { i.Layers[0].DiffID[0] ^= 1 }), ErrMismatch, "diffID"},
		"too much":       {lie(func(i *image) { i.Room = 2000 }), ErrTooLarge, "size"},
		"no room":        {lie(func(i *image) { i.Room = 0 }), ErrInvalid, "room"},
		"no layers":      {lie(func(i *image) { i.Layers = nil }), ErrInvalid, "0 layers"},
		"no form":        {lie(func(i *image) { i.Form = "" }), ErrInvalid, "Directory"},
		"no diffID":      {lie(func(i *image) { i.Layers[0].DiffID = Digest{} }), ErrInvalid, "layer 1"},
		"above quota":    {lie(func(i *image) { i.Room = 3 << 20 }), ErrTooLarge, "quota"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, StoreConfig{MaxBytes: 2 << 20, Pace: time.Microsecond})
			_, err := s.Unpack(t.Context(), c.image.TreeSpec, c.image.open)
			wantErr(t, err, c.kind, c.words)
			checkTrees(t, s)
			if u, err := s.Usage(); err != nil || u.Partial+u.Bytes > 0 {
				t.Errorf("%+v %v", u, err)
			}
			check.Must(t, s.Sweep(t.Context()))
			for _, dir := range []string{tmpDir, trashDir} {
				if left, _ := os.ReadDir(s.path(dir)); len(left) > 0 {
					t.Errorf("left in %s: %v", dir, left)
				}
			}
		})
	}
}

// TestUnpackReader: what the reader says is passed on, and another try succeeds.
func TestUnpackReader(t *testing.T) {
	s := newStore(t, StoreConfig{})
	i := smallImage(t, "1", TreeImage)
	_, err := s.Unpack(t.Context(), i.TreeSpec, func(context.Context, int) (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(i.layers[0][:700]), broken{})), nil
	})
	wantErr(t, err, ErrUnavailable)
	checkTrees(t, s)
	_, err = s.Unpack(t.Context(), i.TreeSpec, i.open)
	check.Must(t, err)
	checkTrees(t, s, i)
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, fmt.Errorf("the registry is %w", ErrUnavailable) }

// TestOtherCPU: what an image's config says of its CPU, this machine must have. Nothing is fetched of an image for another.
func TestOtherCPU(t *testing.T) {
	s := newStore(t, StoreConfig{})
	for platform, good := range map[string]bool{
		"": true, "/": true, "linux/" + runtime.GOARCH: true, "linux/" + runtime.GOARCH + "/v8": true, "/" + runtime.GOARCH: true,
		"linux/riscv64": false, "linux/riscv64/v1": false, "linux/" + runtime.GOARCH + "x": false, "linux/\x1b": false,
	} {
		i := smallImage(t, "for "+platform, TreeImage)
		for n := range i.Layers {
			i.Layers[n].Platform = platform
		}
		opened := false
		_, err := s.Unpack(t.Context(), i.TreeSpec, func(ctx context.Context, layer int) (io.ReadCloser, error) {
			opened = true
			return i.open(ctx, layer)
		})
		if good {
			check.Must(t, err)
			continue
		}
		wantErr(t, err, ErrInvalid, "for another CPU", "expected "+runtime.GOARCH)
		if opened {
			t.Errorf("%q: a layer was fetched", platform)
		}
	}
}

// TestUnpinnedTreeWasInUse: a tree that a claim held until a moment ago is evicted after one that was last used while the claim ran.
func TestUnpinnedTreeWasInUse(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	s := newStore(t, StoreConfig{Clock: fake})
	var digests []Digest
	for _, seed := range []string{"held", "fetched"} {
		fake.Step(time.Minute)
		i := smallImage(t, seed, TreeDirectory)
		_, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
		check.Must(t, err)
		check.Must(t, s.Pin(t.Context(), i.Digest, "claim-1"))
		digests = append(digests, i.Digest)
	}
	check.Must(t, s.Unpin(t.Context(), digests[1], "claim-1"))
	fake.Step(time.Hour)
	check.Must(t, s.Unpin(t.Context(), digests[0], "claim-1"))
	u, err := s.Usage()
	check.Must(t, err)
	if len(u.Trees) != 2 || u.Trees[0].Digest != digests[1] || !u.Trees[1].LastUsed.Equal(fake.Now()) {
		t.Errorf("in the order of eviction: %+v", u.Trees)
	}
}

// TestTreesAreEvicted with the blobs, least recently used first, and not while they are pinned.
func TestTreesAreEvicted(t *testing.T) {
	h := newHub()
	fake := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	s := newStore(t, StoreConfig{MaxBytes: 120_000, Pace: time.Microsecond, Clock: fake})
	var images []*image
	unpackOne := func(seed string) (Digest, error) {
		fake.Step(time.Minute)
		i := smallImage(t, seed, TreeDirectory)
		i.Room = 50_000
		images = append(images, i)
		_, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
		return i.Digest, err
	}
	here := func(d Digest) bool {
		_, err := os.Stat(s.path(treeName(d)))
		return err == nil
	}
	pinned, err := unpackOne("pinned")
	check.Must(t, err)
	check.Must(t, s.Pin(t.Context(), pinned, "claim-1"))
	oldest, err := unpackOne("oldest")
	check.Must(t, err)
	fake.Step(time.Minute)
	blob := h.pushBlob(blobBytes(1, 20_000))
	check.Must(t, s.Fetch(t.Context(), h, blob))
	u, err := s.Usage()
	check.Must(t, err)
	if len(u.Trees) != 2 || len(u.Blobs) != 1 || u.Bytes != u.Trees[0].Size+u.Trees[1].Size+20_000 || u.Pinned != u.Trees[0].Size {
		t.Errorf("%+v", u)
	}
	third, err := unpackOne("third") // 2 trees of 28 KiB, a blob of 20 kB and 50 kB are more than 120 kB
	check.Must(t, err)
	if !here(pinned) || here(oldest) || !here(third) {
		t.Errorf("pinned %v, oldest %v, third %v", here(pinned), here(oldest), here(third))
	}
	fake.Step(time.Minute)
	_, err = s.OpenTree(third) // used after the blob
	check.Must(t, err)
	large := smallImage(t, "large", TreeDirectory)
	large.Room = 60_000
	fake.Step(time.Minute)
	_, err = s.Unpack(t.Context(), large.TreeSpec, large.open)
	check.Must(t, err)
	if _, err := os.Stat(s.path(blobName(blob.Digest))); err == nil || !here(third) || !here(pinned) {
		t.Errorf("the blob %v, third %v, pinned %v", err, here(third), here(pinned))
	}
	huge := smallImage(t, "huge", TreeDirectory)
	huge.Room = 120_000
	_, err = s.Unpack(t.Context(), huge.TreeSpec, huge.open)
	wantErr(t, err, ErrNoSpace, "pinned")
	check.Must(t, s.Unpin(t.Context(), pinned, "claim-1"))
	_, err = s.Unpack(t.Context(), huge.TreeSpec, huge.open)
	check.Must(t, err)
	if u, err = s.Usage(); err != nil || u.Trash == 0 {
		t.Errorf("%+v %v", u, err)
	}
	sweeper, err := OpenStore(s.dir, StoreConfig{Pace: time.Microsecond}) // whose clock goes on
	check.Must(t, err)
	check.Must(t, errors.Join(sweeper.Sweep(t.Context()), sweeper.Close()))
	if u, err = s.Usage(); err != nil || u.Trash > 0 || len(u.Trees) == 0 {
		t.Errorf("after the sweep: %+v %v", u, err)
	}
	bad, good := wrongTrees(t, s.dir, contentsOf(t, append(images, large, huge)...))
	if len(bad) > 0 || good != len(u.Trees) {
		t.Errorf("%d good trees, want %d; wrong: %v", good, len(u.Trees), bad)
	}
}

// TestTreesInUse: a tree that is mounted is neither evicted, nor deleted where it was evicted before it was mounted.
func TestTreesInUse(t *testing.T) {
	var mounted []Digest
	fake := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	s := newStore(t, StoreConfig{
		MaxBytes: 120_000, Clock: fake, InUse: func(_ *Store, d Digest) bool { return slices.Contains(mounted, d) },
	})
	images := map[string]*image{}
	for _, seed := range []string{"1", "2", "3", "4"} {
		images[seed] = smallImage(t, seed, TreeDirectory)
		images[seed].Room = 50_000
	}
	unpackOne := func(seed string) error {
		fake.Step(time.Minute)
		_, err := s.Unpack(t.Context(), images[seed].TreeSpec, images[seed].open)
		return err
	}
	here := func(seed string) bool {
		_, err := os.Stat(s.path(treeName(images[seed].Digest)))
		return err == nil
	}
	check.Must(t, errors.Join(unpackOne("1"), unpackOne("2")))
	mounted = []Digest{images["1"].Digest}
	check.Must(t, errors.Join(unpackOne("3"), unpackOne("4")))
	if !here("1") || here("2") || !here("4") {
		t.Errorf("1 %v, 2 %v, 4 %v: expected the one that is mounted, and the last", here("1"), here("2"), here("4"))
	}
	mounted = append(mounted, images["3"].Digest, images["4"].Digest)
	wantErr(t, unpackOne("2"), ErrNoSpace, "mounted")

	sweep := func(seed string) (trash int64, files int) { // with a clock that goes on
		mounted = nil
		if seed != "" {
			mounted = append(mounted, images[seed].Digest)
		}
		sweeper := *s
		sweeper.config.Clock, sweeper.config.Pace = clock.RealClock{}, time.Microsecond
		check.Must(t, sweeper.Sweep(t.Context()))
		u, err := s.Usage()
		check.Must(t, err)
		check.Must(t, fs.WalkDir(os.DirFS(s.path(trashDir)), ".", func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				files++
			}
			return err
		}))
		return u.Trash, files
	}
	if trash, files := sweep("2"); trash != 0 || files != 5 {
		t.Errorf("%d bytes of trash can be freed, %d files are there: expected the 5 of the tree that is mounted", trash, files)
	}
	if _, files := sweep(""); files != 0 {
		t.Errorf("%d files are left that nobody uses", files)
	}
}

// TestWrongTrees: the check that these tests make of a tree finds whatever the disk or a person changed.
func TestWrongTrees(t *testing.T) {
	in := func(name string) func(dir string) string {
		return func(dir string) string { return filepath.Join(dir, name) }
	}
	flip := func(path string, at int64) error {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		b := make([]byte, 1)
		_, err = f.ReadAt(b, at)
		_, wrote := f.WriteAt([]byte{b[0] ^ 1}, at)
		return errors.Join(err, wrote, f.Close())
	}
	for name, c := range map[string]struct {
		form TreeForm
		edit func(dir string) error
	}{
		"a bit of a file": {TreeDirectory, func(dir string) error { return flip(in("root/cache/d/c")(dir), 999) }},
		"a file is gone":  {TreeDirectory, func(dir string) error { return os.Remove(in("root/cache/a")(dir)) }},
		"a file more":     {TreeDirectory, func(dir string) error { return os.WriteFile(in("root/cache/new")(dir), nil, 0o600) }},
		"a mode":          {TreeDirectory, func(dir string) error { return os.Chmod(in("root/cache/a")(dir), 0o644) }},
		"a link":          {TreeDirectory, func(dir string) error { return os.Symlink("/etc", in("root/cache/l")(dir)) }},
		"no root":         {TreeDirectory, func(dir string) error { return os.RemoveAll(in("root")(dir)) }},
		"a bit of data":   {TreeImage, func(dir string) error { return flip(in("data")(dir), 4096) }},
		"no data":         {TreeImage, func(dir string) error { return os.Truncate(in("data")(dir), 0) }},
		"no index":        {TreeImage, func(dir string) error { return os.Truncate(in("index.erofs")(dir), 100) }},
		"metadata":        {TreeImage, func(dir string) error { return flip(in("metadata.json")(dir), 5) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, StoreConfig{})
			i := smallImage(t, "1", c.form)
			_, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
			check.Must(t, err)
			checkTrees(t, s, i)
			check.Must(t, c.edit(s.path(treeName(i.Digest))))
			if bad, good := wrongTrees(t, s.dir, contentsOf(t, i)); len(bad) != 1 || good != 0 {
				t.Errorf("%d good trees; wrong: %v", good, bad)
			}
		})
	}
}

// TestTreeWithBadMetadata is made again without being asked to.
func TestTreeWithBadMetadata(t *testing.T) {
	s := newStore(t, StoreConfig{})
	i := smallImage(t, "1", TreeDirectory)
	for _, data := range []string{"", "{", "null", `{"version":1}`, `{"version":2}`, `{"version":3}`, `{"version":2,"version":2}`} {
		_, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
		check.Must(t, err)
		check.Must(t, os.WriteFile(s.path(treeName(i.Digest)+"/metadata.json"), []byte(data), 0o600))
		if _, err := s.OpenTree(i.Digest); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", data, err)
		}
		if _, err := s.Usage(); err != nil {
			t.Error(err)
		}
	}
	_, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
	check.Must(t, err)
	checkTrees(t, s, i)
}

// TestUnreadableTreesCount: trees of another version, as a downgrade leaves them, count for the quota with what they take, and are the
// first to go. Otherwise the store would hold its quota once more beside them.
func TestUnreadableTreesCount(t *testing.T) {
	forms(t, func(t *testing.T, form TreeForm) {
		s := newStore(t, StoreConfig{MaxBytes: 4 << 20})
		add := func(name string) Digest {
			i := imageOf(t, name, form, 1500<<10, 1800<<10)
			_, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
			check.Must(t, err)
			return i.Digest
		}
		used := add("used")
		unread := add("unread")
		before, err := s.Usage()
		check.Must(t, err)
		check.Must(t, os.WriteFile(s.path(treeName(unread)+"/metadata.json"), []byte(`{"version":3}`), 0o600))
		after, err := s.Usage()
		check.Must(t, err)
		if after.Bytes < before.Bytes*9/10 {
			t.Errorf("%d bytes count, and %d with metadata that can be read", after.Bytes, before.Bytes)
		}
		add("next")
		_, err = s.PeekTree(used)
		check.Must(t, err)
		if _, err := os.Stat(s.path(treeName(unread))); err == nil {
			t.Error("the tree that nothing can read is still there")
		}
	})
}

// TestEveryUnpackFails makes each operation fail in every way that a disk has: no wrong tree is there, and the same call succeeds later.
func TestEveryUnpackFails(t *testing.T) {
	forms(t, func(t *testing.T, form TreeForm) {
		run := func(faults func(before int) []fault.Fault) (*Store, *fault.Injector, int, error) {
			s, in := quickStore(t, quota())
			i := smallImage(t, "1", form)
			i.Room = 400_000
			before := in.Log().Changes()
			in.Set(faults(before)...)
			_, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
			return s, in, before, err
		}
		_, in, before, err := run(func(int) []fault.Fault { return nil })
		check.Must(t, err)
		points, cases := in.Log().Changes()-before, 0
		for n := range points {
			for i := range faultsAt(0) {
				s, in, before, err := run(func(before int) []fault.Fault { return faultsAt(before + n + 1)[i : i+1] })
				f := faultsAt(before + n + 1)[i]
				what := fmt.Sprintf("%s of %v at %d", f.Do, f.Errno, n+1)
				full := f.Do == fault.ActFull || f.Do == fault.ActShort || f.Errno == syscall.ENOSPC
				if err != nil && (!IsRetryable(err) || full && !errors.Is(err, ErrNoSpace)) {
					t.Errorf("%s: %v", what, err)
				}
				img := smallImage(t, "1", form)
				img.Room = 400_000
				bad, _ := wrongTrees(t, s.dir, contentsOf(t, img))
				in.Set()
				_, again := s.Unpack(t.Context(), img.TreeSpec, img.open)
				still, good := wrongTrees(t, s.dir, contentsOf(t, img))
				if again != nil || len(bad)+len(still) > 0 || good != 1 {
					t.Errorf("%s: %v after %v; again: %v after %v", what, bad, err, still, again)
				}
				check.Must(t, s.Close())
				cases++
			}
		}
		t.Logf("%d operations, %d cases", points, cases)
		if points < 10 {
			t.Error("too few")
		}
	})
}

// TestUnpackPowerLoss: at whatever operation the process is killed or the power goes, what is believed complete is complete; and after
// Unpack returned, all of it survives. Each sync is needed.
func TestUnpackPowerLoss(t *testing.T) {
	forms(t, func(t *testing.T, form TreeForm) {
		harm := func(t *testing.T, limit int, faults ...fault.Fault) (harmful, states int, log fault.Log) {
			t.Helper()
			s, err := storeAt(filepath.Join(t.TempDir(), "store"), quota())
			check.Must(t, err)
			defer func() { _ = s.Close() }()
			start, err := fault.Snapshot(s.dir)
			check.Must(t, err)
			in := fault.New(faults...)
			in.Quick = true
			check.Must(t, s.through(t, in).layOut())
			i := newImage("1", form, tarOf(t, "cache/a", "cache/d/b"))
			i.Room = 400_000
			_, err = s.Unpack(t.Context(), i.TreeSpec, i.open)
			check.Must(t, err)
			log = in.Log()
			want := contentsOf(t, i)
			for n := 1; n <= log.Changes()+1; n++ {
				all, err := fault.Replay(start, log.Before(n), fault.Options{Limit: limit})
				check.Must(t, err)
				for state := range all {
					states++
					dir := filepath.Join(t.TempDir(), "after")
					check.Must(t, state.Materialise(dir))
					bad, good := wrongTrees(t, dir, want)
					if len(bad) > 0 || n > log.Changes() && good != 1 {
						harmful++
						if len(faults) == 0 {
							t.Errorf("before %d: %d good, wrong: %v; lost: %s", n, good, bad, state.Lost)
						}
					}
					check.Must(t, os.RemoveAll(dir))
				}
			}
			return harmful, states, log
		}
		_, states, log := harm(t, 64)
		t.Logf("%d operations, %d states", log.Changes(), states)
		if states < 20 {
			t.Errorf("%d states\n%s", states, log)
		}
		syncs := 0
		for _, op := range log {
			if !op.Kind.Sync() {
				continue
			}
			syncs++
			// That of the directory for blobs is for TestPowerLoss. One sync of the file system covers those of the directories around it.
			if covered := form == TreeDirectory && strings.HasPrefix(op.String(), fmt.Sprintf("#%d syncdir", op.N)) && syncs <= 3; covered ||
				strings.HasSuffix(op.String(), "/blobs") {
				continue
			}
			if n, _, _ := harm(t, 64, fault.DropSync(syncs)); n == 0 {
				t.Errorf("without this sync nothing is worse: %s", op)
			}
		}
	})
}
