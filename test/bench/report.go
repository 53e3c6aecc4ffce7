// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// The cases of a Prepare.
const (
	// casePlain is whole devices as they are.
	casePlain = "plain"
	// caseOwn is host directories at mount paths of the claim's own, kept on release: container edits that no other claim has.
	caseOwn = "own"
	// caseEffect is host directories that are emptied on release: a step for each.
	caseEffect = "effect"
)

// The names of series, each of which becomes three figures: p50, p99 and max.
const (
	prepare     = "prepare"
	unprepare   = "unprepare"
	again       = "again"
	get         = "get"
	rpc         = "rpc"
	floorCreate = "floor.create"
	floorAppend = "floor.append"
	floorUnlink = "floor.unlink"
	// Rounds of calls at once, from the first call to the last answer.
	prepareWall   = "prepare.wall"
	unprepareWall = "unprepare.wall"
	getWall       = "get.wall"
	waveWall      = "wave.wall"
	floorWall     = "floor.wall"
)

// The units.
const (
	unitMS    = "ms"
	unitMiB   = "MiB"
	unitRatio = "ratio"
	unitBytes = "B"
	unitRate  = "1/s"
)

// The targets.
const (
	targetFlat = 1.15
	// targetOwn and targetBurst are ratios to durable writes and calls of the same run.
	targetOwn       = 2.5
	targetBurst     = 2
	targetUnprepare = 1.5  // ms
	targetAnon      = 25   // MiB
	targetClaimSpec = 2048 // bytes
	// The number of claims and of calls at once that a target is about.
	targetAnonHeld   = 1000
	targetBurstCalls = 64
)

// units are the names of all figures and their units. README.md explains them.
func units() map[string]string {
	all := map[string]string{
		"rss": unitMiB, "rss.anon": unitMiB, "rss.peak": unitMiB,
		"prepare.flatness": unitRatio, "unprepare.flatness": unitRatio, "prepare.over_floor": unitRatio,
		"prepare.own_over_floor": unitRatio, "unprepare.over_floor": unitRatio, "prepare.burst64": unitRatio,
		"floor.burst64": unitRatio, "prepare.burst64_over_floor": unitRatio,
		presetSpecClaim: unitBytes, driverCost: unitRatio, driverRecord: unitBytes, driverIdle: unitMS,
		shareFlatness: unitRatio, shareUnprepareFlatness: unitRatio,
		planRate: unitRate, planClaim: unitMS, planMemory: unitMiB, planSearch: unitMS,
	}
	for _, name := range migRatios() {
		all[name] = unitRatio
	}
	maps.Copy(all, cacheUnits())
	for _, s := range slices.Concat([]string{
		prepare, unprepare, again, get, rpc, floorCreate, floorAppend, floorUnlink, prepareWall, unprepareWall, getWall, waveWall,
		floorWall, sharePrepare, shareUnprepare, warmPrepare, warmUnprepare,
	}, migSeries(), driverSeries()) {
		for _, suffix := range []string{".p50", ".p99", ".max"} {
			all[s+suffix] = unitMS
		}
	}
	return all
}

// point says under which circumstances something was measured.
type point struct {
	Machine  string `json:"machine"`
	Held     int    `json:"held"`
	Devices  int    `json:"devices,omitempty"`
	Parallel int    `json:"parallel,omitempty"`
	Case     string `json:"case,omitempty"`
	Bytes    int    `json:"bytes,omitempty"`
	Files    int    `json:"files,omitempty"`
	Form     string `json:"form,omitempty"`
	// Pods says whether the plugin asks for the pods of a claim with a cache: podsUnasked or podsAsked.
	Pods string `json:"pods,omitempty"`
	// Shares is how many shares of the same device are held.
	Shares int `json:"shares,omitempty"`
	// Nodes is how many machines there are, where that is not one.
	Nodes int `json:"nodes,omitempty"`
}

// quiet says that the point is one that the targets of single calls are about.
func (p point) quiet() bool { return p.Devices == 1 && p.Parallel == 1 }

// figure is one line of output.
type figure struct {
	Name string `json:"name"`
	*point
	Samples int      `json:"samples,omitempty"`
	Unit    string   `json:"unit"`
	Value   *float64 `json:"value"`
	Reason  string   `json:"reason,omitempty"`
	Target  float64  `json:"target,omitempty"`
	Met     *bool    `json:"met,omitempty"`
}

// report writes figures and remembers those that have a target.
type report struct {
	encoder  *json.Encoder
	units    map[string]string
	targeted []figure
}

func newReport(out io.Writer) *report {
	return &report{encoder: json.NewEncoder(out), units: units()}
}

// value writes a figure without a target.
func (r *report) value(name string, at *point, samples int, v float64) error {
	return r.against(0, name, at, samples, v)
}

// against writes a figure with a target; 0: none applies.
func (r *report) against(target float64, name string, at *point, samples int, v float64) error {
	return r.write(figure{Name: name, point: at, Samples: samples, Value: &v, Target: target})
}

// targetIf returns a target where it applies.
func targetIf(applies bool, target float64) float64 {
	if !applies {
		return 0
	}
	return target
}

// nothing writes that a figure could not be measured.
func (r *report) nothing(name string, at *point, why error) error {
	return r.write(figure{Name: name, point: at, Reason: why.Error()})
}

func (r *report) write(f figure) error {
	f.Unit = r.units[f.Name]
	if f.Unit == "" {
		return fmt.Errorf("figure %s is not in the table of names: add it there and to README.md", f.Name)
	}
	if f.Value != nil && (math.IsNaN(*f.Value) || math.IsInf(*f.Value, 0)) {
		f.Value, f.Reason = nil, "nothing was measured to compute it from"
	}
	if f.Value != nil {
		*f.Value = round(*f.Value)
	}
	if f.Target > 0 {
		met := f.Value != nil && *f.Value <= f.Target
		f.Met = &met
		r.remember(f)
	}
	if err := r.encoder.Encode(f); err != nil {
		return fmt.Errorf("write figure %s: %w", f.Name, err)
	}
	return nil
}

// remember keeps a figure with a target. The caller may go on to change the point.
func (r *report) remember(f figure) {
	if f.point != nil {
		at := *f.point
		f.point = &at
	}
	r.targeted = append(r.targeted, f)
}

// verdict writes a line for each figure with a target. With check, a missed target is an error.
func (r *report) verdict(out io.Writer, check bool) error {
	for _, f := range r.targeted {
		fmt.Fprintln(out, f)
	}
	if missed := r.missed(); check && len(missed) > 0 {
		return fmt.Errorf("%d of %d targets are missed", len(missed), len(r.targeted))
	}
	return nil
}

// missed are the figures that miss their targets.
func (r *report) missed() []figure {
	return slices.DeleteFunc(slices.Clone(r.targeted), func(f figure) bool { return *f.Met })
}

// String is a line for people.
func (f figure) String() string {
	value := "not measured: " + f.Reason
	if f.Value != nil {
		value = fmt.Sprintf("%.3g", *f.Value)
	}
	verdict := "met"
	if f.Met != nil && !*f.Met {
		verdict = "MISSED"
	}
	at := ""
	if f.point != nil {
		at = fmt.Sprintf("%s, %d held, %s", f.Machine, f.Held, f.Case)
	}
	return fmt.Sprintf("%-6s %-22s %8s of at most %.3g %s (%s)", verdict, f.Name, value, f.Target, f.Unit, strings.TrimSuffix(at, ", "))
}

// round keeps three decimals: microseconds of milliseconds, less than what a run can repeat.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// series writes the three figures of each series.
func (r *report) series(at point, s samples) error {
	names := make([]string, 0, len(s))
	for name := range s {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		values := s.of(name)
		target, isTarget := targetUnprepare, name == unprepare && at.quiet()
		if name == driverAgain && at.Devices == 1 && at.Case == caseDriver {
			target, isTarget = targetDriverAgain, true
		}
		if err := r.against(targetIf(isTarget, target), name+".p50", &at, len(values), values.median()); err != nil {
			return err
		}
		if err := r.value(name+".p99", &at, len(values), values.quantile(0.99)); err != nil {
			return err
		}
		if err := r.value(name+".max", &at, len(values), values.quantile(1)); err != nil {
			return err
		}
	}
	return nil
}

// single writes a cell of calls one after another.
func (r *report) single(at point, s samples) error {
	if err := r.series(at, s); err != nil {
		return err
	}
	n := len(s.of(prepare))
	create, added := s.median(floorCreate), s.median(floorAppend)
	call, look := s.median(prepare), s.median(get)
	if err := r.value("prepare.over_floor", &at, n, call/(look+create)); err != nil {
		return err
	}
	if err := r.against(targetIf(at.quiet(), targetOwn), "prepare.own_over_floor", &at, n, (call-look)/(create+added)); err != nil {
		return err
	}
	return r.value("unprepare.over_floor", &at, n, s.median(unprepare)/s.median(floorUnlink))
}

// burst writes a cell of calls at once.
func (r *report) burst(at point, s samples) error {
	if err := r.series(at, s); err != nil {
		return err
	}
	if at.Parallel != targetBurstCalls {
		return nil
	}
	isTarget := at.Case == casePlain && at.Devices == 1
	n := len(s.of(prepareWall))
	if err := r.value("floor.burst64", &at, n, s.median(floorWall)/s.median(getWall)); err != nil {
		return err
	}
	if err := r.value("prepare.burst64", &at, n, s.median(prepareWall)/s.median(getWall)); err != nil {
		return err
	}
	ratio := s.median(prepareWall) / s.median(floorWall)
	return r.against(targetIf(isTarget, targetBurst), "prepare.burst64_over_floor", &at, n, ratio)
}

// memory writes what a plugin occupies. Clean pages of files are the kernel's to reclaim, so the target is about the rest.
func (r *report) memory(at point, used memory) error {
	isTarget := at.Held == targetAnonHeld && at.Machine == diskMachine
	return errors.Join(
		r.value("rss", &at, 1, used.resident),
		r.against(targetIf(isTarget, targetAnon), "rss.anon", &at, 1, used.anon),
		r.value("rss.peak", &at, 1, used.peak),
	)
}
