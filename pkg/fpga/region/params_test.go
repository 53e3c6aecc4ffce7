// SPDX-License-Identifier: Apache-2.0

package region_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/pkg/fpga/dfl"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

func clocks(high, low int32) []region.Param {
	return []region.Param{{Name: dfl.ParamClock, Value: high}, {Name: dfl.ParamClockLow, Value: low}}
}

// What the first region's parameters are at the start.
const (
	highBefore = 312_500
	lowBefore  = 156_250
)

// withParams is a card whose port has all parameters.
func withParams() fpgasim.Machine {
	c := card(1)
	c.Ports[0].Debug = new(int32)
	return machine(c)
}

// plan is the step for our claim, nil where there is nothing to set.
func (p *programmer) plan(set []region.Param, image *region.Image) *region.Params {
	p.t.Helper()
	wanted := region.Params{Device: first, Claim: ours(), Set: set, Image: image}
	params, err := p.own.PlanParams(p.t.Context(), p.regions[first], wanted)
	check.Must(p.t, err)
	return params
}

// params wants the first region's parameters to be these.
func (p *programmer) params(want map[string]int32) {
	p.t.Helper()
	var names []string
	for name := range want {
		names = append(names, name)
	}
	got, err := dflAt(p.Root, p.state()).Params(p.t.Context(), p.regions[first], names)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		p.t.Errorf("parameters %v (-want +got):\n%s", err, diff)
	}
}

// written counts the writes to the user clock's registers and to the switches. Which clock is counted is no parameter.
func (p *programmer) written() int {
	p.t.Helper()
	n := 0
	for _, e := range p.Trace() {
		if e.Op == "write" && !strings.HasSuffix(e.Path, "userclk_freqcntrcmd") {
			n++
		}
	}
	return n
}

// TestParams: what the claim asks for is set before the region is programmed, and what it was is restored after, each step twice.
func TestParams(t *testing.T) {
	p := start(t, withParams())
	atStart := map[string]int32{dfl.ParamClock: highBefore, dfl.ParamClockLow: lowBefore, dfl.ParamLTR: 0, dfl.ParamDebug: 0}
	set := append(clocks(400_000, 200_000), region.Param{Name: dfl.ParamLTR, Value: 1}, region.Param{Name: dfl.ParamDebug, Value: 3})
	program := p.program(ours(), p.keep(gbs(shell, nlb3, `"clock-frequency-high":300,`, 1000)))
	var params *region.Params
	p.asks(nil, func() { params = p.plan(set, program.Image) })
	want := &region.Params{
		Device: first, Claim: ours(), Set: set,
		Before: append(clocks(highBefore, lowBefore), region.Param{Name: dfl.ParamLTR}, region.Param{Name: dfl.ParamDebug}),
	}
	if diff := cmp.Diff(want, params); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	p.asks(lines(
		opened(0), `clock dfl-port.0 "0 0"`, `clock dfl-port.0 "400000 200000"`, `write ltr "1"`, `write debug "3"`, opened(0), pr(0),
	), func() {
		check.Must(t, p.apply(params))
		check.Must(t, p.apply(program))
	})
	if trace := p.traced(); trace[len(trace)-1] != `read afu_id "`+nlb3+`"` {
		t.Errorf("the last is %s, want that the accelerator's id is read back", trace[len(trace)-1])
	}
	p.params(map[string]int32{dfl.ParamClock: 400_000, dfl.ParamClockLow: 200_000, dfl.ParamLTR: 1, dfl.ParamDebug: 3})
	p.asks(lines(opened(0)), func() { check.Must(t, p.apply(params)) })
	p.asks(lines(
		opened(0), reset(0), opened(0), `clock dfl-port.0 "0 0"`, `clock dfl-port.0 "312500 156250"`, `write ltr "0"`, `write debug "0"`,
	), func() {
		check.Must(t, p.undo(program))
		check.Must(t, p.undo(params))
	})
	p.params(atStart)
	p.asks(nil, func() { check.Must(t, p.undo(params)) })
	p.params(atStart)
}

// TestMetadataClocks: an image's own clocks are set where the claim says nothing of clocks and the region has any.
func TestMetadataClocks(t *testing.T) {
	for _, tc := range []struct {
		name, clocks string
		set          []region.Param
		want         map[string]int32
	}{
		{name: "whole", clocks: `"clock-frequency-high":300,"clock-frequency-low":150,`, want: map[string]int32{dfl.ParamClock: 300_000}},
		{name: "a fraction", clocks: `"clock-frequency-high":266.5,`, want: map[string]int32{dfl.ParamClock: 266_500}},
		{name: "the low one", clocks: `"clock-frequency-low":100,`, want: map[string]int32{dfl.ParamClock: 200_000, dfl.ParamClockLow: 100_000}},
		{
			name: "the low one, which is too fast for the high one", clocks: `"clock-frequency-low":400,`,
			want: map[string]int32{dfl.ParamClock: 0, dfl.ParamClockLow: 400_000},
		},
		{name: "auto", clocks: `"clock-frequency-high":"auto","clock-frequency-low":"auto",`},
		{
			name: "the high one is auto", clocks: `"clock-frequency-high":"auto","clock-frequency-low":100,`,
			want: map[string]int32{dfl.ParamClock: 200_000},
		},
		{name: "nothing said"},
		{name: "zero", clocks: `"clock-frequency-high":0,"clock-frequency-low":0,`},
		{
			name: "the claim says", clocks: `"clock-frequency-high":300,`, set: clocks(400_000, 0)[:1],
			want: map[string]int32{dfl.ParamClock: 400_000},
		},
		{
			name: "the claim says of the low one", clocks: `"clock-frequency-high":300,`, set: clocks(0, 100_000)[1:],
			want: map[string]int32{dfl.ParamClock: 200_000},
		},
		{
			name: "the claim speaks of something else", clocks: `"clock-frequency-high":300,`, set: []region.Param{{Name: dfl.ParamLTR, Value: 1}},
			want: map[string]int32{dfl.ParamClock: 300_000, dfl.ParamLTR: 1},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel() // each has a machine of its own, and waits for it
			p := start(t, withParams())
			params := p.plan(tc.set, p.keep(gbs(shell, nlb3, tc.clocks, 1000)))
			check.Must(t, p.apply(params))
			if tc.want == nil {
				tc.want = map[string]int32{dfl.ParamClock: highBefore}
				if n := p.written(); n > 0 {
					t.Errorf("%d writes, want none", n)
				}
			}
			p.params(tc.want)
			check.Must(t, p.undo(params))
			p.params(map[string]int32{dfl.ParamClock: highBefore, dfl.ParamClockLow: lowBefore, dfl.ParamLTR: 0})
		})
	}
}

// TestNoClocks: a card without user clocks is no reason to refuse an image that names some, but a claim that asks for them is refused.
func TestNoClocks(t *testing.T) {
	c := card(1)
	c.Ports[0].Revision = 1
	p := start(t, machine(c))
	image := p.keep(gbs(shell, nlb3, `"clock-frequency-high":300,`, 1000))
	p.asks(nil, func() {
		if params := p.plan(nil, image); params != nil {
			t.Errorf("plans %+v, want nothing", params)
		}
		if params := p.plan(nil, nil); params != nil {
			t.Errorf("plans %+v, want nothing", params)
		}
		for _, set := range [][]region.Param{clocks(300_000, 0)[:1], {{Name: dfl.ParamDebug, Value: 1}}, {{Name: "fan", Value: 1}}} {
			wanted := region.Params{Device: first, Claim: ours(), Set: set, Image: image}
			_, err := p.own.PlanParams(t.Context(), p.regions[first], wanted)
			if wants(t, err, backend.ErrNoParam); backend.KindOf(err) != backend.Terminal {
				t.Errorf("%v is %s, want terminal", err, backend.KindOf(err))
			}
		}
	})
	check.Must(t, p.apply(p.plan([]region.Param{{Name: dfl.ParamLTR, Value: 1}}, image)))
	p.params(map[string]int32{dfl.ParamLTR: 1})
}

// TestClocksThatWere: what cannot be told by the high clock alone, because it is off, is restored all the same; and clocks that do not run
// are no reason to keep a region for ever.
func TestClocksThatWere(t *testing.T) {
	p := start(t, withParams())
	check.Must(t, p.apply(p.plan(clocks(0, 400_000)[1:], nil)))
	p.params(map[string]int32{dfl.ParamClock: 0, dfl.ParamClockLow: 400_000})
	params := p.plan(clocks(200_000, 0)[:1], nil)
	check.Must(t, p.apply(params))
	p.params(map[string]int32{dfl.ParamClock: 200_000, dfl.ParamClockLow: 100_000})
	check.Must(t, p.undo(params))
	p.params(map[string]int32{dfl.ParamClock: 0, dfl.ParamClockLow: 400_000})

	stuck, free := fpgasim.StuckLock, ""
	p.Set(fpgasim.Set{Stuck: &stuck})
	params = p.plan(nil, p.keep(gbs(shell, nlb3, `"clock-frequency-high":300,`, 1000)))
	p.Set(fpgasim.Set{Stuck: &free})
	check.Must(t, p.apply(params))
	p.params(map[string]int32{dfl.ParamClock: 300_000})
	p.asks(nil, func() { check.Must(t, p.undo(params)) })
}

// TestClocksOutOfReach: clocks that the card cannot be set to are no reason to keep a region for ever either.
func TestClocksOutOfReach(t *testing.T) {
	m := withParams()
	m.Cards[0].Ports[0].ClockKHz = 20_000
	p := start(t, m)
	p.params(map[string]int32{dfl.ParamClock: 20_000, dfl.ParamClockLow: 10_000})
	params := p.plan(append(clocks(200_000, 0)[:1], region.Param{Name: dfl.ParamLTR, Value: 1}), nil)
	check.Must(t, p.apply(params))
	check.Must(t, p.undo(params))
	p.params(map[string]int32{dfl.ParamClock: 200_000, dfl.ParamLTR: 0})
}

// TestParamsOfAnotherShell: what a card's new shell has no more needs no restoring.
func TestParamsOfAnotherShell(t *testing.T) {
	m := withParams()
	m.Cards[0].Ports = append(m.Cards[0].Ports, fpgasim.Port{Interface: shell, AFU: nlb0, Revision: 1})
	p := start(t, m)
	set := []region.Param{clocks(200_000, 0)[0], {Name: dfl.ParamDebug, Value: 3}, {Name: dfl.ParamLTR, Value: 1}}
	params := p.plan(set, nil)
	check.Must(t, p.apply(params))
	p.regions[first] = p.regions[name(0, 1)] // whose port has neither clocks nor debug
	check.Must(t, p.apply(p.plan([]region.Param{{Name: dfl.ParamLTR, Value: 1}}, nil)))
	check.Must(t, p.undo(params))
	p.params(map[string]int32{dfl.ParamLTR: 0})
}

// TestParamsRefused: what is known to be impossible, or not the claim's to change now, writes nothing.
func TestParamsRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		set    []region.Param
		change func(p *programmer, image *region.Image)
		want   []string
		cause  error
		kind   backend.Kind
	}{
		{
			name: "another has the port open", change: func(p *programmer, _ *region.Image) { p.Set(fpgasim.Set{User: new(true)}) },
			want: lines(opened(0) + " EBUSY"), cause: unix.EBUSY, kind: backend.Retryable,
		},
		{name: "too fast", set: clocks(1_000_000, 0)[:1], want: lines(opened(0)), cause: dfl.ErrClock, kind: backend.Terminal},
		{
			name: "a switch, and then a clock that is too fast",
			set:  append([]region.Param{{Name: dfl.ParamLTR, Value: 1}}, clocks(1_000_000, 0)[:1]...),
			want: lines(opened(0)), cause: dfl.ErrClock, kind: backend.Terminal,
		},
		{
			name: "thermal stop", change: func(p *programmer, _ *region.Image) { p.Set(fpgasim.Set{Power: new(6)}) },
			want: lines(opened(0)), cause: dfl.ErrPower, kind: backend.Retryable,
		},
		{
			name: "the card was changed", cause: backend.ErrInterface,
			change: func(p *programmer, _ *region.Image) { p.regions[first].InterfaceID = otherShell },
		},
		{
			name: "the image was changed", cause: backend.ErrDigest,
			change: func(p *programmer, image *region.Image) { p.files[image.Digest] = p.files[image.Digest][1:] },
		},
		{name: "the card is gone", cause: region.ErrGone, change: func(p *programmer, _ *region.Image) { delete(p.regions, first) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, withParams())
			image := p.keep(gbs(shell, nlb3, `"clock-frequency-high":300,`, 1000))
			params := p.plan(tc.set, image)
			if tc.change != nil {
				tc.change(p, image)
			}
			p.asks(tc.want, func() {
				err := p.apply(params)
				if wants(t, err, tc.cause); tc.want != nil && backend.KindOf(err) != tc.kind {
					t.Errorf("%v is %s, want %s", err, backend.KindOf(err), tc.kind)
				}
			})
			if n := p.written(); n > 0 {
				t.Errorf("%d writes, want none", n)
			}
			p.asks(nil, func() { check.Must(t, p.undo(params)) })
		})
	}
}

// TestParamsRestoredLater: what cannot be restored now is restored when it can, and until then that is an error.
func TestParamsRestoredLater(t *testing.T) {
	p := start(t, withParams())
	params := p.plan([]region.Param{{Name: dfl.ParamDebug, Value: 2}}, nil)
	check.Must(t, p.apply(params))
	yes, no := true, false
	p.Set(fpgasim.Set{User: &yes})
	wants(t, p.undo(params), unix.EBUSY)
	p.params(map[string]int32{dfl.ParamDebug: 2})
	p.Set(fpgasim.Set{User: &no})
	p.Fault(fpgasim.Fault{On: fpgasim.OnDebug, Errno: "EIO"})
	wants(t, p.undo(params), unix.EIO)
	check.Must(t, p.undo(params))
	p.params(map[string]int32{dfl.ParamDebug: 0})
	if trace := p.traced(); !slices.Contains(trace, `write debug "0" EIO`) {
		t.Errorf("the fault did not happen:\n%s", strings.Join(trace, "\n"))
	}
}
