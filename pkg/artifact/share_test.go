// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// TestNamespaceShare: who fetches image after image evicts its own, also with images that say to be of another namespace, and others' only
// for what its share has room for.
func TestNamespaceShare(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	s := newStore(t, StoreConfig{MaxBytes: 4 << 20, NamespaceBytes: 2 << 20, Clock: fake})
	add := func(namespace, seed string, size int) (Digest, error) {
		fake.Step(time.Minute)
		i := imageOf(t, seed, TreeImage, size, int64(size)+20_000)
		i.Namespace, i.Labels = namespace, map[string]string{namespaceLabel: "alice"}
		_, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
		return i.Digest, err
	}
	here := func(d Digest) bool {
		_, err := os.Stat(s.path(treeName(d)))
		return err == nil
	}
	old, err := add("", "of the cluster", 1<<20)
	check.Must(t, err)
	alice, err := add("alice", "alice", 800<<10)
	check.Must(t, err)
	var mallory []Digest
	for i := range 6 {
		d, err := add("mallory", fmt.Sprint("mallory ", i), 900<<10)
		check.Must(t, err)
		mallory = append(mallory, d)
	}
	if !here(old) || !here(alice) || here(mallory[3]) || !here(mallory[4]) || !here(mallory[5]) {
		t.Errorf("the cluster's %v, alice's %v, mallory's last three %v %v %v", here(old), here(alice), here(mallory[3]), here(mallory[4]),
			here(mallory[5]))
	}

	check.Must(t, s.Pin(t.Context(), mallory[4], "claim-1"))
	check.Must(t, s.Pin(t.Context(), mallory[5], "claim-2"))
	_, err = add("mallory", "more", 900<<10)
	wantErr(t, err, ErrNoSpace, "images of namespace mallory may take 2097152", "pinned")
	_, err = add("alice", "two", 900<<10)
	check.Must(t, err)
	tree, err := s.PeekTree(alice)
	if err == nil && tree.Labels[namespaceLabel] != "alice" {
		t.Errorf("labels %v", tree.Labels)
	}
}

// TestLargerThanShare: an image that would not fit if its namespace had no other is refused for good: nobody fetches it again and again.
// What counts is what it holds, and not what its label says that it may.
func TestLargerThanShare(t *testing.T) {
	s := newStore(t, StoreConfig{MaxBytes: 8 << 20, NamespaceBytes: 2 << 20})
	for name, size := range map[string]int{"fits": 1900 << 10, "large": 3 << 20} {
		i := imageOf(t, name, TreeImage, size, 6<<20)
		i.Namespace = "mallory"
		_, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
		if name == "fits" {
			check.Must(t, err)
		} else if wantErr(t, err, ErrTooLarge, "images of namespace mallory may take 2097152"); IsRetryable(err) {
			t.Errorf("%v is tried again", err)
		}
	}
}

// smallFiles is an image of so many files of one byte, each of which takes a block of the disk where a tree is a directory.
func smallFiles(t *testing.T, seed string, n int) *image {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range n {
		check.Must(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("cache/%05d", i), Size: 1, Mode: 0o644, Typeflag: tar.TypeReg}))
		_, err := w.Write([]byte(seed[:1]))
		check.Must(t, err)
	}
	check.Must(t, w.Close())
	i := newImage(seed, TreeDirectory, b.Bytes())
	i.Room = int64(b.Len())
	return i
}

// TestSmallFiles: a tree of many small files takes more of the disk than it has bytes, and that counts before it is complete: it is refused
// where its namespace may not take as much, and else evicts what does not fit beside it.
func TestSmallFiles(t *testing.T) {
	const files = 300 // 1.2 MiB of blocks, in a tar of 300 KiB
	s := newStore(t, StoreConfig{MaxBytes: 8 << 20, NamespaceBytes: 1 << 20, GrowBy: 64 << 10})
	i := smallFiles(t, "mallory", files)
	i.Namespace = "mallory"
	_, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
	if wantErr(t, err, ErrTooLarge, "images of namespace mallory may take 1048576"); IsRetryable(err) {
		t.Errorf("%v is tried again", err)
	}
	if got := shares(t, s); got["mallory"] > 0 {
		t.Errorf("the store has %v", got)
	}

	s = newStore(t, StoreConfig{MaxBytes: 2 << 20, GrowBy: 64 << 10})
	old := imageOf(t, "old", TreeDirectory, 1<<20, 2<<20)
	_, err = s.Unpack(t.Context(), old.TreeSpec, old.open)
	check.Must(t, err)
	i = smallFiles(t, "small", files)
	_, err = s.Unpack(t.Context(), i.TreeSpec, i.open)
	check.Must(t, err)
	if u, err := s.Usage(); err != nil || u.Bytes+u.Partial > u.MaxBytes {
		t.Errorf("usage %+v, %v", u, err)
	}
}

// shares returns what each namespace has in the store, finished or not.
func shares(t *testing.T, s *Store) map[string]int64 {
	t.Helper()
	unlock, err := s.lockNames(t.Context())
	check.Must(t, err)
	defer unlock()
	inv, err := s.inventory()
	check.Must(t, err)
	out := map[string]int64{}
	for _, it := range append(inv.partials, inv.blobs...) {
		out[it.namespace] += it.size
	}
	return out
}

// TestUnfinishedIsWritten: of a tree that is being made, only what it may still take is missing on the disk: what arrived is there already.
func TestUnfinishedIsWritten(t *testing.T) {
	const step = 1 << 20
	s := newStore(t, StoreConfig{GrowBy: step})
	check.Must(t, os.Mkdir(s.path(partialTree(DigestOf([]byte("large")), 5*step, "alice")), 0o700))
	inv, err := s.inventory()
	check.Must(t, err)
	_, _, err = inv.plan(&spaceRequest{size: step, free: 3 * step, inUse: func(Digest) bool { return true }})
	check.Must(t, err)
	_, _, err = inv.plan(&spaceRequest{size: step, free: 2*step - 1, inUse: func(Digest) bool { return true }})
	wantErr(t, err, ErrNoSpace, "is 1 short")
}

// TestNamespaceShareCountsUnfinished: a second image does not get the part of the share that a first one, still being unpacked, has
// reserved, and takes nothing from others. What a process that ended left is evicted first.
func TestNamespaceShareCountsUnfinished(t *testing.T) {
	s := newStore(t, StoreConfig{MaxBytes: 4 << 20, NamespaceBytes: 2 << 20})
	image := func(namespace, name string, size int) *image {
		i := imageOf(t, name, TreeImage, size, int64(size)+20_000)
		i.Namespace = namespace
		return i
	}
	alice := image("alice", "alice", 1200<<10)
	_, err := s.Unpack(t.Context(), alice.TreeSpec, alice.open)
	check.Must(t, err)
	left := partialTree(DigestOf([]byte("left")), 2<<20, "mallory")
	check.Must(t, os.Mkdir(s.path(left), 0o700))

	first, second := image("mallory", "first", 1900<<10), image("mallory", "second", 1900<<10)
	_, err = s.Unpack(t.Context(), first.TreeSpec, func(ctx context.Context, layer int) (io.ReadCloser, error) {
		_, err := s.Unpack(ctx, second.TreeSpec, second.open)
		wantErr(t, err, ErrNoSpace, "images of namespace mallory may take 2097152", "being unpacked")
		return first.open(ctx, layer)
	})
	check.Must(t, err)
	if _, err := s.PeekTree(alice.Digest); err != nil {
		t.Errorf("another namespace's tree: %v", err)
	}
	if _, err := os.Stat(s.path(left)); err == nil {
		t.Error("what a process that ended left counts for good")
	}
}

// evicting is another process that evicts a tree as soon as it may: when the lock of the store's names is free and the tree has its name.
type evicting struct {
	files

	evict func()
}

func (e evicting) SyncDir(name string) error {
	if strings.HasSuffix(name, "/"+treesDir) {
		e.evict()
	}
	return e.files.SyncDir(name)
}

// TestUnpackedAndEvicted: who unpacks an image is not told that it is not there because others needed the room at once.
func TestUnpackedAndEvicted(t *testing.T) {
	s := newStore(t, StoreConfig{})
	i := imageOf(t, "first", TreeImage, 1000, 100_000)
	evicted := false
	s.fs = evicting{s.fs, func() {
		if _, err := os.Stat(s.path(treeName(i.Digest))); err == nil {
			unlock, err := s.lockNames(t.Context())
			check.Must(t, err)
			check.Must(t, s.moveToTrash(treeName(i.Digest), i.Digest))
			unlock()
			evicted = true
		}
	}}
	tree, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
	check.Must(t, err)
	if !evicted || tree.Digest != i.Digest {
		t.Errorf("evicted: %v, tree %+v", evicted, tree)
	}
}

// TestSharesHoldWhileUnpacking: with images of random sizes that are unpacked at random moments, by several fetches at once, no namespace
// ever has more than its share, and the cluster's tree, for which there is room beside all shares, stays.
func TestSharesHoldWhileUnpacking(t *testing.T) {
	const share, fetches, images = 1 << 20, 3, 6
	random := seed.New(t)
	s := newStore(t, StoreConfig{MaxBytes: 3 << 20, NamespaceBytes: share, GrowBy: 128 << 10})
	cluster := imageOf(t, "cluster", TreeImage, 600<<10, 700<<10)
	_, err := s.Unpack(t.Context(), cluster.TreeSpec, cluster.open)
	check.Must(t, err)
	look := func() {
		for namespace, size := range shares(t, s) {
			if namespace != "" && size > share {
				t.Errorf("namespace %s has %d bytes, want at most %d", namespace, size, share)
			}
		}
	}
	var running sync.WaitGroup
	for n := range fetches {
		var mine []*image
		for m := range images {
			size := 1 + random.IntN(900<<10)
			i := imageOf(t, fmt.Sprint(n, " ", m), TreeImage, size, int64(size)+100_000)
			i.Namespace = []string{"alice", "mallory"}[random.IntN(2)]
			mine = append(mine, i)
		}
		running.Go(func() {
			reads := 0
			for _, i := range mine {
				_, err := s.Unpack(t.Context(), i.TreeSpec, func(_ context.Context, layer int) (io.ReadCloser, error) {
					return &observed{Reader: bytes.NewReader(i.layers[layer]), look: func() {
						if reads++; reads%32 == 0 { // the lock that look needs is slow
							look()
						}
					}}, nil
				})
				if err != nil && !errors.Is(err, ErrNoSpace) {
					t.Error(err)
				}
				look()
			}
		})
	}
	running.Wait()
	if _, err := s.PeekTree(cluster.Digest); err != nil {
		t.Error(err)
	}
}

// endless is a repository that sends nothing until it is let, and another one's blob then.
type endless struct {
	*hub
	name       string
	asked, let chan struct{}
}

func (e *endless) Reference() Reference {
	ref, err := ParseReference(e.name)
	if err != nil {
		panic(err)
	}
	return ref
}

func (e *endless) Pull(ctx context.Context, d Descriptor, to Sink) error {
	e.asked <- struct{}{}
	<-e.let
	return e.hub.Pull(ctx, d, to)
}

// TestRepositoriesDoNotWaitForEachOther: who names what another one fetches in a repository that never ends keeps nobody waiting. Those
// that read the same repository fetch once.
func TestRepositoriesDoNotWaitForEachOther(t *testing.T) {
	forms(t, func(t *testing.T, form TreeForm) {
		synctest.Test(t, func(t *testing.T) {
			s := newStore(t, StoreConfig{})
			i, h := smallImage(t, "public", form), newHub()
			d := h.pushBlob(blobBytes(1, 100_000))
			named := func(name string) *endless {
				return &endless{hub: h, name: name, asked: make(chan struct{}, 9), let: make(chan struct{})}
			}
			unpacked := func(from *endless) error {
				spec := i.TreeSpec
				spec.Origin, spec.Namespace = from.Reference().Repository(), "team"
				_, err := s.Unpack(t.Context(), spec, func(ctx context.Context, layer int) (io.ReadCloser, error) {
					if layer == 0 {
						from.asked <- struct{}{}
						<-from.let
					}
					return i.open(ctx, layer)
				})
				return err
			}
			fetched := func(from *endless) error { return s.Fetch(t.Context(), from, d) }
			for _, get := range []func(*endless) error{unpacked, fetched} {
				began := time.Now()
				mallory, slow, quick := named("mallory.example/tar/pit"), named("far.example/team/a"), named("near.example/team/a")
				var running sync.WaitGroup
				for _, from := range []*endless{mallory, slow, slow, slow} {
					running.Go(func() {
						if err := get(from); err != nil {
							t.Error(err)
						}
					})
					time.Sleep(3 * patience)
				}
				close(quick.let)
				check.Must(t, get(quick))
				if took := time.Since(began); took > 14*patience {
					t.Errorf("it came after %s", took)
				}
				if len(mallory.asked) != 1 || len(slow.asked) != 1 || len(quick.asked) != 1 {
					t.Errorf("asked %d, %d and %d times, want once each", len(mallory.asked), len(slow.asked), len(quick.asked))
				}
				close(slow.let)
				close(mallory.let)
				running.Wait()
			}
			checkTrees(t, s, i)
			usage, err := s.Usage()
			if err != nil || usage.Partial != 0 || len(usage.Trees) != 1 || len(usage.Blobs) != 1 {
				t.Errorf("left %+v, %v", usage, err)
			}
		})
	})
}
