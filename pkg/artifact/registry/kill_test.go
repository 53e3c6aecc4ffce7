// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/seed"
	"github.com/fettle-dev/fettle/test/treesum"
)

// pulling has the parameters of a child that pulls images.
type pulling struct {
	Dir, Host string
	Images    int
	Seed      uint64
}

// imageTar is the tar of the n-th image, a small cache of kernels.
func imageTar(t testing.TB, n int) []byte {
	t.Helper()
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for i := range 24 {
		name, content := fmt.Sprintf("cache/%d/%d/kernel", n, i), blobBytes(uint64(1000*n+i), (i*7919+n*104729)%20_000)
		check.Must(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644, Typeflag: tar.TypeReg}))
		_, err := w.Write(content)
		check.Must(t, err)
	}
	check.Must(t, w.Close())
	return plain.Bytes()
}

// contents has the files of the trees of images, in the form of treesum.
type contents map[artifact.Digest]map[string]string

// wrongTrees hashes every file of every tree. It lists the trees that differ from their images, and counts the others.
func wrongTrees(t testing.TB, dir string, want contents) (bad []string, good int) {
	t.Helper()
	s := openStore(t, dir, artifact.StoreConfig{})
	defer func() { check.Must(t, s.Close()) }()
	entries, err := os.ReadDir(s.path("trees/sha256"))
	check.Must(t, err)
	for _, e := range entries {
		d, err := artifact.ParseDigest("sha256:" + e.Name())
		check.Must(t, err)
		if _, err := s.PeekTree(d); err != nil {
			bad = append(bad, err.Error())
			continue
		}
		if diff := cmp.Diff(want[d], treeOf(t, s, d)); diff != "" {
			bad = append(bad, fmt.Sprintf("%s (-image +is):\n%s", d, diff))
			continue
		}
		good++
	}
	return bad, good
}

// pushImage pushes the n-th image and adds what it holds.
func (h *hub) pushImage(t testing.TB, n int, to contents) {
	t.Helper()
	plain := imageTar(t, n)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write(plain)
	check.Must(t, errors.Join(err, z.Close()))
	layer := h.pushBlob(t, packed.Bytes())
	layer.MediaType = "application/vnd.oci.image.layer.v1.tar+gzip"
	config, err := json.Marshal(map[string]any{
		"rootfs": map[string]any{"diff_ids": []any{artifact.DigestOf(plain)}},
		"config": map[string]any{"Labels": map[string]string{"n": fmt.Sprint(n)}},
	})
	check.Must(t, err)
	described := h.pushBlob(t, config)
	described.MediaType = "application/vnd.oci.image.config.v1+json"
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": wire(described), "layers": []any{wire(layer)},
	})
	check.Must(t, err)
	h.put(t, http.MethodPut, fmt.Sprintf("/v2/%s/manifests/image-%d", repo, n), manifestType, manifest)
	to[artifact.DigestOf(manifest)], err = treesum.OfTars(plain)
	check.Must(t, err)
}

// pullImage unpacks the n-th image in one form or the other, and fetches the layer of some. What may pass is tried again.
func pullImage(ctx context.Context, s *store, c *Client, host string, n int) error {
	ref, err := artifact.ParseReference(fmt.Sprintf("%s/%s:image-%d", host, repo, n))
	if err != nil {
		return err
	}
	for {
		err := pullOnce(ctx, s, c.Source(ref, nil), n)
		if err == nil || !artifact.IsRetryable(err) || ctx.Err() != nil {
			return err
		}
	}
}

func pullOnce(ctx context.Context, s *store, src *Source, n int) error {
	d, err := src.Resolve(ctx)
	if err != nil {
		return err
	}
	i, err := artifact.ReadImage(ctx, src, d, "linux/amd64")
	if err != nil {
		return err
	}
	spec := artifact.TreeSpec{Digest: i.Digest, Layers: i.Layers, Room: 1 << 20, Form: artifact.TreeImage, Labels: i.Labels}
	if n%2 == 0 {
		spec.Form = artifact.TreeDirectory
	}
	if _, err := s.Unpack(ctx, spec, src.Layers(i.Layers)); err != nil {
		return err
	}
	if n%10 == 0 {
		return s.Fetch(ctx, src, i.Layers[0].Descriptor)
	}
	return nil
}

// faulty answers every second request for a blob as registries do that are not well: with 500 and 503, half a blob, or a connection that
// ends.
func (h *hub) faulty() {
	h.set(blobsBy(func(n int, w http.ResponseWriter, r *http.Request) {
		answer := &bufferedAnswer{header: http.Header{}}
		h.handler.ServeHTTP(answer, r)
		body := answer.body.Bytes()
		switch n % 8 {
		case 1:
			w.WriteHeader(http.StatusInternalServerError)
			return
		case 3:
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case 5: // as if it ended there
			body = body[:len(body)/2]
		case 7:
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			_, _ = w.Write(body[:len(body)/2])
			w.(http.Flusher).Flush()
			abort()
		}
		if answer.code != http.StatusOK {
			w.WriteHeader(answer.code)
		}
		w.(http.Flusher).Flush() // and no length
		for len(body) > 0 {      // slowly enough to be killed in between
			some := min(len(body), 16<<10)
			_, _ = w.Write(body[:some])
			w.(http.Flusher).Flush()
			body = body[some:]
			time.Sleep(time.Millisecond) // fragile: it only gives kills the time to come in between, and none has to
		}
	}))
}

type bufferedAnswer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (b *bufferedAnswer) Header() http.Header { return b.header }

func (b *bufferedAnswer) WriteHeader(code int) { b.code = code }

func (b *bufferedAnswer) Write(p []byte) (int, error) {
	if b.code == 0 {
		b.code = http.StatusOK
	}
	return b.body.Write(p)
}

// TestPullingChild is the process that is killed.
func TestPullingChild(t *testing.T) {
	plan, ok := fault.Planned()
	if !ok {
		t.Skip("only as a child process")
	}
	var e pulling
	check.Must(t, json.Unmarshal(plan.Data, &e))
	s := openStore(t, e.Dir, artifact.StoreConfig{Pace: time.Microsecond})
	c, err := NewClient(Config{PlainHTTP: []string{e.Host}, Backoff: time.Millisecond, MaxWait: 5 * time.Millisecond})
	check.Must(t, err)
	order := rand.New(rand.NewPCG(e.Seed, 1))
	for _, n := range order.Perm(e.Images) {
		check.Must(t, pullImage(t.Context(), s, c, e.Host, n))
	}
	check.Must(t, s.Sweep(t.Context()))
	select {} // until it is killed
}

// TestKilledWhilePulling kills processes that share a store, again and again, while they pull images from a registry that is not well.
// Whatever is in the store at any time is whole and right, and in the end every image can be had.
func TestKilledWhilePulling(t *testing.T) {
	images, kills := 200, 40
	if testing.Short() {
		images, kills = 50, 8
	}
	h := plainHub(t)
	want := contents{}
	for n := range images {
		h.pushImage(t, n, want)
	}
	h.faulty()
	e := pulling{Dir: filepath.Join(t.TempDir(), "store"), Host: h.host(), Images: images}
	partial, most, random := 0, 0, seed.New(t)
	for n := range kills {
		e.Seed = random.Uint64()
		children := []*exec.Cmd{startChild(t, "TestPullingChild", e), startChild(t, "TestPullingChild", e)}
		asked := h.count("GET")
		waitFor(t, "children that pull", func() bool { return h.count("GET") > asked+4 })
		for _, child := range children {
			until := h.count("GET") + random.IntN(images/2)
			waitFor(t, "a child that pulls still", func() bool { return h.count("GET") >= until })
			check.Must(t, child.Process.Kill())
			err := child.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child ended by itself: %v\n%s", err, child.Stdout)
			}
		}
		left, err := os.ReadDir(filepath.Join(e.Dir, "tmp"))
		check.Must(t, err)
		partial += len(left)
		bad, trees := wrongTrees(t, e.Dir, want)
		badBlobs, _ := wrong(e.Dir)
		if most = max(most, trees); len(bad)+len(badBlobs) > 0 {
			t.Fatalf("after %d of %d kills: %v %v", 2*(n+1), 2*kills, bad, badBlobs)
		}
	}
	s := openStore(t, e.Dir, artifact.StoreConfig{Pace: time.Microsecond})
	c, err := NewClient(h.quick())
	check.Must(t, err)
	for n := range images {
		check.Must(t, pullImage(t.Context(), s, c, h.host(), n))
	}
	check.Must(t, s.Sweep(t.Context()))
	if bad, trees := wrongTrees(t, e.Dir, want); len(bad) > 0 || trees != images {
		t.Errorf("%d good trees, want %d; wrong: %v", trees, images, bad)
	}
	checkStore(t, s, (images+9)/10)
	t.Logf("%d kills left %d partial trees and blobs, and up to %d whole trees", 2*kills, partial, most)
	if partial == 0 || most == 0 {
		t.Error("no kill met an extraction")
	}
	if names, err := os.ReadDir(s.path("trash")); err != nil || len(names)+len(partials(t, s)) > 0 {
		t.Errorf("left over: %v %v %v", names, partials(t, s), err)
	}
}

// fetching is what a child process does: fetch all blobs in its own order, again and again, in a store that holds half of them.
type fetching struct {
	Dir, Ref, Host string
	Blobs          []artifact.Descriptor
	Seed           uint64
}

// TestFetchingChild is the process that is killed.
func TestFetchingChild(t *testing.T) {
	plan, ok := fault.Planned()
	if !ok {
		t.Skip("only as a child process")
	}
	var e fetching
	check.Must(t, json.Unmarshal(plan.Data, &e))
	half := int64(0)
	for _, d := range e.Blobs {
		half += d.Size / 2
	}
	s := openStore(t, e.Dir, artifact.StoreConfig{MaxBytes: max(half, e.Blobs[0].Size), Pace: time.Microsecond})
	src := newSource(t, Config{PlainHTTP: []string{e.Host}, Backoff: time.Millisecond}, e.Ref)
	order := rand.New(rand.NewPCG(e.Seed, 1))
	for {
		for _, i := range order.Perm(len(e.Blobs)) {
			d := e.Blobs[i].Digest
			check.Must(t, s.Pin(t.Context(), d, "child"))
			check.Must(t, s.Fetch(t.Context(), src, e.Blobs[i]))
			check.Must(t, s.Unpin(t.Context(), d, "child"))
			if i%5 == 0 {
				check.Must(t, s.Sweep(t.Context()))
			}
		}
	}
}

// TestKilledAtRandom kills two processes that share a store with SIGKILL at random, again and again, while the registry cuts answers.
func TestKilledAtRandom(t *testing.T) {
	h := plainHub(t)
	e := fetching{Dir: filepath.Join(t.TempDir(), "store"), Ref: h.host() + "/" + repo + ":v1", Host: h.host()}
	content := map[string][]byte{}
	for i := range 12 {
		data := blobBytes(uint64(400+i), 1+i*150_000)
		e.Blobs = append(e.Blobs, h.pushBlob(t, data))
		content[e.Blobs[i].Digest.String()] = data
	}
	slices.Reverse(e.Blobs)
	h.set(blobsBy(func(n int, w http.ResponseWriter, r *http.Request) {
		trickle(w, ranged(content[path.Base(r.URL.Path)])(w, r), n)
	}))
	kills := 30
	if testing.Short() {
		kills = 10
	}
	partial, most, random := 0, 0, seed.New(t)
	for n := range kills {
		e.Seed = random.Uint64()
		children := []*exec.Cmd{startChild(t, "TestFetchingChild", e), startChild(t, "TestFetchingChild", e)}
		for i, child := range children {
			until := h.count("/blobs/") + 1 + random.IntN(8)
			waitFor(t, "a child that fetches", func() bool { return h.count("/blobs/") >= until })
			if err := child.Process.Kill(); err != nil {
				t.Errorf("child %d: %v", i, err)
			}
			err := child.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child ended by itself: %v\n%s", err, child.Stdout)
			}
		}
		bad, good := wrong(e.Dir)
		if len(bad) > 0 {
			t.Errorf("after %d kills: %v", n+1, bad)
		}
		left, _ := os.ReadDir(filepath.Join(e.Dir, "tmp"))
		partial, most = partial+len(left), max(most, good)
	}
	s := openStore(t, e.Dir, artifact.StoreConfig{Pace: time.Microsecond})
	src := h.source(t)
	for _, d := range e.Blobs {
		check.Must(t, s.Pin(t.Context(), d.Digest, "child"))
		check.Must(t, s.Unpin(t.Context(), d.Digest, "child"))
		check.Must(t, s.Fetch(t.Context(), src, d))
	}
	check.Must(t, s.Sweep(t.Context()))
	u, err := s.Usage()
	check.Must(t, err)
	bad, good := wrong(e.Dir)
	if len(bad) > 0 || good != len(u.Blobs) {
		t.Errorf("%d blobs, %d good; wrong: %v", len(u.Blobs), good, bad)
	}
	t.Logf("%d kills left %d partial blobs and up to %d whole ones; %d at the end, %d requests for blobs",
		2*kills, partial, most, good, h.count("/blobs/"))
	if good != len(e.Blobs) || partial == 0 || most == 0 {
		t.Error("see above")
	}
	if names, err := os.ReadDir(s.path("trash")); err != nil || len(names)+len(partials(t, s)) > 0 {
		t.Errorf("left over: %v %v %v", names, partials(t, s), err)
	}
}

// trickle sends slowly, and now and then not to the end.
func trickle(w http.ResponseWriter, body []byte, n int) {
	for i, chunk := range slices.Collect(slices.Chunk(body, 64<<10)) {
		if i > 3 && n%8 == 0 {
			abort()
		}
		_, _ = w.Write(chunk)
		w.(http.Flusher).Flush()
		time.Sleep(time.Millisecond) // fragile: it only gives kills the time to come in between, and none has to
	}
}

// startChild runs one test of this binary as a process.
func startChild(t *testing.T, name string, e any) *exec.Cmd {
	t.Helper()
	data, err := json.Marshal(e)
	check.Must(t, err)
	plan, err := json.Marshal(fault.Plan{Data: data})
	check.Must(t, err)
	exe, err := os.Executable()
	check.Must(t, err)
	child := exec.CommandContext(t.Context(), exe, "-test.run=^"+name+"$", "-test.count=1")
	child.Env = append(os.Environ(), "FETTLE_FAULT_PLAN="+string(plan))
	var output strings.Builder
	child.Stdout, child.Stderr = &output, &output
	if err := child.Start(); err != nil {
		t.Fatal(fmt.Errorf("start the child: %w", err))
	}
	return child
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	check.Eventually(t, what, is)
}
