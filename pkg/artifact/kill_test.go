// SPDX-License-Identifier: Apache-2.0

package artifact

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
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/fettle-dev/fettle/test/fault"
)

// pulling is what a child that pulls images is to do.
type pulling struct {
	Dir, Host string
	Images    int
	Seed      uint64
}

// pushImage pushes a small cache of kernels, the n-th.
func (h *hub) pushImage(t testing.TB, n int) {
	t.Helper()
	var plain, packed bytes.Buffer
	w := tar.NewWriter(&plain)
	for i := range 24 {
		content := blobBytes(uint64(1000*n+i), (i*7919+n*104729)%20_000)
		header := &tar.Header{Name: fmt.Sprintf("cache/%d/%d/kernel", n, i), Size: int64(len(content)), Mode: 0o644, Typeflag: tar.TypeReg}
		must(t, w.WriteHeader(header))
		_, err := w.Write(content)
		must(t, err)
	}
	must(t, w.Close())
	z := gzip.NewWriter(&packed)
	_, err := z.Write(plain.Bytes())
	must(t, errors.Join(err, z.Close()))
	layer := h.pushBlob(t, packed.Bytes())
	layer.MediaType = "application/vnd.oci.image.layer.v1.tar+gzip"
	config, err := json.Marshal(map[string]any{
		"rootfs": map[string]any{"diff_ids": []any{DigestOf(plain.Bytes())}},
		"config": map[string]any{"Labels": map[string]string{"n": fmt.Sprint(n)}},
	})
	must(t, err)
	described := h.pushBlob(t, config)
	described.MediaType = "application/vnd.oci.image.config.v1+json"
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": wire(described), "layers": []any{wire(layer)},
	})
	must(t, err)
	h.put(t, http.MethodPut, fmt.Sprintf("/v2/%s/manifests/image-%d", repo, n), manifestType, manifest)
}

// pullImage unpacks the n-th image in one form or the other, and fetches the layer of some. What may pass is tried again.
func pullImage(ctx context.Context, s *Store, c *Client, host string, n int) error {
	ref, err := ParseReference(fmt.Sprintf("%s/%s:image-%d", host, repo, n))
	if err != nil {
		return err
	}
	for {
		err := pullOnce(ctx, s, c.Source(ref, nil), n)
		if err == nil || !IsRetryable(err) || ctx.Err() != nil {
			return err
		}
	}
}

func pullOnce(ctx context.Context, s *Store, src *Source, n int) error {
	d, err := src.Resolve(ctx)
	if err != nil {
		return err
	}
	i, err := ReadImage(ctx, src, d, "linux/amd64")
	if err != nil {
		return err
	}
	spec := TreeSpec{Digest: i.Digest, Layers: i.Layers, Room: 1 << 20, Form: TreeImage, Labels: i.Labels}
	if n%2 == 0 {
		spec.Form = TreeDirectory
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
			time.Sleep(time.Millisecond)
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
	must(t, json.Unmarshal(plan.Data, &e))
	s, err := OpenStore(e.Dir, StoreConfig{Pace: time.Microsecond})
	must(t, err)
	c, err := NewClient(ClientConfig{PlainHTTP: []string{e.Host}, Backoff: time.Millisecond, MaxWait: 5 * time.Millisecond})
	must(t, err)
	order := rand.New(rand.NewPCG(e.Seed, 1))
	for _, n := range order.Perm(e.Images) {
		must(t, pullImage(t.Context(), s, c, e.Host, n))
	}
	must(t, s.Sweep(t.Context()))
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
	for n := range images {
		h.pushImage(t, n)
	}
	h.faulty()
	e := pulling{Dir: filepath.Join(t.TempDir(), "store"), Host: h.host(), Images: images}
	partial, most := 0, 0
	for n := range kills {
		e.Seed = uint64(n)
		children := []*exec.Cmd{startChildTest(t, "TestPullingChild", e), startChildTest(t, "TestPullingChild", e)}
		asked := h.count("GET")
		waitFor(t, "children that pull", func() bool { return h.count("GET") > asked+4 })
		for _, child := range children {
			time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond) // at random: this is no check
			must(t, child.Process.Kill())
			err := child.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child ended by itself: %v\n%s", err, child.Stdout)
			}
		}
		left, err := os.ReadDir(filepath.Join(e.Dir, tmpDir))
		must(t, err)
		partial += len(left)
		bad, trees := wrongTrees(t, e.Dir)
		badBlobs, _ := wrong(e.Dir)
		if most = max(most, trees); len(bad)+len(badBlobs) > 0 {
			t.Fatalf("after %d kills: %v %v", 2*(n+1), bad, badBlobs)
		}
	}
	s, err := OpenStore(e.Dir, StoreConfig{Pace: time.Microsecond})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	c, err := NewClient(h.quick())
	must(t, err)
	for n := range images {
		must(t, pullImage(t.Context(), s, c, h.host(), n))
	}
	must(t, s.Sweep(t.Context()))
	checkTrees(t, s, images)
	checkStore(t, s, (images+9)/10)
	t.Logf("%d kills left %d partial trees and blobs, and up to %d whole trees", 2*kills, partial, most)
	if partial == 0 || most == 0 {
		t.Error("no kill met an extraction")
	}
	if names, err := os.ReadDir(s.path(trashDir)); err != nil || len(names)+len(partials(t, s)) > 0 {
		t.Errorf("left over: %v %v %v", names, partials(t, s), err)
	}
}
