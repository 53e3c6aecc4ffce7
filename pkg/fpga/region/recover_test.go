// SPDX-License-Identifier: Apache-2.0

package region_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// TestOnceMore: one more attempt is made, and what the accelerator's id says after it counts.
func TestOnceMore(t *testing.T) {
	p := start(t, machine(card(1)))
	p.Fault(fpgasim.Fault{On: fpgasim.OnPR, AFU: nlb0})
	image := p.image(nlb3)
	p.asks(lines(opened(0), pr(0), pr(0)), func() { check.Must(t, p.apply(p.program(ours(), image))) })
	p.holds(held(image, ours()))
	if len(p.attempts) != 1 || p.attempts[0].Err != nil {
		t.Errorf("reported %+v, want one that went well", p.attempts)
	}
}

// failure is a way in which a programming leaves a region in an unknown state.
type failure struct {
	name  string
	fault fpgasim.Fault
	prs   []string
	cause error
	words string
	// dead: the port is disabled until its device is bound anew, whatever is programmed.
	dead bool
	// crashed: it says so itself, until it is programmed again.
	crashed bool
}

func failures() []failure {
	return []failure{
		{
			name: "CRC, and then the port is dead though the driver says that it is done", dead: true, prs: lines(pr(0, "EIO"), pr(0)),
			fault: fpgasim.Fault{Errno: "EIO", Status: "reconfig CRC error"}, cause: unix.EIO, words: "reconfig CRC error",
		},
		{
			name: "incompatible twice", dead: true, prs: lines(pr(0, "EIO"), pr(0, "EIO")),
			fault: fpgasim.Fault{Errno: "EIO", Status: "reconfig incompatible image", Times: 2}, cause: unix.EIO, words: "incompatible image",
		},
		{
			name: "no answer of the hardware", dead: true, prs: lines(pr(0, "ETIMEDOUT"), pr(0)),
			fault: fpgasim.Fault{Errno: "ETIMEDOUT"}, cause: unix.ETIMEDOUT,
		},
		{
			name: "another accelerator twice", prs: lines(pr(0), pr(0)),
			fault: fpgasim.Fault{AFU: nlb0, Times: 2}, cause: dfl.ErrWrongAFU, words: nlb0,
		},
		{
			name: "all f twice", prs: lines(pr(0), pr(0)), crashed: true,
			fault: fpgasim.Fault{AFU: allF, Times: 2}, cause: dfl.ErrDead,
		},
	}
}

// failed is a node on which a claim's programming went wrong.
func failed(t *testing.T, f failure) *programmer {
	t.Helper()
	p := start(t, machine(card(2)))
	f.fault.On = fpgasim.OnPR
	p.Fault(f.fault)
	p.asks(lines(opened(0), f.prs), func() {
		err := p.apply(p.program(ours(), p.image(nlb3)))
		if wants(t, err, f.cause, f.words, "may hold anything"); backend.KindOf(err) != backend.Unknown {
			t.Errorf("%v is %s, want unknown", err, backend.KindOf(err))
		}
	})
	p.holds(unknownBy(ours()))
	if len(p.attempts) != 1 || backend.KindOf(p.attempts[0].Err) != backend.Unknown || p.attempts[0].Claim != ours() {
		t.Errorf("reported %+v, want the one failure", p.attempts)
	}
	return p
}

// TestUnknown: nobody gets a region of which it is not known what it holds; the card's other one goes on.
func TestUnknown(t *testing.T) {
	for _, f := range failures() {
		t.Run(f.name, func(t *testing.T) {
			p := failed(t, f)
			p.asks(lines(opened(0), opened(0)), func() {
				wants(t, p.apply(p.program(next(), nil)), region.ErrUnknownState, "let a claim program it")
				wants(t, p.apply(p.program(next(), p.image(nlb0), mode(region.ModeNever))), region.ErrUnknownState)
			})
			p.asks(nil, func() {
				wants(t, p.verify(p.program(ours(), p.image(nlb3))), region.ErrUnknownState)
				wants(t, p.apply(&region.Scrub{Device: first, Claim: next(), Required: true, Timeout: time.Minute}), region.ErrTraces)
			})
			p.holds(unknownBy(ours()))
			check.Must(t, p.apply(p.program(next(), p.image(nlb3), at(name(0, 1)))))
			p.shows(0, 1, nlb3)
		})
	}
}

// TestWiped: giving back wipes a region in an unknown state with the blank image, whatever the claim said about its release, and not
// before the blank image's own id reads back.
func TestWiped(t *testing.T) {
	for _, f := range failures() {
		t.Run(f.name, func(t *testing.T) {
			p := failed(t, f)
			blank := p.blank()
			program := p.program(ours(), p.image(nlb3), released(region.ReleaseKeep, blank))
			if f.dead {
				p.asks(lines(opened(0), pr(0), pr(0)), func() { wants(t, p.undo(program), dfl.ErrNotEnabled) })
				p.holds(unknownBy(ours()))
				p.Set(fpgasim.Set{Rebind: true})
			}
			p.asks(lines(opened(0), pr(0)), func() { check.Must(t, p.undo(program)) })
			p.holds(wiped(blank))
			p.shows(0, 0, nothing)
			p.asks(nil, func() { check.Must(t, p.undo(program)) })
			if last := p.attempts[len(p.attempts)-1]; last.Why != "release" || last.Image.Digest != blank.Digest || last.Err != nil {
				t.Errorf("reported %+v, want the blank image for the release", last)
			}
			p.asks(lines(opened(0), pr(0)), func() { check.Must(t, p.apply(p.program(next(), p.image(nlb3)))) })
		})
	}
}

// TestSettled: without a blank image the region must prove that it works.
func TestSettled(t *testing.T) {
	for _, f := range failures() {
		t.Run(f.name, func(t *testing.T) {
			p := failed(t, f)
			program, shown := p.program(ours(), p.image(nlb3)), nlb0
			for range 2 {
				if f.dead || f.crashed {
					p.asks(lines(opened(0)), func() {
						wants(t, p.undo(program), region.ErrUnknownState, "bind its device to the driver again", "ClusterFPGABitstream")
					})
					p.holds(unknownBy(ours()))
				}
			}
			if f.dead {
				shown = nlb3 // the second attempt loaded it
				if len(f.prs) == 6 && f.fault.Times == 2 {
					shown = nlb0
				}
				p.Set(fpgasim.Set{Rebind: true})
			}
			if f.crashed {
				p.Set(fpgasim.Set{AFU: new(nlb0)})
			}
			p.asks(lines(opened(0), reset(0)), func() { check.Must(t, p.undo(program)) })
			p.holds(region.Content{AFU: shown, BootID: boot, Namespace: "team-a"})
			p.asks(nil, func() { check.Must(t, p.undo(program)) })
			p.asks(lines(opened(0), pr(0)), func() { check.Must(t, p.apply(p.program(next(), p.image(shown)))) })
		})
	}
}

// TestErrorsAreNoProof: a region that complains does not work.
func TestErrorsAreNoProof(t *testing.T) {
	p := failed(t, failures()[3])
	p.Set(fpgasim.Set{Errors: new(uint64(0x10))})
	p.asks(lines(opened(0)), func() { wants(t, p.undo(p.program(ours(), p.image(nlb3))), region.ErrUnknownState, "0x10") })
	p.Set(fpgasim.Set{Errors: new(uint64(0))})
	check.Must(t, p.undo(p.program(ours(), p.image(nlb3))))
}

// TestWhoseTraces: what a programming was cut off before it began may still be the tenant's before, so that it is nobody's.
func TestWhoseTraces(t *testing.T) {
	p := start(t, machine(card(1)))
	before := p.program(theirs(), p.image(nlb0))
	check.Must(t, p.apply(before))
	check.Must(t, p.undo(before))
	p.Fault(fpgasim.Fault{On: fpgasim.OnPR, AFU: nlb0, Times: 2})
	program := p.program(ours(), p.image(nlb3))
	wants(t, p.apply(program), dfl.ErrWrongAFU)
	check.Must(t, p.undo(program))
	p.shows(0, 0, nlb0)
	for _, c := range []region.Claim{ours(), theirs()} {
		scrub := &region.Scrub{Device: first, Claim: c, Required: true, Timeout: time.Minute}
		wants(t, p.apply(scrub), region.ErrMemory)
		scrub.KeepMemory = true
		wants(t, p.apply(scrub), region.ErrTraces)
	}
	check.Must(t, p.apply(p.program(ours(), p.image(nlb3))))
	scrub := &region.Scrub{Device: first, Claim: ours(), Required: true, Timeout: time.Minute}
	wants(t, p.apply(scrub), region.ErrMemory) // which no image cleared
	scrub.KeepMemory = true
	check.Must(t, p.apply(scrub))
}

// TestGiveBack is what a claim asks for on release, of a region that is as it should be.
func TestGiveBack(t *testing.T) {
	for _, tc := range []struct {
		name    string
		release region.Release
		blank   bool
		want    []string
		shows   string
	}{
		{"reset", region.ReleaseReset, false, lines(opened(0), reset(0)), nlb3},
		{"reset, and there is a blank image", region.ReleaseReset, true, lines(opened(0), reset(0)), nlb3},
		{"keep", region.ReleaseKeep, true, lines(opened(0)), nlb3},
		{"blank", region.ReleaseBlank, true, lines(opened(0), pr(0)), nothing},
		{"blank, and there is none any more", region.ReleaseBlank, false, lines(opened(0), reset(0)), nlb3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, machine(card(1)))
			image := p.image(nlb3)
			want := held(image, ours())
			want.Claim = ""
			var blank *region.Image
			if tc.blank {
				blank = p.blank()
			}
			if tc.shows == nothing {
				want = wiped(blank)
			}
			program := p.program(ours(), image, released(tc.release, blank))
			check.Must(t, p.apply(program))
			yes, no := true, false
			p.Set(fpgasim.Set{User: &yes})
			p.asks(lines(opened(0)+" EBUSY"), func() {
				err := p.undo(program)
				if wants(t, err, unix.EBUSY); backend.KindOf(err) != backend.Retryable {
					t.Errorf("%v is %s, want retryable", err, backend.KindOf(err))
				}
			})
			p.holds(held(image, ours()))
			p.Set(fpgasim.Set{User: &no})
			p.asks(tc.want, func() { check.Must(t, p.undo(program)) })
			p.holds(want)
			p.shows(0, 0, tc.shows)
			p.asks(nil, func() { check.Must(t, p.undo(program)) })
		})
	}
}

// TestUnplugged: a region that has left is given back, and what is known of it is kept for when it is back.
func TestUnplugged(t *testing.T) {
	p := start(t, machine(card(1)))
	image := p.image(nlb3)
	program := p.program(ours(), image, released(region.ReleaseBlank, p.blank()))
	check.Must(t, p.apply(program))
	r := p.regions[first]
	delete(p.regions, first)
	p.asks(nil, func() { check.Must(t, p.undo(program)) })
	p.holds(held(image, claimOf(ours().Namespace, ""))) // and no claim uses it any more
	p.regions[first] = r
	p.asks(lines(opened(0), pr(0)), func() {
		check.Must(t, p.apply(&region.Scrub{Device: first, Claim: theirs(), Blank: p.blank(), Required: true, Timeout: time.Minute}))
	})
	p.holds(wiped(p.blank()))
}

// TestBlankDoesNotFitAnyMore: a claim ends although its blank image is not for the card's new shell, or its file was replaced. It is as
// without a blank image, and the next tenant finds the traces noted.
func TestBlankDoesNotFitAnyMore(t *testing.T) {
	for name, change := range map[string]func(p *programmer, blank *region.Image){
		"another shell": func(p *programmer, _ *region.Image) { p.regions[first].InterfaceID = otherShell },
		"another file":  func(p *programmer, blank *region.Image) { p.files[blank.Digest] = gbs(shell, nlb0, "", 1000) },
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, machine(card(1)))
			image, blank := p.image(nlb3), p.blank()
			program := p.program(ours(), image, released(region.ReleaseBlank, blank))
			check.Must(t, p.apply(program))
			change(p, blank)
			p.asks(lines(opened(0), reset(0)), func() { check.Must(t, p.undo(program)) })
			p.holds(held(image, claimOf(ours().Namespace, "")))
			wants(t, p.apply(&region.Scrub{Device: first, Claim: theirs(), Timeout: time.Minute}), region.ErrMemory)
		})
	}
}

// TestDamagedWhileUsed: whoever gives a region back of which nothing can be read any more puts it in order.
func TestDamagedWhileUsed(t *testing.T) {
	for _, blank := range []bool{true, false} {
		p := start(t, machine(card(1)))
		program := p.program(ours(), p.image(nlb3))
		if blank {
			program.Blank = p.blank()
		}
		check.Must(t, p.apply(program))
		p.damage()
		p.holds(region.Content{Unknown: true, Memory: "*"})
		check.Must(t, p.undo(program))
		want := region.Content{AFU: nlb3, BootID: boot, Namespace: "team-a", Memory: "*"}
		if blank {
			want = wiped(program.Blank)
		}
		p.holds(want)
	}
}

// TestKilled: the process is killed while the card works, which goes on. Nothing takes the region for good until it is.
func TestKilled(t *testing.T) {
	for _, blank := range []bool{true, false} {
		t.Run(map[bool]string{true: "wiped", false: "settled"}[blank], func(t *testing.T) {
			p := start(t, machine(card(2)))
			p.Fault(fpgasim.Fault{On: fpgasim.OnPR, Hold: true})
			ctx, kill := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func(job fault.Plan) {
				_, err := fault.Child{}.Run(ctx, job)
				ended <- err
			}(p.job(t))
			p.Await(1, isProgramming)
			kill() // by SIGKILL, which ends it once the driver has answered

			p = p.process()
			p.holds(unknownBy(ours()))
			program := p.program(ours(), p.image(nlb3))
			if blank {
				program.Blank = p.blank()
			}
			p.asks(nil, func() {
				wants(t, p.verify(program), region.ErrUnknownState)
				for _, other := range []region.Claim{ours(), next()} {
					p.waits("programming", func(ctx context.Context) error {
						return p.applyIn(ctx, p.program(other, p.image(nlb3)))
					})
				}
				p.waits("Undo", func(ctx context.Context) error { return p.kinds.Undo(ctx, p.step(program)) })
			})
			p.holds(unknownBy(ours()))
			p.Go()
			if err := <-ended; err == nil {
				t.Error("the child was not killed")
			}
			p.holds(unknownBy(ours()))
			check.Must(t, p.undo(program))
			want := region.Content{AFU: nlb3, BootID: boot, Namespace: "team-a"}
			if blank {
				want = wiped(program.Blank)
			}
			p.holds(want)
			p.shows(0, 0, want.AFU)
			check.Must(t, p.apply(p.program(next(), p.image(nlb3))))
		})
	}
}

// TestKilledAnywhere: before each operation on the disk, and in the middle of each write.
func TestKilledAnywhere(t *testing.T) {
	p := start(t, machine(card(1)))
	points := 0
	for n := 1; ; n++ {
		var last *fault.Op
		for _, kill := range []fault.Fault{fault.Kill(n), fault.Tear(n)} {
			p.dir = t.TempDir()
			p.Set(fpgasim.Set{AFU: new(nlb0)})
			before := len(p.programmings())
			result, err := fault.Child{}.Run(t.Context(), p.job(t, kill))
			check.Must(t, err)
			p = p.process()
			p.neverGood(len(p.programmings()) > before)
			last = result.Killed
			program := p.program(ours(), p.image(nlb3), released(region.ReleaseBlank, p.blank()))
			for range 2 {
				check.Must(t, p.undo(program))
			}
			if c := p.content(); c.Unknown || c.Claim != "" {
				t.Errorf("killed at %v: given back, and it is %+v", result.Killed, c)
			}
		}
		if last == nil {
			break
		}
		points++
	}
	if points < 10 {
		t.Errorf("%d points at which it was killed, want those of two durable writes", points)
	}
}

// neverGood wants the first region to be known only as what it is.
func (p *programmer) neverGood(programmed bool) {
	p.t.Helper()
	c := p.content()
	switch image := p.image(nlb3); {
	case c.Unknown && c.Claim == ours().UID:
	case programmed:
		if diff := cmp.Diff(held(image, ours()), c, cmp.FilterPath(func(path cmp.Path) bool {
			return path.Last().String() == ".Version"
		}, cmp.Ignore())); diff != "" {
			p.t.Errorf("programmed, and known as (-want +got):\n%s", diff)
		}
		p.shows(0, 0, nlb3)
	case c != region.Content{Version: 1}:
		p.t.Errorf("not programmed, and known as %+v", c)
	}
}
