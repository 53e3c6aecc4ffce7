// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// measureSite goes through the levels.
func (b *bench) measureSite(ctx context.Context, s *site) error {
	for _, held := range b.form.levels {
		if err := b.level(ctx, s, held); err != nil {
			return fmt.Errorf("machine %s with %d claims held: %w", s.machine.name, held, err)
		}
	}
	return nil
}

// level measures everything with so many claims held.
func (b *bench) level(ctx context.Context, s *site, held int) (err error) {
	b.say("%s: preparing %d claims to be held", s.machine.name, held)
	if err := b.hold(ctx, s, held); err != nil {
		return err
	}
	at := point{Machine: s.machine.name, Held: held}
	b.say("%s: measuring with %d held", s.machine.name, held)
	if err := b.cells(ctx, s, at); err != nil {
		return err
	}
	if err := b.reportMemory(s.loaded, at); err != nil {
		return err
	}
	if held > 0 {
		if err := b.pairs(ctx, s, at); err != nil {
			return err
		}
	}
	return nil
}

// cells measures all groups.
func (b *bench) cells(ctx context.Context, s *site, at point) error {
	for _, g := range s.groups {
		at.Case, at.Devices, at.Parallel = g.what, g.devices, 1
		for _, parallel := range g.parallel {
			at.Parallel = parallel
			measure, write := b.stopwatch.burst, b.report.burst
			if parallel == 1 {
				measure, write = b.stopwatch.single, b.report.single
			}
			measured, err := measure(ctx, cell{point: at, plugin: s.loaded, claims: g.claims})
			if err != nil {
				return fmt.Errorf("%s, %d devices, %d at once: %w", g.what, g.devices, parallel, err)
			}
			if err := write(at, measured); err != nil {
				return err
			}
		}
	}
	return nil
}

// pairs measures the plugin that holds claims in turn with the one that holds none.
func (b *bench) pairs(ctx context.Context, s *site, at point) error {
	for _, g := range s.groups {
		if g.bare == nil {
			continue
		}
		at.Case, at.Devices, at.Parallel = g.what, g.devices, 1
		loaded, bare, err := b.stopwatch.pair(ctx, cell{point: at, plugin: s.loaded, claims: g.claims}, cell{plugin: s.bare, claims: g.bare})
		if err != nil {
			return err
		}
		isTarget := at.Held == b.form.top()
		n := len(loaded.of(prepare))
		flat := loaded.median(prepare) / bare.median(prepare)
		if err := b.report.against(targetIf(isTarget, targetFlat), "prepare.flatness", &at, n, flat); err != nil {
			return err
		}
		flat = loaded.median(unprepare) / bare.median(unprepare)
		if err := b.report.value("unprepare.flatness", &at, n, flat); err != nil {
			return err
		}
	}
	return nil
}

func (w *stopwatch) pair(ctx context.Context, loaded, bare cell) (withClaims, without samples, err error) {
	withClaims, without = samples{}, samples{}
	err = w.passes(ctx, loaded, func(pass, i int) (int, error) {
		once := []func() error{
			func() error { return withClaims.cycle(ctx, loaded.plugin, loaded.claims[i]) },
			func() error { return without.cycle(ctx, bare.plugin, bare.claims[i]) },
		}
		if (pass+i)%2 == 1 {
			slices.Reverse(once)
		}
		if err := once[0](); err != nil {
			return 0, err
		}
		if err := once[1](); err != nil {
			return 0, err
		}
		if i+1 < len(bare.claims) {
			return 1, nil
		}
		return 1, bare.rest(ctx)
	})
	return withClaims, without, errors.Join(err, bare.rest(ctx))
}

// cycle measures one claim from Prepare to Unprepare.
func (s samples) cycle(ctx context.Context, p *plugin, c claim) error {
	if err := s.time(ctx, prepare, c, p.prepare); err != nil {
		return err
	}
	if err := c.use(); err != nil {
		return err
	}
	return s.time(ctx, unprepare, c, p.unprepare)
}

func (b *bench) reportMemory(p *plugin, at point) error {
	used, err := readMemory(p.PID())
	if err != nil {
		return err
	}
	return b.report.memory(at, used)
}
