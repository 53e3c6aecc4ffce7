// SPDX-License-Identifier: Apache-2.0

package cachemount

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/step"
)

// fixture is a node whose store is empty. Nothing of it is mounted, so that any user may run the tests that have it; those that mount are
// with the feature that decides on caches.
type fixture struct {
	*Mounter
	store *artifact.Store
	// broken is why the store cannot be opened.
	broken error
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	root := t.TempDir()
	f := &fixture{Mounter: &Mounter{Mounts: hostmount.In(filepath.Join(root, "mounts"), root), Dir: filepath.Join(root, "caches")}}
	store, err := artifact.OpenStore(filepath.Join(root, "artifacts"), artifact.StoreConfig{InUse: f.InUse, Pace: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	f.store = store
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) kind() step.Kind {
	return f.Kind(func() (*artifact.Store, error) { return f.store, f.broken })
}

// place makes a directory over which something would be mounted.
func (f *fixture) place(name string) error { return os.MkdirAll(f.Mounts.Path(name), 0o700) }

// use is a cache of two directories that claim u1 has.
func use(access Access) *Use {
	u := &Use{
		Kind: "GPUKernelCache", Namespace: "team-a", Name: "add", Tree: artifact.DigestOf([]byte("tree")), Owner: "u1", Access: access,
		Mounts: []Mount{{Source: "a", Target: "/a"}, {Source: "b", Target: "/b"}}, Env: []kernelcache.Env{{Name: "DIR", Value: "/a"}},
	}
	u.Key = u.NewKey()
	return u
}

// TestNotReady: a step fetches nothing. What it needs and is not in the store may come by another way, and its need is noted meanwhile, so
// that what comes stays.
func TestNotReady(t *testing.T) {
	f := newFixture(t)
	u := use(Overlay)
	s, err := u.Step()
	if err != nil {
		t.Fatal(err)
	}
	pinned := func(when string, want ...string) {
		t.Helper()
		if pins, err := f.store.Pins(u.Tree); err != nil || !slices.Equal(pins, want) {
			t.Errorf("%s the image is needed by %v, %v, want %v", when, pins, err, want)
		}
	}
	for range 2 {
		err := f.kind().Apply(t.Context(), s.Params)
		if !errors.Is(err, ErrNotReady) || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "GPUKernelCache team-a/add") {
			t.Errorf("applied without the image: %v", err)
		}
		pinned("meanwhile", "u1")
	}
	for range 2 {
		if err := f.kind().Undo(t.Context(), s.Params); err != nil {
			t.Errorf("undone without the image: %v", err)
		}
		pinned("at the end")
	}
	if names, err := f.Mounts.Names("u1"); err != nil || len(names) > 0 {
		t.Errorf("of the claim there remain %v, %v", names, err)
	}
	if f.InUse(f.store, u.Tree) {
		t.Error("an image that is not here is in use")
	}
}

// TestForeignParameters: what names no image, or another claim than any, is neither applied nor undone.
func TestForeignParameters(t *testing.T) {
	f := newFixture(t)
	noTree, noOwner, trees := use(Overlay), use(Overlay), use(Overlay)
	noTree.Tree, noOwner.Owner, trees.Owner = artifact.Digest{}, "", treeMounts
	for name, params := range map[string]any{"no image": noTree, "no claim": noOwner, "the images": trees, "something else": "what?"} {
		raw, err := json.Marshal(params)
		if err != nil {
			t.Fatal(err)
		}
		for what, do := range map[string]func(context.Context, json.RawMessage) error{"applied": f.kind().Apply, "undone": f.kind().Undo} {
			if err := do(t.Context(), raw); err == nil || !strings.Contains(err.Error(), "the parameters") {
				t.Errorf("%s was %s: %v", name, what, err)
			}
		}
	}
	if _, err := os.Stat(f.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a directory for mounts of images: %v", err)
	}
}

// TestEdits: by its access a claim has each directory to write to, to read, or with what its links lead to beside it.
func TestEdits(t *testing.T) {
	f := newFixture(t)
	for access, want := range map[Access][]container.Mount{
		Overlay: {{HostPath: "0", ContainerPath: "/a", NonRecursive: true}, {HostPath: "1", ContainerPath: "/b", NonRecursive: true}},
		ReadOnly: {
			{HostPath: "0", ContainerPath: "/a", ReadOnly: true, NonRecursive: true},
			{HostPath: "1", ContainerPath: "/b", ReadOnly: true, NonRecursive: true},
		},
		Seed: {
			{HostPath: "0", ContainerPath: "/a", NonRecursive: true},
			{HostPath: "0-files", ContainerPath: "/.fettle/KEY-0", ReadOnly: true, NonRecursive: true},
			{HostPath: "1", ContainerPath: "/b", NonRecursive: true},
			{HostPath: "1-files", ContainerPath: "/.fettle/KEY-1", ReadOnly: true, NonRecursive: true},
		},
	} {
		u := use(access)
		for i := range want {
			want[i].HostPath = f.Mounts.Path("u1/" + u.Key + "-" + want[i].HostPath)
			want[i].ContainerPath = strings.Replace(want[i].ContainerPath, "KEY", u.Key, 1)
		}
		if diff := cmp.Diff(container.Edits{Env: []string{"DIR=/a"}, Mounts: want}, f.Edits(u)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", access, diff)
		}
	}
}

// TestKeys: caches of one claim, and ways to mount the same, are told apart. The claim itself makes no difference.
func TestKeys(t *testing.T) {
	keys := map[string]string{}
	for name, change := range map[string]func(*Use){
		"as it is": func(*Use) {}, "kind": func(u *Use) { u.Kind = "ClusterGPUKernelCache" }, "namespace": func(u *Use) { u.Namespace = "b" },
		"name": func(u *Use) { u.Name = "b" }, "image": func(u *Use) { u.Tree = artifact.DigestOf([]byte("b")) },
		"place": func(u *Use) { u.Want = "/b" }, "access": func(u *Use) { u.Access = Seed }, "bytes": func(u *Use) { u.Bytes = 1 },
	} {
		u := use(Overlay)
		change(u)
		if other, taken := keys[u.NewKey()]; taken {
			t.Errorf("%s and %s have one key", name, other)
		}
		keys[u.NewKey()] = name
	}
	u := use(Overlay)
	u.Owner = "u2"
	if keys[u.NewKey()] != "as it is" {
		t.Error("another claim has another key")
	}
}

// TestUndoneWithoutTheStore: what is mounted goes, whatever becomes of the store, and the step is not undone before the store was told.
func TestUndoneWithoutTheStore(t *testing.T) {
	f := newFixture(t)
	u := use(Seed)
	s, err := u.Step()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.store.Pin(t.Context(), u.Tree, u.Owner), f.place(u.name(1)), f.place(u.filesName(0))); err != nil {
		t.Fatal(err)
	}
	f.broken = errors.New("broken")
	if err := f.kind().Undo(t.Context(), s.Params); !errors.Is(err, f.broken) {
		t.Errorf("with a broken store: %v", err)
	}
	if names, err := f.Mounts.Names("u1"); err != nil || len(names) > 0 {
		t.Errorf("with a broken store there remain %v, %v", names, err)
	}
	f.broken = nil
	if err := f.kind().Undo(t.Context(), s.Params); err != nil {
		t.Errorf("with the store: %v", err)
	}
	if pins, err := f.store.Pins(u.Tree); err != nil || len(pins) > 0 {
		t.Errorf("the image is needed by %v, %v", pins, err)
	}
}
