// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/test/check"
)

// filled is a store with a clock that steps a minute a use, and blobs of 1000 bytes.
func filled(t *testing.T, h *hub, config StoreConfig, blobs int) (*Store, *clocktesting.FakeClock, []Descriptor) {
	t.Helper()
	fake := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	config.Clock = fake
	s := newStore(t, config)
	var ds []Descriptor
	for i := range blobs {
		ds = append(ds, h.pushBlob(blobBytes(uint64(100+i), 1000)))
		fake.Step(time.Minute)
		check.Must(t, s.Fetch(t.Context(), h, ds[i]))
	}
	return s, fake, ds
}

func holds(t *testing.T, s *Store, ds []Descriptor) string {
	t.Helper()
	var b strings.Builder
	for i, d := range ds {
		if _, err := os.Stat(s.path(blobName(d.Digest))); err == nil {
			fmt.Fprint(&b, i)
		}
	}
	return b.String()
}

func TestEvictionOrder(t *testing.T) {
	h := newHub()
	s, fake, ds := filled(t, h, StoreConfig{MaxBytes: 4000}, 4)
	use := func(do func()) {
		fake.Step(time.Minute)
		do()
	}
	use(func() { readBlob(t, s, ds[0].Digest) })                                   // opened
	use(func() { check.Must(t, s.Fetch(t.Context(), h, ds[1])) })                  // asked for
	use(func() { check.Must(t, s.Pin(t.Context(), ds[2].Digest, "claim-1")) })     // pinned, though used longest ago
	use(func() { check.Must(t, s.Unpin(t.Context(), ds[3].Digest, "never-did")) }) // given back
	add := func(n int) error {
		d := h.pushBlob(blobBytes(uint64(200+len(ds)), n))
		ds = append(ds, d)
		fake.Step(time.Minute)
		return s.Fetch(t.Context(), h, d)
	}
	check.Must(t, add(1000))
	if got := holds(t, s, ds); got != "1234" {
		t.Errorf("holds %s, want 1234", got)
	}
	check.Must(t, add(2000))
	if got := holds(t, s, ds); got != "245" {
		t.Errorf("holds %s, want 245", got)
	}
	wantErr(t, add(3001), ErrNoSpace, "quota of 4000 is 1 short", "1000 bytes are pinned")
	wantErr(t, add(4001), ErrTooLarge, "4000")
	if got := holds(t, s, ds); got != "245" {
		t.Errorf("evicted for what does not fit: holds %s", got)
	}
	check.Must(t, s.Unpin(t.Context(), ds[2].Digest, "claim-1"))
	check.Must(t, s.Fetch(t.Context(), h, ds[6]))
	if got := holds(t, s, ds); got != "6" {
		t.Errorf("holds %s, want 6", got)
	}
	checkStore(t, s, 1)
}

// TestFetchOpportunistic: it evicts no blob, no partial one and no trash, and fetches only what fits beside them.
func TestFetchOpportunistic(t *testing.T) {
	h := newHub()
	s, fake, ds := filled(t, h, StoreConfig{MaxBytes: 4000, Margin: 100}, 2)
	s.free = func() (int64, error) { return 1100, nil }
	add := func(n int) error {
		d := h.pushBlob(blobBytes(uint64(300+len(ds)), n))
		ds = append(ds, d)
		fake.Step(time.Minute)
		return s.FetchOpportunistic(t.Context(), h, d)
	}
	check.Must(t, add(1000))
	if pins, err := s.Pins(ds[2].Digest); err != nil || len(pins) > 0 {
		t.Errorf("pinned by %v (%v)", pins, err)
	}
	reads := h.count()
	wantErr(t, add(1001), ErrNoSpace, "quota of 4000 is 1 short")
	check.Must(t, s.moveToTrash(blobName(ds[0].Digest), ds[0].Digest))
	wantErr(t, add(1001), ErrNoSpace, "1100 free", "is 1 short")
	if got := holds(t, s, ds); got != "12" || h.count() != reads {
		t.Errorf("holds %s, and asked the registry for what does not fit %d times", got, h.count()-reads)
	}
	if u, err := s.Usage(); err != nil || u.Trash != 1000 {
		t.Errorf("trash of %d bytes (%v), want 1000", u.Trash, err)
	}

	// What somebody may still resume counts, however old it is.
	s.free = func() (int64, error) { return 1 << 30, nil }
	rest := partialName(DigestOf([]byte("other")), 1500)
	check.Must(t, os.WriteFile(s.path(rest), nil, 0o600))
	old := fake.Now().Add(-defaultPartialAge - time.Hour)
	check.Must(t, os.Chtimes(s.path(rest), old, old))
	wantErr(t, s.FetchOpportunistic(t.Context(), h, ds[0]), ErrNoSpace, "500 short")
	if got := partials(t, s); len(got) != 1 {
		t.Errorf("partials %v", got)
	}
	check.Must(t, s.Fetch(t.Context(), h, ds[0])) // a claim has them all go
	if got := holds(t, s, ds); got != "012" || len(partials(t, s)) != 0 {
		t.Errorf("holds %s and %v", got, partials(t, s))
	}

	// One that is here is not used by this, so it goes first.
	reads = h.count()
	fake.Step(time.Minute)
	check.Must(t, s.FetchOpportunistic(t.Context(), h, ds[1]))
	if h.count() != reads {
		t.Error("asked the registry for what is here")
	}
	check.Must(t, s.Fetch(t.Context(), h, h.pushBlob(blobBytes(400, 2000))))
	if got := holds(t, s, ds); got != "02" {
		t.Errorf("holds %s, want 02", got)
	}
}

// TestDigests: the complete blobs, in order, and nothing else.
func TestDigests(t *testing.T) {
	h := newHub()
	s, _, ds := filled(t, h, StoreConfig{}, 4)
	check.Must(t, os.WriteFile(s.path(partialName(DigestOf([]byte("other")), 700)), nil, 0o600))
	check.Must(t, os.WriteFile(s.path(blobsDir+"/note"), nil, 0o600))
	check.Must(t, s.moveToTrash(blobName(ds[3].Digest), ds[3].Digest))
	var want []string
	for _, d := range ds[:3] {
		want = append(want, d.Digest.String())
	}
	slices.Sort(want)
	got, err := s.Digests()
	check.Must(t, err)
	var texts []string
	for _, d := range got {
		texts = append(texts, d.String())
	}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Error(diff)
	}
	check.Must(t, s.Close())
	if _, err := s.Digests(); err == nil {
		t.Error("a store that is closed has digests")
	}
}

func TestUsageAndSweep(t *testing.T) {
	h := newHub()
	s, fake, ds := filled(t, h, StoreConfig{MaxBytes: 5000, Pace: time.Minute}, 4)
	check.Must(t, s.Pin(t.Context(), ds[1].Digest, "region-fpga-0"))
	check.Must(t, s.Pin(t.Context(), ds[1].Digest, "a3b8f042-1e16-4f0a-8a8d-421be1cbd521"))
	check.Must(t, os.WriteFile(s.path(partialName(DigestOf([]byte("other")), 700)), make([]byte, 300), 0o600))
	s.free = func() (int64, error) { return 12345, nil }
	u, err := s.Usage()
	check.Must(t, err)
	want := Usage{Bytes: 4000, Pinned: 1000, Partial: 700, MaxBytes: 5000, Free: 12345}
	for i, d := range ds {
		used := fake.Now().Add(time.Duration(i-3) * time.Minute)
		want.Blobs = append(want.Blobs, BlobUsage{Digest: d.Digest, Size: 1000, LastUsed: used})
	}
	want.Blobs[1].Pins = []string{"a3b8f042-1e16-4f0a-8a8d-421be1cbd521", "region-fpga-0"}
	if diff := cmp.Diff(want, u); diff != "" {
		t.Error(diff)
	}
	pins, err := s.Pins(ds[1].Digest)
	if diff := cmp.Diff(want.Blobs[1].Pins, pins); diff != "" || err != nil {
		t.Error(diff, err)
	}

	// A smaller quota: the partial goes, then the least used, but for the pinned one. The trash is emptied slowly.
	s.config.MaxBytes = 1500
	done := make(chan error, 1)
	go func() { done <- s.Sweep(t.Context()) }()
	for left := 2; left >= 0; left-- {
		waitFor(t, fmt.Sprintf("%d in the trash", left), func() bool {
			entries, err := os.ReadDir(s.path(trashDir))
			return err == nil && len(entries) == left && (left == 0 || fake.HasWaiters())
		})
		fake.Step(time.Minute)
	}
	check.Must(t, <-done)
	if got := holds(t, s, ds); got != "1" || len(partials(t, s)) != 0 {
		t.Errorf("holds %s and %v", got, partials(t, s))
	}
	check.Must(t, s.Sweep(t.Context()))
	checkStore(t, s, 1)
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	check.Eventually(t, what, is)
}

func TestSweepEnds(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	s := newStore(t, StoreConfig{Clock: fake})
	for _, name := range []string{"a", "b"} {
		check.Must(t, os.WriteFile(s.path(trashDir+"/"+name), nil, 0o600))
	}
	ctx, pass := check.Deadline(t)
	swept := make(chan error, 1)
	go func() { swept <- s.Sweep(ctx) }()
	check.Eventually(t, "the sweep pauses", fake.HasWaiters)
	pass()
	if err := <-swept; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), s.dir) {
		t.Errorf("got %v", err)
	}
}

// TestDiskIsShort: the disk's free bytes count with what others reserved, the trash is used at once, and the margin stays.
func TestDiskIsShort(t *testing.T) {
	h := newHub()
	s, _, ds := filled(t, h, StoreConfig{Margin: 500}, 3)
	const disk = 4600
	s.free = func() (int64, error) { // of a small disk: what lies in the directory takes some of it
		used := int64(0)
		for _, dir := range []string{blobsDir, tmpDir, trashDir} {
			check.Must(t, s.each(dir, func(_ string, info fs.FileInfo) { used += info.Size() }))
		}
		return disk - used, nil
	}
	next := h.pushBlob(blobBytes(50, 1000))
	check.Must(t, s.Fetch(t.Context(), h, next))
	if got := holds(t, s, append(ds, next)); got != "0123" {
		t.Errorf("holds %s", got)
	}
	check.Must(t, s.moveToTrash(blobName(ds[0].Digest), ds[0].Digest)) // in the trash, which is as good as free
	check.Must(t, s.Fetch(t.Context(), h, ds[0]))
	if got := holds(t, s, append(ds, next)); got != "0123" {
		t.Errorf("holds %s", got)
	}
	larger := h.pushBlob(blobBytes(51, 1500))
	check.Must(t, s.Fetch(t.Context(), h, larger))
	if got := holds(t, s, append(ds, next, larger)); got != "034" {
		t.Errorf("holds %s", got)
	}

	// Somebody fetches 600 bytes, of which 100 are here: 500 more are not ours.
	other := Descriptor{Digest: DigestOf([]byte("other")), Size: 600}
	check.Must(t, os.WriteFile(s.path(partialName(other.Digest, other.Size)), make([]byte, 100), 0o600))
	unlock, err := s.lockDigest(t.Context(), other.Digest)
	check.Must(t, err)
	for _, d := range []Descriptor{ds[0], next, larger} {
		check.Must(t, s.Pin(t.Context(), d.Digest, "x"))
	}
	small := h.pushBlob(blobBytes(52, 1))
	err = s.Fetch(t.Context(), h, small)
	wantErr(t, err, ErrNoSpace, "1000 free", "500 of which are for others", "1 short")
	unlock()
	check.Must(t, s.Fetch(t.Context(), h, small)) // the fetch has ended, so no space is reserved
	check.Must(t, s.Fetch(t.Context(), h, h.pushBlob(blobBytes(53, 550))))
	if p := partials(t, s); len(p) != 0 {
		t.Errorf("it went for nobody: %v", p)
	}
	s.free = func() (int64, error) { return 0, errors.New("no such disk") }
	if err := s.Fetch(t.Context(), h, h.pushBlob([]byte("y"))); err == nil || !IsRetryable(err) {
		t.Error(err)
	}
	if _, err := s.Usage(); err == nil {
		t.Error("counted")
	}
}

func TestOldPartials(t *testing.T) {
	h := newHub()
	s, fake, _ := filled(t, h, StoreConfig{PartialAge: time.Hour}, 1)
	name := s.path(partialName(DigestOf([]byte("old")), 10))
	check.Must(t, os.WriteFile(name, []byte("x"), 0o600))
	check.Must(t, os.Chtimes(name, fake.Now(), fake.Now()))
	fake.Step(59 * time.Minute)
	check.Must(t, s.Sweep(t.Context()))
	if len(partials(t, s)) != 1 {
		t.Error("gone too early")
	}
	fake.Step(2 * time.Minute)
	check.Must(t, s.Sweep(t.Context()))
	if len(partials(t, s)) != 0 {
		t.Error("still there")
	}
	checkStore(t, s, 1)
}

func TestOpenStoreCleans(t *testing.T) {
	h := newHub()
	s, _, ds := filled(t, h, StoreConfig{}, 1)
	resumable := partialName(DigestOf([]byte("x")), 5)
	for _, name := range []string{
		resumable, partialName(ds[0].Digest, 1000), "tmp/junk", "tmp/" + someHex, "tmp/" + someHex + ".-1", "tmp/" + someHex + ".07",
	} {
		check.Must(t, os.WriteFile(s.path(name), []byte("x"), 0o600))
	}
	check.Must(t, os.Chmod(s.dir, 0o755))
	held := DigestOf([]byte("held"))
	check.Must(t, os.WriteFile(s.path(partialName(held, 9)), nil, 0o600))
	unlock, err := s.lockDigest(t.Context(), held)
	check.Must(t, err)
	defer unlock()
	again := s.again(t)
	want := []string{filepath.Base(resumable), filepath.Base(partialName(held, 9))}
	slices.Sort(want)
	got := partials(t, again)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if info, err := os.Stat(s.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("open to others: %v", info.Mode())
	}
	checkStore(t, again, 1)
}

// TestWrong: the check that these tests make of a store finds one bit.
func TestWrong(t *testing.T) {
	h := newHub()
	s, _, ds := filled(t, h, StoreConfig{}, 2)
	checkStore(t, s, 2)
	path := s.path(blobName(ds[1].Digest))
	data, err := os.ReadFile(path)
	check.Must(t, err)
	data[500] ^= 4
	check.Must(t, os.WriteFile(path, data, 0o600))
	if bad, good := wrong(s.dir); good != 1 || len(bad) != 1 || !strings.Contains(bad[0], ds[1].Digest.Hex()) {
		t.Errorf("%d are good, wrong: %v", good, bad)
	}
}

// TestHostileNames: nothing that a user wrote becomes a path, and nothing odd in the directory is followed or believed.
func TestHostileNames(t *testing.T) {
	h := newHub()
	s, _, ds := filled(t, h, StoreConfig{}, 1)
	for _, owner := range []string{
		"", ".", "..", "../x", "a/b", "/etc/passwd", "a\x00b", ".hidden", "-x", "a b", "a\n", strings.Repeat("a", 129), "é",
	} {
		for verb, err := range map[string]error{
			"pin": s.Pin(t.Context(), ds[0].Digest, owner), "unpin": s.Unpin(t.Context(), ds[0].Digest, owner),
		} {
			wantErr(t, err, ErrInvalid, verb, "owner")
		}
	}
	wantErr(t, s.Pin(t.Context(), Digest{}, "x"), ErrInvalid)
	if entries, err := os.ReadDir(s.path(pinsDir)); err != nil || len(entries) != 0 {
		t.Errorf("%v %v", entries, err)
	}

	outside := filepath.Join(t.TempDir(), "outside")
	check.Must(t, os.WriteFile(outside, []byte("secret"), 0o600))
	d := DigestOf([]byte("secret"))
	check.Must(t, os.Symlink(outside, s.path(blobName(d))))
	if _, err := s.Open(d); err == nil {
		t.Error("a link out of the store was followed")
	}
	directory := DigestOf([]byte("directory"))
	check.Must(t, os.Mkdir(s.path(blobName(directory)), 0o700))
	if _, err := s.Open(directory); err == nil {
		t.Error("a directory was opened as a blob")
	}
	check.Must(t, os.WriteFile(s.path(blobsDir+"/junk"), nil, 0o600))
	u, err := s.Usage()
	if err != nil || len(u.Blobs) != 1 || u.Bytes != 1000 {
		t.Errorf("%+v %v", u, err)
	}
	partial := h.pushBlob([]byte("partial"))
	check.Must(t, os.Symlink(outside, s.path(partialName(partial.Digest, partial.Size))))
	if err := s.Fetch(t.Context(), h, partial); err == nil {
		t.Error("a link out of the store was written to")
	}
	if data, err := os.ReadFile(outside); err != nil || string(data) != "secret" {
		t.Errorf("%q %v", data, err)
	}
}

func TestPins(t *testing.T) {
	h := newHub()
	s, _, ds := filled(t, h, StoreConfig{MaxBytes: 1000}, 1)
	absent := DigestOf([]byte("not here yet"))
	check.Must(t, s.Pin(t.Context(), absent, "early"))
	for range 2 {
		check.Must(t, s.Pin(t.Context(), ds[0].Digest, "claim-1"))
	}
	check.Must(t, s.Pin(t.Context(), ds[0].Digest, "claim-2"))
	other := s.again(t)
	next := h.pushBlob([]byte("next"))
	wantErr(t, other.Fetch(t.Context(), h, next), ErrNoSpace)
	for range 2 {
		check.Must(t, other.Unpin(t.Context(), ds[0].Digest, "claim-1"))
	}
	wantErr(t, other.Fetch(t.Context(), h, next), ErrNoSpace)
	check.Must(t, other.Unpin(t.Context(), ds[0].Digest, "claim-2"))
	check.Must(t, s.Fetch(t.Context(), h, next))
	check.Must(t, s.Sweep(t.Context()))
	wantPinDirs(t, s, absent)
	check.Must(t, errors.Join(
		s.Pin(t.Context(), next.Digest, "claim-1"), s.Unpin(t.Context(), next.Digest, "claim-1"), s.Unpin(t.Context(), absent, "early")))
	wantPinDirs(t, s, absent, next.Digest) // no claim waits for that
	check.Must(t, s.Sweep(t.Context()))
	wantPinDirs(t, s, next.Digest)
	unlock, err := s.lockNames(t.Context())
	check.Must(t, err)
	defer unlock()
	if err := s.Pin(check.Passed(t), absent, "x"); !errors.Is(err, context.DeadlineExceeded) || !IsRetryable(err) {
		t.Error(err)
	}
}

func wantPinDirs(t *testing.T, s *Store, of ...Digest) {
	t.Helper()
	entries, err := os.ReadDir(s.path(pinsDir))
	check.Must(t, err)
	var got, want []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	for _, d := range of {
		want = append(want, d.Hex())
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("directories for pins (-want +got):\n%s", diff)
	}
}

// TestPinsThatGo: who reads pins while the last of them goes reads none, and no error.
func TestPinsThatGo(t *testing.T) {
	s, _, ds := filled(t, newHub(), StoreConfig{MaxBytes: 1000}, 1)
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		for range 500 {
			if err := errors.Join(s.Pin(t.Context(), ds[0].Digest, "claim"), s.Unpin(t.Context(), ds[0].Digest, "claim")); err != nil {
				t.Error(err)
			}
		}
	})
	for going := true; going; {
		select {
		case <-done:
			going = false
		default:
		}
		if _, err := s.Pins(ds[0].Digest); err != nil {
			t.Error(err)
			break
		}
	}
	wg.Wait()
}

// TestPinAgainstEviction: what was pinned and fetched can be opened until it is unpinned, whatever others fetch meanwhile.
func TestPinAgainstEviction(t *testing.T) {
	h := newHub()
	s, _, ds := filled(t, h, StoreConfig{MaxBytes: 4000, Pace: time.Microsecond}, 8)
	s.config.Clock = clock.RealClock{}
	stores := []*Store{s, s.again(t)}
	var wg sync.WaitGroup
	opened, full := make([]int, 4), make([]int, 4)
	for worker := range 4 {
		wg.Go(func() {
			mine, owner := stores[worker%2], fmt.Sprintf("claim-%d", worker)
			for i := range 60 {
				d := ds[(i*(worker+1)+worker)%len(ds)]
				if err := mine.Pin(t.Context(), d.Digest, owner); err != nil {
					t.Error(err)
				}
				err := mine.Fetch(t.Context(), h, d)
				switch {
				case errors.Is(err, ErrNoSpace):
					full[worker]++
				case err != nil:
					t.Error(err)
				default:
					for range 3 {
						b, err := stores[i%2].Open(d.Digest)
						if err != nil {
							t.Errorf("pinned and gone: %v", err)
							continue
						}
						_ = b.Close()
						opened[worker]++
					}
				}
				if err := mine.Unpin(t.Context(), d.Digest, owner); err != nil {
					t.Error(err)
				}
				if i%10 == 0 {
					if err := mine.Sweep(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	u, err := s.Usage()
	check.Must(t, err)
	if u.Bytes > 4000 || u.Pinned != 0 {
		t.Errorf("%+v", u)
	}
	bad, _ := wrong(s.dir)
	t.Logf("opened %v, full %v, wrong %v", opened, full, bad)
	if len(bad) > 0 || slices.Contains(opened, 0) {
		t.Error("see above")
	}
}
