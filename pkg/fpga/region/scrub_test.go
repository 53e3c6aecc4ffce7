// SPDX-License-Identifier: Apache-2.0

package region_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// TestScrub is what happens to a region before a claim of team-a gets it.
func TestScrub(t *testing.T) {
	used := func(c region.Claim, release region.Release) func(p *programmer) {
		return func(p *programmer) {
			program := p.program(c, p.image(nlb3), released(release, p.blank()))
			check.Must(p.t, p.apply(program))
			check.Must(p.t, p.undo(program))
		}
	}
	broken := func(p *programmer) {
		p.Fault(fpgasim.Fault{On: fpgasim.OnPR, AFU: nlb0, Times: 2})
		wants(p.t, p.apply(p.program(next(), p.image(nlb3))), dfl.ErrWrongAFU)
	}
	for _, tc := range []struct {
		name            string
		before          func(p *programmer)
		blank, required bool
		// plain: the blank image clears no memory. keepMemory: a class accepts that.
		plain, keepMemory bool
		// keep: the claim needs what is there.
		keep  bool
		wipes bool
		err   error
	}{
		{name: "nobody was there", before: func(*programmer) {}, blank: true, required: true},
		{name: "nobody was there, and no blank image", before: func(*programmer) {}, required: true},
		{name: "the same namespace", before: used(next(), region.ReleaseKeep), blank: true, required: true},
		{name: "another namespace", before: used(theirs(), region.ReleaseKeep), blank: true, wipes: true},
		{name: "another namespace, required", before: used(theirs(), region.ReleaseReset), blank: true, required: true, wipes: true},
		{name: "another namespace wiped it on release", before: used(theirs(), region.ReleaseBlank), blank: true, required: true},
		{name: "another namespace, no blank image", before: used(theirs(), region.ReleaseReset), err: region.ErrMemory},
		{name: "another namespace, no blank image, memory accepted", before: used(theirs(), region.ReleaseReset), keepMemory: true},
		{
			name: "another namespace, and the blank image clears no memory", before: used(theirs(), region.ReleaseReset), blank: true,
			plain: true, err: region.ErrMemory,
		},
		{
			name: "another namespace, and the blank image clears no memory, accepted", before: used(theirs(), region.ReleaseReset), blank: true,
			plain: true, keepMemory: true, wipes: true,
		},
		{
			name: "another namespace wiped it on release, and nothing cleared the memory",
			before: func(p *programmer) {
				blank := p.image(nothing)
				program := p.program(theirs(), p.image(nlb3), released(region.ReleaseBlank, blank))
				check.Must(p.t, p.apply(program))
				check.Must(p.t, p.undo(program))
				p.holds(region.Content{Digest: blank.Digest, AFU: nothing, BootID: boot, Memory: "team-b"})
			},
			blank: true, wipes: true,
		},
		{
			name: "another namespace, no blank image, required", before: used(theirs(), region.ReleaseReset), required: true,
			keepMemory: true, err: region.ErrTraces,
		},
		{
			name: "another namespace, and nothing may be wiped", before: used(theirs(), region.ReleaseKeep), blank: true, keep: true,
			err: region.ErrTraces,
		},
		{name: "the same namespace, and nothing may be wiped", before: used(next(), region.ReleaseKeep), blank: true, keep: true},
		{name: "unknown, and nothing may be wiped", before: broken, blank: true, keep: true},
		{name: "unknown, of the same namespace", before: broken, blank: true, wipes: true},
		{name: "unknown, no blank image", before: broken},
		{name: "unknown, no blank image, required", before: broken, required: true, err: region.ErrTraces},
		{name: "damaged", before: func(p *programmer) { used(next(), region.ReleaseReset)(p); p.damage() }, blank: true, wipes: true},
		{
			name: "damaged, and the memory is not cleared", before: func(p *programmer) { used(next(), region.ReleaseReset)(p); p.damage() },
			blank: true, plain: true, err: region.ErrMemory,
		},
		{
			name: "damaged, no blank image", before: func(p *programmer) { used(next(), region.ReleaseReset)(p); p.damage() },
			required: true, keepMemory: true, err: region.ErrTraces,
		},
		{
			name: "before a reboot", before: func(p *programmer) { used(theirs(), region.ReleaseReset)(p); p.boot = otherBoot },
			required: true, keepMemory: true, err: region.ErrTraces,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, machine(card(1)))
			tc.before(p)
			p = p.process()
			known := p.content()
			scrub := &region.Scrub{Device: first, Claim: ours(), Required: tc.required, Keep: tc.keep, Timeout: time.Minute}
			scrub.KeepMemory = tc.keepMemory
			if tc.blank {
				scrub.Blank = p.blank()
			}
			if tc.plain {
				scrub.Blank.ClearTime = 0
			}
			var want []string
			if tc.wipes {
				want = lines(opened(0), pr(0))
			}
			var err error
			p.asks(want, func() { err = p.apply(scrub) })
			switch {
			case tc.err != nil:
				wants(t, err, tc.err, map[bool]string{false: shell, true: "program is Never"}[tc.keep])
			case err != nil:
				t.Error(err)
			case tc.wipes:
				want := region.Content{Digest: scrub.Blank.Digest, AFU: nothing, BootID: p.boot}
				if tc.plain {
					want.Memory = theirs().Namespace
				}
				p.holds(want)
				p.shows(0, 0, nothing)
			}
			if !tc.wipes {
				if diff := cmp.Diff(known, p.content()); diff != "" {
					t.Errorf("what is known changed (-want +got):\n%s", diff)
				}
			}
			p.asks(nil, func() {
				_ = p.apply(scrub) // As before, and there is nothing to wipe any more.
				check.Must(t, p.undo(scrub))
				check.Must(t, p.verify(scrub))
			})
		})
	}
}

// TestScrubFails: a region that was wiped halfway is the claim's that wiped it, until that gives it back.
func TestScrubFails(t *testing.T) {
	p := start(t, machine(card(1)))
	before := p.program(theirs(), p.image(nlb3))
	check.Must(t, p.apply(before))
	check.Must(t, p.undo(before))
	p.Fault(fpgasim.Fault{On: fpgasim.OnPR, Errno: "EIO", Status: "reconfig CRC error"})
	blank := p.blank()
	scrub := &region.Scrub{Device: first, Claim: ours(), Blank: blank, Timeout: time.Minute}
	wants(t, p.apply(scrub), nil, "reconfig CRC error", "may hold anything")
	if c := p.content(); !c.Unknown || c.Claim != ours().UID || c.Namespace != theirs().Namespace {
		t.Errorf("it is %+v, want unknown, by the claim, with the other tenant's traces", c)
	}
	program := p.program(ours(), p.image(nlb3), released(region.ReleaseReset, blank))
	wants(t, p.undo(program), dfl.ErrNotEnabled)
	check.Must(t, p.undo(scrub))
	p.Set(fpgasim.Set{Rebind: true})
	check.Must(t, p.undo(program))
	p.holds(wiped(blank))
	p.asks(nil, func() { check.Must(t, p.apply(scrub)) })
}

// TestScrubIsNotAnothers: a blank image for another interface is not tried, and neither is one that is none.
func TestScrubIsNotAnothers(t *testing.T) {
	p := start(t, machine(card(1)))
	before := p.program(theirs(), p.image(nlb3))
	check.Must(t, p.apply(before))
	check.Must(t, p.undo(before))
	known := p.content()
	lying := p.blank()
	p.files[lying.Digest] = gbs(shell, nlb0, "", 1000)
	p.asks(nil, func() {
		scrub := &region.Scrub{Device: first, Claim: ours(), Blank: clearing(p.keep(gbs(otherShell, nothing, "", 100))), Timeout: time.Minute}
		wants(t, p.apply(scrub), backend.ErrInterface)
		scrub.Blank = lying
		wants(t, p.apply(scrub), backend.ErrDigest)
	})
	if diff := cmp.Diff(known, p.content()); diff != "" {
		t.Errorf("what is known changed (-want +got):\n%s", diff)
	}
}
