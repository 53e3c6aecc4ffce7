// SPDX-License-Identifier: Apache-2.0

package region_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// act is one step, done or undone.
type act struct {
	Undo bool
	Step step.Step
}

func (a act) do(ctx context.Context, kinds step.Kinds) error {
	if a.Undo {
		return kinds.Undo(ctx, a.Step)
	}
	return kinds.Apply(ctx, a.Step)
}

// lifeJob is what a child does with the first region until it is killed.
type lifeJob struct {
	Root, Dir string
	Region    *fpga.Region
	Acts      []act
	// Ticks is at which look at the clock the child kills itself; 0 for never. It looks at it at each access to the user clock.
	Ticks int64
}

// TestChildLife plays the plugin's process.
func TestChildLife(t *testing.T) {
	plan, ok := fault.Planned()
	if !ok {
		t.Skip("only as a child process")
	}
	var j lifeJob
	check.Must(t, json.Unmarshal(plan.Data, &j))
	in, err := plan.Injector()
	check.Must(t, err)
	n := &node{
		Sim: &fpgasim.Sim{Root: j.Root}, t: t, dir: j.Dir, regions: map[string]*fpga.Region{first: j.Region}, files: map[string][]byte{},
		fs: in.FS(disk.OS{}), boot: boot,
	}
	n.image(nlb3)
	n.blank()
	left := &atomic.Int64{}
	left.Store(j.Ticks)
	open := func() (*dfl.Host, error) {
		return dfl.Open(j.Root, dfl.Options{PlainNodes: true, Settle: 60 * time.Millisecond, Clock: deadly{left: left}})
	}
	kinds := region.New(region.Config{
		Find: n.find, Backends: map[string]region.Backend{"dfl": region.DFL(open, n.state())}, Contents: region.OpenContents(n.fs, n.state()),
		Open: n.open, BootID: boot,
	}).Kinds()
	for _, a := range j.Acts {
		check.Must(t, a.do(t.Context(), kinds))
	}
}

// deadly is a clock that kills who looks at it for the nth time.
type deadly struct {
	clock.RealClock
	left *atomic.Int64
}

func (d deadly) tick() {
	if d.left.Add(-1) == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (d deadly) Now() time.Time {
	d.tick()
	return d.RealClock.Now()
}

func (d deadly) NewTimer(after time.Duration) clock.Timer {
	d.tick()
	return d.RealClock.NewTimer(after)
}

// child runs acts in a process of its own, which is killed as the faults say, by a tick, or when ctx ends.
func (n *node) child(ctx context.Context, acts []act, ticks int64, faults ...fault.Fault) (result fault.Result, killed bool) {
	n.t.Helper()
	data, err := json.Marshal(lifeJob{Root: n.Root, Dir: n.dir, Region: n.regions[first], Acts: acts, Ticks: ticks})
	check.Must(n.t, err)
	result, err = fault.Child{Test: "TestChildLife"}.Run(ctx, fault.Plan{Faults: faults, Quick: true, Data: data})
	if err == nil {
		return result, result.Killed != nil
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		n.t.Errorf("the child was to be killed: %v", err)
	}
	return result, true
}

// life is that of a claim which gets a region that another namespace used, and gives it back blank.
type life struct {
	scrub   *region.Scrub
	params  *region.Params
	program *region.Program
}

// secondLife is how a claim's life begins: the region is another tenant's, nobody holds it, and what it was is known. What is known is
// kept anew. release is what the claim asks for on its own.
func secondLife(p *programmer, set []region.Param, release region.Release) (*programmer, life) {
	p.t.Helper()
	p.dir = p.t.TempDir()
	p = p.process()
	p.usedBy(theirs(), nlb0)
	p.fills(0, secret)
	program := p.program(ours(), p.image(nlb3), released(release, p.blank()))
	return p, life{p.scrub(p.blank()), p.plan(set, nil), program}
}

func (p *programmer) done(s stepper) act   { return act{Step: p.step(s)} }
func (p *programmer) undone(s stepper) act { return act{Undo: true, Step: p.step(s)} }

// all is the whole life.
func (l life) all(p *programmer) []act {
	return append([]act{p.done(l.scrub), p.done(l.params), p.done(l.program)}, l.back(p)...)
}

// back is what the next process does for a claim that it finds halfway, and the end of a life.
func (l life) back(p *programmer) []act {
	return []act{p.undone(l.program), p.undone(l.params), p.undone(l.scrub)}
}

// honest wants nothing to be known of the first region that the card was not seen to do: the last programming of it has ended well, and
// content, owner and the accelerator that it shows are those of its bytes. A region that the next claim may have has none of the other
// tenant's data in its memory.
func (p *programmer) honest() {
	p.t.Helper()
	c := p.content()
	if c.Unknown {
		if c.Claim != ours().UID {
			p.t.Errorf("unknown, and nobody's: %+v", c)
		}
		wants(p.t, p.verify(p.program(ours(), p.image(nlb3))), region.ErrUnknownState)
		return
	}
	var last, end fpgasim.Event
	for _, e := range p.Trace() {
		switch {
		case isProgramming(e):
			last, end = e, fpgasim.Event{}
		case e.Op == "done":
			end = e
		}
	}
	var want region.Content
	for afu, namespace := range map[string]string{nlb0: theirs().Namespace, nlb3: ours().Namespace, nothing: ""} {
		if last.SHA256 == hexDigest(payload(afu)) {
			want = region.Content{Version: 1, Digest: p.image(afu).Digest, AFU: afu, BootID: boot, Namespace: namespace}
		}
	}
	if diff := cmp.Diff(want, c, cmpopts.IgnoreFields(region.Content{}, "Claim")); diff != "" || end.Op == "" || end.Errno != "" {
		p.t.Errorf("last was %v, then %v (-card +known):\n%s", last, end, diff)
	}
	p.shows(0, 0, c.AFU)
	if !c.ForeignTo(ours().Namespace) {
		p.forgets(0)
	}
}

// recovers undoes a claim that was found halfway, twice, and gives the region to the next namespace, which finds nothing in it.
func (p *programmer) recovers(l life, params map[string]int32) {
	p.t.Helper()
	for range 2 {
		for _, a := range l.back(p) {
			check.Must(p.t, a.do(p.t.Context(), p.kinds))
		}
	}
	p.honest()
	if c := p.content(); c.Unknown || c.Claim != "" {
		p.t.Errorf("given back, and it is %+v", c)
	}
	p.params(params)
	next := p.scrub(p.blank())
	next.Claim = claimOf("team-c", "c1")
	check.Must(p.t, p.apply(next))
	p.holds(wiped(p.blank()))
	p.shows(0, 0, nothing)
	p.forgets(0)
}

// TestKilledInEachStep: the process is killed while the card is programmed for a step, which goes on. Before the card is done nobody gets
// anywhere, and afterwards nobody is told that it holds what it may hold.
func TestKilledInEachStep(t *testing.T) {
	for _, tc := range []struct {
		name string
		// before are the steps that are done, dies is the one that hangs, of a whole life.
		before, dies int
		release      region.Release
		shows        string
	}{
		{"scrub", 0, 0, region.ReleaseReset, nothing},
		{"program", 2, 2, region.ReleaseKeep, nlb3},
		{"release", 3, 3, region.ReleaseBlank, nothing},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, l := secondLife(start(t, withParams()), clocks(400_000, 200_000), tc.release)
			for _, a := range l.all(p)[:tc.before] {
				check.Must(t, a.do(t.Context(), p.kinds))
			}
			p.Fault(fpgasim.Fault{On: fpgasim.OnPR, Hold: true})
			ctx, kill := context.WithCancel(t.Context())
			begun, ended := len(p.programmings()), make(chan bool, 1)
			go func(dies *programmer, step []act) {
				_, killed := dies.child(ctx, step, 0)
				ended <- killed
			}(p, l.all(p)[tc.dies:tc.dies+1])
			p.Await(begun+1, isProgramming)
			kill() // which ends the process once the driver has answered

			p = p.process()
			unknown := p.content()
			if !unknown.Unknown || unknown.Claim != ours().UID {
				t.Fatalf("known as %+v while the card works", unknown)
			}
			p.asks(nil, func() {
				for _, a := range append(l.all(p)[:1], l.back(p)[0]) {
					p.waits(fmt.Sprintf("%s, undone %t,", a.Step, a.Undo), func(ctx context.Context) error { return a.do(ctx, p.kinds) })
				}
			})
			p.Go()
			if !<-ended {
				t.Error("the child was not killed")
			}
			p.shows(0, 0, tc.shows) // and yet
			if diff := cmp.Diff(unknown, p.content()); diff != "" {
				t.Errorf("what is known changed (-want +got):\n%s", diff)
			}
			p.honest()
			p.recovers(l, map[string]int32{dfl.ParamClock: highBefore, dfl.ParamClockLow: lowBefore})
		})
	}
}

// TestKilledInLife: around each moment at which something else becomes known, in a claim's whole life with a region.
func TestKilledInLife(t *testing.T) {
	set := []region.Param{{Name: dfl.ParamLTR, Value: 1}, {Name: dfl.ParamDebug, Value: 3}}
	before := map[string]int32{dfl.ParamLTR: 0, dfl.ParamDebug: 0}
	p, l := secondLife(start(t, withParams()), set, region.ReleaseBlank)
	whole, _ := p.child(t.Context(), l.all(p), 0)
	points := map[int]int{}
	for _, op := range whole.Log {
		if op.Kind != fault.Rename {
			continue
		}
		for n := op.N; n <= op.N+1; n++ {
			p, l = secondLife(p, set, region.ReleaseBlank)
			begun := len(p.programmings())
			result, killed := p.child(t.Context(), l.all(p), 0, fault.Kill(n))
			if !killed {
				t.Fatalf("not killed at %d of\n%s", n, whole.Log)
			}
			points[len(p.programmings())-begun]++
			p = p.process()
			p.honest()
			p.recovers(l, before)
			if t.Failed() {
				t.Fatalf("killed at %v", result.Killed)
			}
		}
	}
	// Unknown, the programming, and what is known after it: three times.
	if diff := cmp.Diff(map[int]int{0: 2, 1: 4, 2: 4, 3: 2}, points); diff != "" {
		t.Errorf("killed so often after so many programmings (-want +got):\n%s", diff)
	}
}

// TestKilledInParams: at moments all over a change of the clocks, during which they are off. What is known of the region does not change,
// nothing is programmed, and the next process restores the clocks, or sets them after all.
func TestKilledInParams(t *testing.T) {
	atStart := map[string]int32{dfl.ParamClock: highBefore, dfl.ParamClockLow: lowBefore}
	p, l := secondLife(start(t, withParams()), clocks(400_000, 200_000), region.ReleaseReset)
	const stride = 37
	for name, acts := range map[string]struct{ before, dies []act }{
		"apply": {nil, []act{p.done(l.params)}},
		"undo":  {[]act{p.done(l.params)}, []act{p.undone(l.params)}},
	} {
		t.Run(name, func(t *testing.T) {
			off, known := 0, p.content()
			for n := int64(1); ; n += stride {
				for _, a := range acts.before {
					check.Must(t, a.do(t.Context(), p.kinds))
				}
				begun := len(p.programmings())
				_, killed := p.child(t.Context(), acts.dies, n)
				if strings.Contains(lastClock(p.traced()), `"0 0"`) {
					off++
				}
				p = p.process()
				p.honest()
				if n%2 == 0 { // the record is still there
					check.Must(t, p.apply(l.params))
					p.params(map[string]int32{dfl.ParamClock: 400_000, dfl.ParamClockLow: 200_000})
				}
				check.Must(t, errors.Join(p.undo(l.params), p.undo(l.params)))
				p.params(atStart)
				if diff := cmp.Diff(known, p.content()); diff != "" || len(p.programmings()) != begun {
					t.Errorf("%d programmings, what is known (-want +got):\n%s", len(p.programmings())-begun, diff)
				}
				if !killed {
					break
				}
			}
			if off == 0 {
				t.Error("the clocks were never left off")
			}
		})
	}
}

// lastClock is the last line that tells what the clocks became.
func lastClock(trace []string) (last string) {
	for _, line := range trace {
		if strings.HasPrefix(line, "clock ") {
			last = line
		}
	}
	return last
}
