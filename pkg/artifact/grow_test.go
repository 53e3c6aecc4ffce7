// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// imageOf is an image with one file of so many bytes, whose label says that it takes room.
func imageOf(t *testing.T, seed string, form TreeForm, size int, room int64) *image {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	check.Must(t, w.WriteHeader(&tar.Header{Name: "cache/large", Size: int64(size), Mode: 0o644, Typeflag: tar.TypeReg}))
	_, err := w.Write(bytes.Repeat([]byte(seed[:1]), size))
	check.Must(t, err)
	check.Must(t, w.Close())
	i := newImage(seed, form, b.Bytes())
	i.Room = room
	return i
}

// observed calls look after each piece that is read.
type observed struct {
	io.Reader
	look func()
}

func (o *observed) Read(b []byte) (int, error) {
	o.look()
	return o.Reader.Read(b[:min(len(b), 4096)])
}

func (o *observed) Close() error { return nil }

// TestReservationGrows: what a label says is reserved and evicts as its content arrives, and no sooner. A tree that is renamed while it
// grows is whole.
func TestReservationGrows(t *testing.T) {
	forms(t, func(t *testing.T, form TreeForm) {
		const quota, step = 8 << 20, 256 << 10
		h := newHub()
		s := newStore(t, StoreConfig{MaxBytes: quota, GrowBy: step})
		old := h.pushBlob(blobBytes(1, 3<<20))
		check.Must(t, s.Fetch(t.Context(), h, old))
		hasOld := func() bool {
			_, err := os.Stat(s.path(blobName(old.Digest)))
			return err == nil
		}
		liar := imageOf(t, "liar", form, 1000, quota)
		_, err := s.Unpack(t.Context(), liar.TreeSpec, liar.open)
		check.Must(t, err)
		if !hasOld() {
			t.Fatal("the label of a small image evicted a file")
		}

		most, names := int64(0), map[string]bool{}
		large := imageOf(t, "honest", form, 6<<20, quota-1)
		_, err = s.Unpack(t.Context(), large.TreeSpec, func(_ context.Context, layer int) (io.ReadCloser, error) {
			return &observed{Reader: bytes.NewReader(large.layers[layer]), look: func() {
				check.Must(t, s.each(tmpDir, func(name string, _ os.FileInfo) {
					if _, room, _, ok := parsePartialTree(name); ok {
						most, names[name] = max(most, room), true
					}
				}))
			}}, nil
		})
		check.Must(t, err)
		if hasOld() {
			t.Error("nothing was evicted for what arrived")
		}
		if most > 6<<20+2*step || len(names) < 10 {
			t.Errorf("at most %d bytes were reserved, in %d steps", most, len(names))
		}
		bad, good := wrongTrees(t, s.dir, contentsOf(t, liar, large))
		if len(bad) > 0 || good != 2 {
			t.Errorf("%d good trees, wrong: %v", good, bad)
		}
	})
}

// TestGrowthEnds: a tree for which there is no more space leaves nothing, and what is pinned stays.
func TestGrowthEnds(t *testing.T) {
	h := newHub()
	s := newStore(t, StoreConfig{MaxBytes: 4 << 20, GrowBy: 256 << 10})
	pinned := h.pushBlob(blobBytes(1, 3<<20))
	check.Must(t, s.Fetch(t.Context(), h, pinned))
	check.Must(t, s.Pin(t.Context(), pinned.Digest, "claim-1"))
	large := imageOf(t, "large", TreeImage, 2<<20, 3<<20)
	_, err := s.Unpack(t.Context(), large.TreeSpec, large.open)
	wantErr(t, err, ErrNoSpace, "pinned")
	u, err := s.Usage()
	check.Must(t, err)
	if u.Partial != 0 || len(u.Trees) != 0 || u.Bytes != 3<<20 {
		t.Errorf("left: %+v", u)
	}
}
