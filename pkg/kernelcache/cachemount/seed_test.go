// SPDX-License-Identifier: Apache-2.0

package cachemount

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
	"github.com/fettle-dev/fettle/pkg/step"
)

// TestSeed: which files are links, and what they take.
func TestSeed(t *testing.T) {
	long := strings.Repeat("k", hostmount.ShortLink-len("/.fettle/key-0/d/")) // the longest that takes no page
	fsys := fstest.MapFS{}
	for _, name := range []string{"group", "d/link", "d/" + long, "d/" + long + "k", "d/x.lock", "vllm_compile_cache.py"} {
		fsys["io.vllm.cache/"+name] = &fstest.MapFile{Data: []byte("text")}
	}
	fsys["io.vllm.cache/d/large.lock"] = &fstest.MapFile{Data: make([]byte, maxWritten+1)}
	m := &kernelcache.Mount{
		Source: "io.vllm.cache", Target: "/cache", Relocation: &kernelcache.Relocation{Files: []string{"group"}, Bytes: 10},
	}
	s := newSeed(&kernelcache.Cache{Type: kernelcache.VLLM}, m, "/.fettle/key-0")
	forms := map[string]seedForm{}
	err := s.each(fsys, func(n seedNode) error {
		forms[n.name] = n.form
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]seedForm{
		"d": seedDir, "d/link": seedLink, "d/" + long: seedLink, "d/" + long + "k": seedLink, "d/large.lock": seedLink,
		"d/x.lock": seedCopy, "vllm_compile_cache.py": seedCopy, "group": seedRewritten,
	}
	if diff := cmp.Diff(want, forms); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	fill, err := s.measure(fsys, 8)
	if err != nil {
		t.Fatal(err)
	}
	if pages := (fill.Bytes - 10) / hostmount.Page; pages != 2+2+1 || fill.Entries != 8 { // what is rewritten, copies, the longest link
		t.Errorf("%d pages and %d entries", pages, fill.Entries)
	}
	if fill, err := s.measure(fsys, 3); !errors.Is(err, errTooMany) || fill.Entries != 4 {
		t.Errorf("with at most 3 entries: %v after %d", err, fill.Entries)
	}
}

// TestCheckFill: what is too much for one claim is refused, with another way to have the cache.
func TestCheckFill(t *testing.T) {
	m := &Mounter{MaxEntries: 100}
	for want, tt := range map[string]struct {
		access Access
		fill   Fill
	}{
		"more than 100 files": {Seed, Fill{Entries: 101}}, "use ReadOnly, or Overlay": {Seed, Fill{Entries: 101}},
		"mount the cache where its producer had it": {Overlay, Fill{Entries: 101}},
		"at most 64 MiB": {ReadOnly, Fill{Entries: 1, Bytes: maxFilled}},
	} {
		if err := m.checkFill(use(tt.access), tt.fill); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", tt, err, want)
		}
	}
	if err := m.checkFill(use(Seed), Fill{Entries: 100, Bytes: 1 << 20}); err != nil {
		t.Error(err)
	}
}

// TestNeeds: a claim needs its mounts, what it may write to each, what is made for it, and that its image stays.
func TestNeeds(t *testing.T) {
	u := use(Seed)
	u.Bytes, u.Fill, u.Size = 4096, Fill{Entries: 7, Bytes: 9}, 11
	kinds := step.Kinds{StepKind: newFixture(t).kind()}
	for access, memory := range map[Access]int64{Seed: 2 * hostmount.MemoryOf(4096), Overlay: 2 * hostmount.MemoryOf(4096), ReadOnly: 0} {
		u.Access = access
		s, err := u.Step()
		if err != nil {
			t.Fatal(err)
		}
		got, err := kinds.Needs(s)
		if err != nil {
			t.Fatal(err)
		}
		sums := map[budget.Resource]int64{}
		for _, n := range got {
			sums[n.Resource] += n.Amount
		}
		want := map[budget.Resource]int64{budget.Pins: 1, budget.PinnedBytes: 11, budget.SeedEntries: 7, budget.SeedBytes: 9, budget.Mounts: 4}
		if memory > 0 {
			want[budget.Memory] = memory
		}
		if diff := cmp.Diff(want, sums); diff != "" {
			t.Errorf("%s (-want +got):\n%s", access, diff)
		}
	}
}

// TestPanicIsAnError: what a tenant's files have the reader do ends that reading, and nothing else.
func TestPanicIsAnError(t *testing.T) {
	err := atLowPriority(func() error { panic("out of range") })
	if !errors.Is(err, kernelcache.ErrInvalid) || !strings.Contains(err.Error(), "out of range") {
		t.Errorf("got %v", err)
	}
}
