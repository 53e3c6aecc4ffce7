// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// started is a series of starts of one machine, the last of which still runs.
type started struct {
	machine            machine
	sockets, published series
	plugin             *plugin
	pools              pools
}

// shippedMachines are those on which plugins are measured as they are shipped, their own limits on calls to the API server
// included.
func shippedMachines() []machine {
	return []machine{{name: "empty"}, {name: "200-devices", gpus: 200}}
}

// startShipped measures how long starts take, and leaves a plugin of each machine running.
func (b *bench) startShipped(ctx context.Context) (all []started, err error) {
	for _, m := range shippedMachines() {
		b.say("starting on machine %s", m.name)
		s, err := b.startOften(ctx, m)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("machine %s: %w", m.name, err), stopAll(all))
		}
		all = append(all, s)
	}
	return all, nil
}

func stopAll(all []started) error {
	var errs []error
	for _, s := range all {
		errs = append(errs, s.plugin.stop())
	}
	return errors.Join(errs...)
}

// measureShipped measures what a plugin occupies that has idled since its start, and a burst.
func (b *bench) measureShipped(ctx context.Context, all []started) error {
	last := all[len(all)-1]
	if rest := b.form.idle - time.Since(last.plugin.begin); rest > 0 {
		b.say("idling for another %.0f s", rest.Seconds())
		if err := pause(ctx, rest); err != nil {
			return err
		}
	}
	for _, s := range all {
		at := point{Machine: s.machine.name}
		used, err := readMemory(s.plugin.pid())
		if err != nil {
			return err
		}
		if err := errors.Join(
			b.report.value("start.sockets", &at, len(s.sockets), s.sockets.median()),
			b.report.value("start.published", &at, len(s.published), s.published.median()),
			b.report.value("rss.idle", &at, 1, used.resident), b.report.value("rss.idle.anon", &at, 1, used.anon),
		); err != nil {
			return err
		}
	}
	return b.shippedBurst(ctx, last)
}

func (b *bench) startOften(ctx context.Context, m machine) (s started, err error) {
	s.machine = m
	for i := range b.form.starts {
		n, err := b.newNode(ctx, fmt.Sprintf("start-%s-%d", m.name, i))
		if err != nil {
			return s, err
		}
		if err := expandFile(b.root, m.name, n.host); err != nil {
			return s, err
		}
		p, err := b.start(ctx, n)
		if err != nil {
			return s, err
		}
		found, took, err := b.published(ctx, p, m.devices())
		if err != nil {
			return s, errors.Join(err, p.stop())
		}
		s.sockets.add(p.sockets)
		s.published.add(took)
		if i < b.form.starts-1 {
			if err := p.stop(); err != nil {
				return s, err
			}
			continue
		}
		s.plugin, s.pools = p, found
	}
	return s, nil
}

// shippedBurst measures calls at once under the limits that the plugin is shipped with.
func (b *bench) shippedBurst(ctx context.Context, s started) error {
	gpus := s.pools.of("gpu")
	var shapes []shape
	for i := range b.form.width() {
		shapes = append(shapes, shape{
			name: fmt.Sprintf("shipped-%d", i), node: s.plugin.node.name, pool: "gpu", devices: gpus[i : i+1], what: casePlain,
		})
	}
	claims, err := b.createClaims(ctx, shapes)
	if err != nil {
		return err
	}
	s.plugin.standing, err = s.plugin.files()
	if err != nil {
		return err
	}
	at := point{Machine: s.machine.name, Devices: 1, Parallel: b.form.width(), Case: casePlain}
	measured, err := b.burst(ctx, cell{point: at, plugin: s.plugin, claims: claims, most: shippedRounds})
	if err != nil {
		return err
	}
	return b.report.burst(at, measured)
}

// shippedRounds is how many rounds of 64 claims, each prepared twice, the plugin's budget of calls to the API server lasts that has
// filled up while it idled.
const shippedRounds = 3

// answered is how long after its start a plugin answers a Prepare.
func (b *bench) answered(ctx context.Context, p *plugin, c claim) (time.Duration, error) {
	return await(ctx, p.begin, "the first answer", func() (bool, error) {
		if err := p.running(); err != nil {
			return false, err
		}
		_, err := p.prepare(ctx, c)
		return err == nil, nil
	})
}
