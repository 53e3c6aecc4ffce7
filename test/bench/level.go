// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// measureSite goes through the levels, and in the end starts both plugins again.
func (b *bench) measureSite(ctx context.Context, s *site) error {
	for _, held := range b.form.levels {
		if err := b.level(ctx, s, held); err != nil {
			return fmt.Errorf("machine %s with %d claims held: %w", s.machine.name, held, err)
		}
	}
	b.say("%s: starting again", s.machine.name)
	at := point{Machine: s.machine.name}
	var err error
	if s.bare, err = b.restart(ctx, s.bare, s.groups[0].bare[0], at); err != nil {
		return err
	}
	at.Held = s.prepared
	s.loaded, err = b.restart(ctx, s.loaded, s.groups[0].claims[0], at)
	return err
}

// restart starts a plugin with what it holds, and writes when it served.
func (b *bench) restart(ctx context.Context, old *plugin, c claim, at point) (*plugin, error) {
	if err := old.stop(); err != nil {
		return nil, err
	}
	p, err := b.start(ctx, old.node)
	if err != nil {
		return nil, err
	}
	took, err := b.answered(ctx, p, c)
	if err == nil {
		_, err = p.unprepare(ctx, c)
	}
	return p, errors.Join(err,
		b.report.value("start.sockets", &at, 1, milliseconds(p.sockets)),
		b.report.value("start.answered", &at, 1, milliseconds(took)),
	)
}

// level measures everything with so many claims held.
func (b *bench) level(ctx context.Context, s *site, held int) (err error) {
	b.say("%s: preparing %d claims to be held", s.machine.name, held)
	if err := b.hold(ctx, s, held); err != nil {
		return err
	}
	at := point{Machine: s.machine.name, Held: held}
	b.say("%s: measuring with %d held", s.machine.name, held)
	if err := b.cells(ctx, s, at, nil); err != nil {
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
	if !slices.Contains(b.form.watched, held) {
		return nil
	}
	at.Watched = true
	if b.noRuntime != nil {
		return b.report.nothing("prepare.p50", &at, b.noRuntime)
	}
	b.say("%s: measuring with %d held and containerd watching", s.machine.name, held)
	runtime, err := b.watch(ctx, s.loaded.node)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runtime.stop()) }()
	return b.cells(ctx, s, at, runtime)
}

// cells measures all groups.
func (b *bench) cells(ctx context.Context, s *site, at point, runtime *containerd) error {
	for _, g := range s.groups {
		at.Case, at.Devices, at.Parallel = g.what, g.devices, 1
		if err := b.counts(ctx, cell{point: at, plugin: s.loaded, claims: g.claims}, runtime); err != nil {
			return fmt.Errorf("%s, %d devices: %w", g.what, g.devices, err)
		}
		for _, parallel := range g.parallel {
			at.Parallel = parallel
			measure, write := b.burst, b.report.burst
			if parallel == 1 {
				measure, write = b.single, b.report.single
			}
			measured, err := measure(ctx, cell{point: at, plugin: s.loaded, claims: g.claims, most: at.most()})
			if err != nil {
				return fmt.Errorf("%s, %d devices, %d at once: %w", g.what, g.devices, parallel, err)
			}
			if err := write(at, measured); err != nil {
				return err
			}
			if err := runtime.quiet(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// most bounds the passes while a containerd watches. It reads all CDI files for each event, of which a claim with a file of its own
// makes three, so that some hundred claims keep it busy for many seconds after they are gone.
func (p point) most() int {
	switch {
	case !p.Watched:
		return 0
	case p.Case == caseOwn:
		return 1
	}
	return 2
}

// pairs measures the plugin that holds claims in turn with the one that holds none.
func (b *bench) pairs(ctx context.Context, s *site, at point) error {
	for _, g := range s.groups {
		if g.bare == nil {
			continue
		}
		at.Case, at.Devices, at.Parallel = g.what, g.devices, 1
		loaded, bare, err := b.pair(ctx, cell{point: at, plugin: s.loaded, claims: g.claims}, cell{plugin: s.bare, claims: g.bare})
		if err != nil {
			return err
		}
		isTarget := at.Held == b.form.top()
		n := len(loaded.of(prepare))
		flat := loaded.median(prepare) / bare.median(prepare)
		if err := b.report.against(targetFlat, isTarget, "prepare.flatness", &at, n, flat); err != nil {
			return err
		}
		flat = loaded.median(unprepare) / bare.median(unprepare)
		if err := b.report.value("unprepare.flatness", &at, n, flat); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) pair(ctx context.Context, loaded, bare cell) (withClaims, without samples, err error) {
	withClaims, without = samples{}, samples{}
	err = b.passes(ctx, loaded, func(pass, i int) (int, error) {
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
		return 1, b.rest(ctx, bare)
	})
	return withClaims, without, errors.Join(err, b.rest(ctx, bare))
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
	used, err := readMemory(p.pid())
	if err != nil {
		return err
	}
	return b.report.memory(at, used)
}
