// SPDX-License-Identifier: Apache-2.0

package region_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/test/check"
)

// TestFailures: so many may fail within an hour, and as many as may still fail may run. It outlives the process.
func TestFailures(t *testing.T) {
	const limit = 2
	dir := filepath.Join(t.TempDir(), "regions")
	contents := region.OpenContents(quick(), dir)
	check.Must(t, contents.Make())
	start := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	now := clocktesting.NewFakePassiveClock(start)
	failures := region.OpenFailures(contents, limit, now)
	of := func(namespace string) *region.Claim {
		return &region.Claim{Namespace: namespace, NamespaceUID: namespace + "-1"}
	}
	begin := func(namespace string) func(bool) error {
		t.Helper()
		end, err := failures.Begin(t.Context(), of(namespace))
		check.Must(t, err)
		return end
	}
	full := func(namespace string) {
		t.Helper()
		if _, err := failures.Begin(check.Passed(t), of(namespace)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want to wait", err)
		}
	}
	refused := func(until time.Time) {
		t.Helper()
		_, err := failures.Begin(t.Context(), of("team-b"))
		for _, err := range []error{err, failures.Check(of("team-b"))} {
			limited, ok := errors.AsType[*region.TooManyFailuresError](err)
			if !ok || !limited.Until.Equal(until) || limited.Namespace != "team-b" {
				t.Errorf("got %v, want a refusal until %s", err, until)
			}
		}
		check.Must(t, failures.Check(of("team-a")))
	}

	first, second := begin("team-b"), begin("team-b")
	full("team-b")
	check.Must(t, begin("team-a")(false))
	waits := make(chan error, 1)
	go func() {
		end, err := failures.Begin(t.Context(), of("team-b"))
		if err == nil {
			err = end(false)
		}
		waits <- err
	}()
	check.Must(t, first(false)) // has a place for the one that waits
	check.Must(t, <-waits)
	check.Must(t, second(true))
	third := begin("team-b")
	full("team-b") // one may fail still
	now.SetTime(start.Add(10 * time.Minute))
	check.Must(t, third(true))
	refused(start.Add(time.Hour))
	failures = region.OpenFailures(contents, limit, now)
	refused(start.Add(time.Hour))
	// A namespace of that name that was made since is another tenant.
	check.Must(t, failures.Check(&region.Claim{Namespace: "team-b", NamespaceUID: "team-b-2"}))
	now.SetTime(start.Add(time.Hour))
	check.Must(t, begin("team-b")(true))
	refused(start.Add(70 * time.Minute))

	t.Run("no file is a device's", func(t *testing.T) {
		names, err := os.ReadDir(dir)
		check.Must(t, err)
		if len(names) != 1 {
			t.Fatalf("files %v, want one", names)
		}
		if _, err := contents.Read(names[0].Name()[:len(names[0].Name())-len(".json")]); err == nil {
			t.Error("a device could have the name of the file")
		}
		check.Must(t, os.WriteFile(filepath.Join(dir, names[0].Name()), []byte("{"), 0o600))
		check.Must(t, failures.Check(of("team-b")))
		check.Must(t, begin("team-b")(true))
		check.Must(t, begin("team-b")(true))
		if err := failures.Check(of("team-b")); err == nil {
			t.Error("a damaged file is not replaced")
		}
		check.Must(t, contents.Destroy())
		check.Must(t, failures.Check(of("team-b")))
	})
	t.Run("no limit", func(t *testing.T) {
		for _, f := range []*region.Failures{nil, region.OpenFailures(contents, 0, now)} {
			check.Must(t, f.Check(of("team-b")))
			end, err := f.Begin(t.Context(), of("team-b"))
			check.Must(t, err)
			check.Must(t, end(true))
		}
	})
}

// TestClearingFails: memory counts as cleared only after the time, and if the region works then. Until then nobody knows what it holds.
func TestClearingFails(t *testing.T) {
	p := start(t, machine(card(1)))
	before := p.program(theirs(), p.image(nlb3))
	check.Must(t, p.apply(before))
	check.Must(t, p.undo(before))
	scrub := &region.Scrub{Device: first, Claim: ours(), Blank: p.blank(), Timeout: time.Minute}
	scrub.Blank.ClearTime = time.Hour
	still := clocktesting.NewFakeClock(time.Unix(0, 0))
	p.clock = still
	p = p.process()
	ctx, pass := check.Deadline(t)
	ended := make(chan error, 1)
	go func() { ended <- p.applyIn(ctx, scrub) }()
	check.Eventually(t, "the memory is being cleared", still.HasWaiters)
	pass()
	wants(t, <-ended, context.DeadlineExceeded, "clear the memory")
	p.clock = nil
	if c := p.content(); !c.Unknown || c.Data() != theirs().Namespace {
		t.Errorf("known as %+v while the memory is cleared", c)
	}
	p.shows(0, 0, nothing)
	p = p.process() // which finds it halfway
	scrub.Blank.ClearTime = time.Millisecond
	check.Must(t, p.apply(scrub))
	p.holds(wiped(scrub.Blank))
}
