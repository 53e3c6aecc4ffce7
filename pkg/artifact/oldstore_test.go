// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	kjson "sigs.k8s.io/json"

	"github.com/fettle-dev/fettle/test/check"
)

// oldStore is a store as version 92a7570 made it: the trees of two images, a blob, and a pin of each.
func oldStore(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "store")
	packed, err := os.Open("testdata/store-92a7570.tar.gz")
	check.Must(t, err)
	defer packed.Close()
	plain, err := gzip.NewReader(packed)
	check.Must(t, err)
	for r := tar.NewReader(plain); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		check.Must(t, err)
		path, mode := filepath.Join(dir, filepath.FromSlash(h.Name)), h.FileInfo().Mode().Perm()
		if h.Typeflag == tar.TypeDir {
			check.Must(t, os.MkdirAll(path, 0o700))
		} else {
			data, err := io.ReadAll(r)
			check.Must(t, err)
			check.Must(t, os.WriteFile(path, data, 0o600))
		}
		check.Must(t, os.Chmod(path, mode))
	}
}

func oldImages(t *testing.T) []*image {
	t.Helper()
	return []*image{smallImage(t, "old Directory", TreeDirectory), smallImage(t, "old Image", TreeImage)}
}

// TestOldStore: what the version before left is served as it is, whole and pinned, and nothing is fetched for it.
func TestOldStore(t *testing.T) {
	s, err := OpenStore(oldStore(t), StoreConfig{Pace: time.Microsecond})
	check.Must(t, err)
	defer func() { check.Must(t, s.Close()) }()
	images := oldImages(t)
	checkTrees(t, s, images...)
	check.Must(t, s.Sweep(t.Context()))
	for _, i := range images {
		tree, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
		check.Must(t, err)
		if i.opened.Load() != 0 || tree.Labels["seed"] == "" || tree.Form != i.Form || tree.Bytes != 3000 {
			t.Errorf("opened %d layers: %+v", i.opened.Load(), tree.TreeMetadata)
		}
		if pins, err := s.Pins(i.Digest); err != nil || !cmp.Equal(pins, []string{"claim-1"}) {
			t.Errorf("pins %v: %v", pins, err)
		}
	}
	const bitstream = "a bitstream of the version before"
	if got := readBlob(t, s, DigestOf([]byte(bitstream))); string(got) != bitstream {
		t.Errorf("got %q", got)
	}
	u, err := s.Usage()
	check.Must(t, err)
	if len(u.Trees) != 2 || len(u.Blobs) != 1 || u.Bytes != u.Pinned || u.Bytes != 28672+20480+int64(len(bitstream)) {
		t.Errorf("%+v", u)
	}
	checkTrees(t, s, images...)
}

// TestNewTreeForOldVersion: version 92a7570 takes what is made now for a tree. It refuses unknown fields, and a tree without a hash.
func TestNewTreeForOldVersion(t *testing.T) {
	s := newStore(t, StoreConfig{})
	for _, i := range oldImages(t) {
		made, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
		check.Must(t, err)
		data, err := os.ReadFile(s.path(treeName(i.Digest) + "/metadata.json"))
		check.Must(t, err)
		var old struct { // as it was in that version
			Version      int               `json:"version"`
			Digest       Digest            `json:"digest"`
			DiffIDs      []Digest          `json:"diffIDs"`
			Form         TreeForm          `json:"form"`
			Hash         Digest            `json:"hash"`
			Entries      int               `json:"entries"`
			Bytes        int64             `json:"bytes"`
			Size         int64             `json:"size"`
			Labels       map[string]string `json:"labels,omitempty"`
			Verification string            `json:"verification,omitempty"`
			Created      time.Time         `json:"created"`
		}
		strict, err := kjson.UnmarshalStrict(data, &old)
		check.Must(t, errors.Join(append(strict, err)...))
		if old.Version != 2 || old.Size < 0 || old.Hash.IsZero() || old.Form != i.Form || old.Digest != i.Digest || old.Bytes != made.Bytes {
			t.Errorf("%+v", old)
		}
		index, content := made.Image()
		for _, path := range []string{made.Root(), index, content} {
			if _, err := os.Stat(path); path != "" && err != nil {
				t.Error(err)
			}
		}
	}
}
