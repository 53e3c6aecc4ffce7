// SPDX-License-Identifier: Apache-2.0

package pin_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/pin"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

const (
	shell = "69528db6eb31577a8c3668f9faa081f6"
	nlb0  = "d8424dc4a4a3c413f89e433683f9040b"
	nlb3  = "f7df405cbd7acf7222f144b0b93acd18"
)

// shelf is a node's store with room for one file, and the registry that it is filled from.
type shelf struct {
	*artifact.Store
	registry *fpgaregistry.Registry
	client   *registry.Client
	t        *testing.T
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	behind := fpgaregistry.Start(t)
	client, err := registry.NewClient(registry.Config{
		PlainHTTP: []string{behind.Host}, Tries: 1, Backoff: time.Millisecond, MaxWait: time.Millisecond,
	})
	check.Must(t, err)
	store, err := artifact.OpenStore(t.TempDir(), artifact.StoreConfig{MaxBytes: int64(len(fpgaregistry.GBS(shell, nlb0)))})
	check.Must(t, err)
	t.Cleanup(func() { check.Must(t, store.Close()) })
	return &shelf{Store: store, registry: behind, client: client, t: t}
}

func (s *shelf) kinds() step.Kinds {
	return step.Kinds{pin.StepKind: pin.Kind(func() (*artifact.Store, error) { return s.Store, nil })}
}

// file pushes a file and says how to fetch it.
func (s *shelf) file(name, afu string) pin.Params {
	s.t.Helper()
	image := s.registry.Image(s.t, "team/"+name, shell, afu)
	return pin.Params{Reference: s.registry.Host + "/team/" + name + "@" + image.Manifest, Digest: image.Layer, Size: image.Size}
}

// fetch brings a file to the store. Where there is no room for it, another one goes.
func (s *shelf) fetch(p pin.Params) error {
	s.t.Helper()
	ref, err := artifact.ParseReference(p.Reference)
	check.Must(s.t, err)
	return s.Fetch(s.t.Context(), s.client.Source(ref, nil), artifact.Descriptor{Digest: digest(s.t, p.Digest), Size: p.Size})
}

func digest(t *testing.T, text string) artifact.Digest {
	t.Helper()
	d, err := artifact.ParseDigest(text)
	check.Must(t, err)
	return d
}

func (s *shelf) wantPins(p pin.Params, want ...string) {
	s.t.Helper()
	got, err := s.Pins(digest(s.t, p.Digest))
	check.Must(s.t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("pins (-want +got):\n%s", diff)
	}
}

// TestStep: what the step says of a file that is in the store, never was, or was evicted after the claim was planned. Applied or not, it
// can be undone, which unpins the file.
func TestStep(t *testing.T) {
	for _, tc := range []struct {
		name string
		// before is what happens to the store before the step is applied.
		before   func(s *shelf, p pin.Params) error
		optional bool
		want     error
	}{
		{"fetched", func(s *shelf, p pin.Params) error { return s.fetch(p) }, false, nil},
		{"never fetched", func(*shelf, pin.Params) error { return nil }, false, pin.ErrEvicted},
		{
			"evicted",
			func(s *shelf, p pin.Params) error { return errors.Join(s.fetch(p), s.fetch(s.file("other", nlb3))) },
			false, pin.ErrEvicted,
		},
		{"fetched in case of need", func(s *shelf, p pin.Params) error { return s.fetch(p) }, true, nil},
		{"missing, and wanted in case of need", func(*shelf, pin.Params) error { return nil }, true, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newShelf(t)
			p := s.file("nlb0", nlb0)
			p.Optional = tc.optional
			check.Must(t, tc.before(s, p))
			made, err := p.Step("u1")
			check.Must(t, err)
			if p.Owner != "" || made.Kind != pin.StepKind || made.Target != p.Digest {
				t.Errorf("step %s for %q", made, p.Owner)
			}
			requests := s.registry.Requests.Load()
			for range 2 { // applying twice is applying once
				if err := s.kinds().Apply(t.Context(), made); !errors.Is(err, tc.want) {
					t.Errorf("applied: %v, want %v", err, tc.want)
				} else if err != nil && !strings.Contains(err.Error(), p.Reference) {
					t.Errorf("%v: does not say which file", err)
				}
				s.wantPins(p, "u1")
			}
			if err := s.kinds().Verify(t.Context(), made); !errors.Is(err, tc.want) {
				t.Errorf("verified: %v, want %v", err, tc.want)
			}
			for range 2 { // undoing twice is undoing once
				check.Must(t, s.kinds().Undo(t.Context(), made))
				s.wantPins(p)
			}
			if s.registry.Requests.Load() != requests {
				t.Error("the step asked the registry")
			}
		})
	}
}

// TestPinnedStays: a file that a claim needs is not evicted for another, and is kept until the last claim gave it back.
func TestPinnedStays(t *testing.T) {
	s := newShelf(t)
	p, other := s.file("nlb0", nlb0), s.file("other", nlb3)
	check.Must(t, s.fetch(p))
	first, err := p.Step("u1")
	check.Must(t, err)
	second, err := p.Step("u2")
	check.Must(t, err)
	check.Must(t, s.kinds().Apply(t.Context(), first))
	check.Must(t, s.kinds().Apply(t.Context(), second))
	s.wantPins(p, "u1", "u2")
	check.Must(t, s.kinds().Undo(t.Context(), first))
	s.wantPins(p, "u2")
	if s.fetch(other) == nil {
		t.Error("there was room for another file")
	}
	check.Must(t, s.kinds().Verify(t.Context(), second))
	check.Must(t, s.kinds().Undo(t.Context(), second))
	check.Must(t, s.kinds().Verify(t.Context(), second)) // the next claim finds it
	check.Must(t, s.fetch(other))
	if err := s.kinds().Verify(t.Context(), second); !errors.Is(err, pin.ErrEvicted) {
		t.Errorf("verified: %v, want %v", err, pin.ErrEvicted)
	}
}

// TestParameters: parameters are read from a record on disk, which may be any.
func TestParameters(t *testing.T) {
	s := newShelf(t)
	p := s.file("nlb0", nlb0)
	for _, params := range []string{
		`[]`, `{}`, `{"digest":"sha256:../../etc","reference":"r.example/a@` + p.Digest + `","owner":"u1"}`,
		`{"digest":"` + p.Digest + `","reference":"none","owner":"u1"}`,
		`{"digest":"` + p.Digest + `","reference":"r.example/a@` + p.Digest + `","owner":"../u1"}`,
	} {
		if err := s.kinds().Apply(t.Context(), step.Step{Kind: pin.StepKind, Params: []byte(params)}); err == nil {
			t.Errorf("%s was applied", params)
		}
	}
	for _, params := range []string{`[]`, `{}`} {
		made := step.Step{Kind: pin.StepKind, Params: []byte(params)}
		if s.kinds().Undo(t.Context(), made) == nil || s.kinds().Verify(t.Context(), made) == nil {
			t.Errorf("%s was undone or verified", params)
		}
	}
}

// TestStepFormat: the step is in records on disk, which later versions read.
func TestStepFormat(t *testing.T) {
	p := pin.Params{
		Reference: "r.example/a@sha256:1", Digest: "sha256:2", Size: 3, Optional: true, SecretsIn: "team-a", Secrets: []string{"pull"},
	}
	made, err := p.Step("u1")
	check.Must(t, err)
	const want = `{"kind":"artifact.fetch","target":"sha256:2","params":{"reference":"r.example/a@sha256:1","digest":"sha256:2","size":3,` +
		`"optional":true,"owner":"u1","secretsIn":"team-a","secrets":["pull"]}}`
	got, err := json.Marshal(made)
	check.Must(t, err)
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("step (-want +got):\n%s", diff)
	}
}

// TestNoStore: a store that cannot be opened fails the step, and the steps with it.
func TestNoStore(t *testing.T) {
	broken := errors.New("the disk is gone")
	kinds := step.Kinds{pin.StepKind: pin.Kind(func() (*artifact.Store, error) { return nil, broken })}
	s := newShelf(t)
	p := s.file("nlb0", nlb0)
	made, err := p.Step("u1")
	check.Must(t, err)
	for name, do := range map[string]func(context.Context, step.Step) error{"apply": kinds.Apply, "verify": kinds.Verify, "undo": kinds.Undo} {
		if err := do(t.Context(), made); !errors.Is(err, broken) {
			t.Errorf("%s: %v, want %v", name, err, broken)
		}
	}
}
