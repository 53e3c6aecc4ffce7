// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/test/check"
)

// keep keeps some bytes of a layer of a namespace, and returns what was there before.
func keep(t *testing.T, s *Store, d Descriptor, namespace string, add []byte) (before string) {
	t.Helper()
	k := KeepLayer(t.Context(), s, d, "registry.example/x", namespace)
	if k == nil {
		return "nothing is kept"
	}
	defer k.Close()
	f, err := k.Open()
	check.Must(t, err)
	text, err := io.ReadAll(f)
	check.Must(t, err)
	check.Must(t, f.Close())
	if k.Size() != int64(len(text)) {
		t.Errorf("it says %d bytes and has %d", k.Size(), len(text))
	}
	k.Write(add)
	return string(text)
}

func wantKept(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// TestKeptLayer: what came of a layer is there in the next try, also of another process, for the same namespace and repository only,
// until it is dropped or a day old.
func TestKeptLayer(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	s := newStore(t, StoreConfig{KeepFrom: 10, Clock: clock})
	layer := TreeLayer{Descriptor: Descriptor{Digest: DigestOf([]byte("0123456789")), Size: 10}}
	d := layer.Descriptor
	wantKept(t, "at first", keep(t, s, d, "team-a", []byte("0123")), "")
	wantKept(t, "another process", keep(t, s.again(t), d, "team-a", []byte("45")), "0123")
	wantKept(t, "another namespace", keep(t, s, d, "team-b", []byte("x")), "")
	k := KeepLayer(t.Context(), s, d, "registry.example/other", "team-a")
	if k == nil || k.Size() != 0 {
		t.Fatalf("another repository: %v", k)
	}
	if KeepLayer(t.Context(), s, d, "registry.example/other", "team-a") != nil {
		t.Error("two fetches keep one layer at once")
	}
	k.Write([]byte("0123456789 and more"))
	k.Close()
	k = KeepLayer(t.Context(), s, d, "registry.example/other", "team-a")
	if k.Size() != 0 {
		t.Errorf("more than the layer has: %d bytes", k.Size())
	}
	k.Write([]byte("01"))
	k.Reset()
	k.Write([]byte("2"))
	if k.Close(); k.Size() != 1 {
		t.Errorf("after a reset: %d bytes", k.Size())
	}
	wantKept(t, "small", keep(t, s, Descriptor{Digest: d.Digest, Size: 9}, "team-a", nil), "nothing is kept")

	DropKept(s, []TreeLayer{layer}, "registry.example/x", "team-a")
	wantKept(t, "dropped", keep(t, s, d, "team-a", []byte("0")), "")
	if got := len(partials(t, s)); got != 3 {
		t.Errorf("%d files, want 3", got)
	}
	clock.SetTime(time.Now().Add(25 * time.Hour))
	check.Must(t, s.Sweep(t.Context()))
	if got := partials(t, s); len(got) != 0 {
		t.Errorf("a day later: %v", got)
	}
}

// TestKeptLayersTakeNoRoom: a layer is kept only where nothing goes for it, counts for the store and for the share of its namespace, and
// goes when anything needs its space.
func TestKeptLayersTakeNoRoom(t *testing.T) {
	h := newHub()
	old, next := h.pushBlob(blobBytes(1, 60)), h.pushBlob(blobBytes(2, 100))
	s := newStore(t, StoreConfig{KeepFrom: 10, MaxBytes: 120, NamespaceBytes: 50})
	d := Descriptor{Digest: DigestOf([]byte("layer")), Size: 40}
	check.Must(t, s.Fetch(t.Context(), h, old))
	wantKept(t, "more than what is free", keep(t, s, Descriptor{Digest: d.Digest, Size: 61}, "", nil), "nothing is kept")
	checkStore(t, s, 1)
	wantKept(t, "what is free", keep(t, s, d, "team-a", []byte("01")), "")
	wantKept(t, "more than the share", keep(t, s, Descriptor{Digest: DigestOf(nil), Size: 11}, "team-a", nil), "nothing is kept")
	u, err := s.Usage()
	check.Must(t, err)
	if u.Partial != 40 {
		t.Errorf("%d bytes are reserved, want 40", u.Partial)
	}
	k := KeepLayer(t.Context(), s, d, "registry.example/x", "team-a")
	check.Must(t, s.Fetch(t.Context(), h, next))
	checkStore(t, s, 1)
	k.Write([]byte("23"))
	if k.Size() != 0 || len(partials(t, s)) != 0 {
		t.Errorf("it has %d bytes, and there is %v", k.Size(), partials(t, s))
	}
	k.Close()
}

// TestKeptLayersGoFirst: a layer that is kept goes before anything is evicted, for a prefetch too, and whichever process reads it. It stays
// where its space would not help: what exceeds the share of another namespace is that one's to give, and another layer is not kept instead.
func TestKeptLayersGoFirst(t *testing.T) {
	for name, c := range map[string]struct {
		left, others bool // whether an earlier try left it, and whether another process reads it
		namespace    string
		need         func(s *Store, size int64) error
		size         int64
		goes         bool
	}{
		"a file":                    {need: fetchOf, size: 50, goes: true},
		"a file, left":              {need: fetchOf, size: 50, goes: true, left: true},
		"a file, another process's": {need: fetchOf, size: 50, goes: true, others: true},
		"a prefetch":                {need: prefetchOf, size: 50, goes: true},
		"a prefetch, left":          {need: prefetchOf, size: 50, goes: true, left: true},
		"another's share":           {need: treeOf("team-b"), size: 51},
		"its own share":             {need: treeOf("team-a"), size: 20, goes: true},
		"another layer":             {need: layerOf, size: 50, left: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, StoreConfig{KeepFrom: 10, MaxBytes: 120, NamespaceBytes: 50})
			old := newHub()
			check.Must(t, s.Fetch(t.Context(), old, old.pushBlob(blobBytes(1, 30))))
			d, by := Descriptor{Digest: DigestOf([]byte("layer")), Size: 45}, s
			if c.others {
				by = s.again(t)
			}
			k := KeepLayer(t.Context(), by, d, "registry.example/x", "team-a")
			k.Write([]byte("0123"))
			if c.left {
				k.Close()
			}
			if err := c.need(s, c.size); (err == nil) != c.goes {
				t.Errorf("what needs the space: %v", err)
			}
			if digests, err := s.Digests(); err != nil || len(digests) == 0 || !has(digests, blobBytes(1, 30)) {
				t.Errorf("the old file is evicted: %v, %v", digests, err)
			}
			if c.left {
				k = KeepLayer(t.Context(), s, Descriptor{Digest: d.Digest, Size: 45}, "registry.example/x", "team-a")
			}
			if k != nil {
				k.Write([]byte("45"))
				defer k.Close()
			}
			if stays := k != nil && k.Size() == 6; stays == c.goes {
				t.Errorf("it stays: %v, want it to go: %v", stays, c.goes)
			}
		})
	}
}

func has(digests []Digest, data []byte) bool { return slices.Contains(digests, DigestOf(data)) }

func fetchOf(s *Store, size int64) error {
	h := newHub()
	return s.Fetch(context.Background(), h, h.pushBlob(blobBytes(2, int(size))))
}

func prefetchOf(s *Store, size int64) error {
	h := newHub()
	return s.FetchOpportunistic(context.Background(), h, h.pushBlob(blobBytes(2, int(size))))
}

// treeOf reserves space for a tree of a namespace.
func treeOf(namespace string) func(*Store, int64) error {
	return func(s *Store, size int64) error {
		r := reservation{Descriptor: Descriptor{Digest: DigestOf([]byte("tree")), Size: size}, namespace: namespace}
		return s.reserve(context.Background(), r, func() error { return nil })
	}
}

// layerOf keeps another layer.
func layerOf(s *Store, size int64) error {
	k := KeepLayer(context.Background(), s, Descriptor{Digest: DigestOf(nil), Size: size}, "registry.example/x", "team-b")
	if k == nil {
		return ErrNoSpace
	}
	k.Close()
	return nil
}

// failing is a file whose writes fail.
type failing struct{ disk.File }

func (failing) Write([]byte) (int, error) { return 0, errors.New("bad disk") }

// failingFiles has files that cannot be written.
type failingFiles struct{ files }

func (f failingFiles) OpenFile(name string, flag int, perm os.FileMode) (disk.File, error) {
	file, err := f.files.OpenFile(name, flag, perm)
	return failing{file}, err
}

// TestKeptLayerOnBadDisk: what cannot be written is not kept, and that is all.
func TestKeptLayerOnBadDisk(t *testing.T) {
	s := newStore(t, StoreConfig{KeepFrom: 10})
	s.fs = failingFiles{s.fs}
	wantKept(t, "a bad disk", keep(t, s, Descriptor{Digest: DigestOf([]byte("x")), Size: 10}, "", []byte("01")), "")
	if got := partials(t, s); len(got) != 0 {
		t.Errorf("left over: %v", got)
	}
}
