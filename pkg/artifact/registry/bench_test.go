// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

// BenchmarkFetch compares a fetch into the store with its floor: the same bytes from the same server, hashed, written and synced by
// the plainest loop there is.
func BenchmarkFetch(b *testing.B) {
	for _, mib := range []int{1, 16, 128} {
		h := plainHub(b)
		data := blobBytes(1, mib<<20)
		blob := h.pushBlob(b, data)
		serve := func(w http.ResponseWriter) { // without the registry's own copies
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			_, _ = w.Write(data)
		}
		h.set(blobsBy(func(_ int, w http.ResponseWriter, _ *http.Request) { serve(w) }))
		b.Run(fmt.Sprintf("store/%dMiB", mib), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				dir := filepath.Join(b.TempDir(), "s")
				s, err := artifact.OpenStore(dir, artifact.StoreConfig{})
				check.Must(b, err)
				check.Must(b, s.Fetch(b.Context(), h.source(b), blob))
				check.Must(b, s.Close())
				remove(b, dir)
			}
		})
		b.Run(fmt.Sprintf("floor/%dMiB", mib), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				path := filepath.Join(b.TempDir(), "f")
				check.Must(b, floor(b.Context(), h.URL+"/v2/"+repo+"/blobs/"+blob.Digest.String(), path, blob.Digest))
				remove(b, path)
			}
		})
	}
}

func floor(ctx context.Context, url, path string, want artifact.Digest) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	hash := sha256.New()
	to := io.MultiWriter(hash, struct{ io.Writer }{f})
	if _, err := io.CopyBuffer(to, struct{ io.Reader }{resp.Body}, make([]byte, bufferSize)); err != nil {
		return err
	}
	if got := artifact.Digest(hash.Sum(nil)); got != want {
		return fmt.Errorf("%s, want %s", got, want)
	}
	return f.Sync()
}

// remove deletes a file without counting the time.
func remove(b *testing.B, path string) {
	b.Helper()
	b.StopTimer()
	check.Must(b, os.RemoveAll(path))
	b.StartTimer()
}
