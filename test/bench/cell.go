// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/fettle-dev/fettle/test/lone"
)

// cell is what is measured at one point.
type cell struct {
	point
	plugin *plugin
	claims []claim
}

// stopwatch measures cells: calls one after another, and at once.
type stopwatch struct {
	form    form
	floor   *floor
	cluster *controlPlane
}

// passes goes through the claims until the form's passes are done or its time is over, and lets the plugin come to rest in
// between. do measures the claims from the i-th on and returns how many those were.
func (w *stopwatch) passes(ctx context.Context, c cell, do func(pass, i int) (int, error)) error {
	begin := time.Now()
	measured := 0
	passes := w.form.passesOf(c.Parallel, len(c.claims))
	for pass := range passes {
		for i := 0; i < len(c.claims); {
			if measured >= leastSamples && time.Since(begin) > w.form.limit {
				return c.rest(ctx)
			}
			n, err := do(pass, i)
			if err != nil {
				return err
			}
			i, measured = i+n, measured+n
		}
		if err := c.rest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// single measures one call after another. What is compared is measured in an order that changes from claim to claim, the same in
// each run, so that none always profits from the one before it.
func (w *stopwatch) single(ctx context.Context, c cell) (samples, error) {
	s := samples{}
	random := rand.New(rand.NewPCG(1, 2))
	err := w.passes(ctx, c, func(_, i int) (int, error) {
		one := c.claims[i]
		compared := []func() error{
			func() error { return s.time(ctx, get, one, w.cluster.get) },
			func() error { return s.time(ctx, rpc, one, c.plugin.nothing) },
			func() error { return s.time(ctx, prepare, one, c.plugin.prepare) },
			func() error { return w.floorOnce(s) },
		}
		random.Shuffle(len(compared), func(i, j int) { compared[i], compared[j] = compared[j], compared[i] })
		for _, measure := range compared {
			if err := measure(); err != nil {
				return 0, err
			}
		}
		if err := s.time(ctx, again, one, c.plugin.prepare); err != nil {
			return 0, err
		}
		if err := one.use(); err != nil {
			return 0, err
		}
		return 1, s.time(ctx, unprepare, one, c.plugin.unprepare)
	})
	return s, err
}

// time adds what an action took.
func (s samples) time(ctx context.Context, name string, c claim, do action) error {
	took, err := do(ctx, c)
	if err == nil {
		s.add(name, took)
	}
	return err
}

// floorOnce measures the cheapest durable writes.
func (w *stopwatch) floorOnce(s samples) error {
	file, took, err := w.floor.create()
	if err != nil {
		return err
	}
	s.add(floorCreate, took)
	if took, err = w.floor.add(); err != nil {
		return err
	}
	s.add(floorAppend, took)
	if took, err = w.floor.remove(file); err != nil {
		return err
	}
	s.add(floorUnlink, took)
	return nil
}

// burst measures calls at once: the GETs of the same claims, the Prepares, the Unprepares, the least that a Prepare can be, and one call
// with all claims.
func (w *stopwatch) burst(ctx context.Context, c cell) (samples, error) {
	s := samples{}
	err := w.passes(ctx, c, func(pass, i int) (int, error) {
		round := c.claims[i:min(i+c.Parallel, len(c.claims))]
		first, second := w.burstGet, w.burstPrepare
		if (pass+i/c.Parallel)%2 == 1 {
			first, second = second, first
		}
		if err := first(ctx, c, round, s); err != nil {
			return 0, err
		}
		if err := second(ctx, c, round, s); err != nil {
			return 0, err
		}
		if err := w.burstFloor(ctx, c, round, s); err != nil {
			return 0, err
		}
		return len(round), c.wave(ctx, round, s)
	})
	return s, err
}

func (w *stopwatch) burstGet(ctx context.Context, _ cell, round []claim, s samples) error {
	return s.round(ctx, get, getWall, round, w.cluster.get)
}

func (w *stopwatch) burstPrepare(ctx context.Context, c cell, round []claim, s samples) error {
	if err := s.round(ctx, prepare, prepareWall, round, c.plugin.prepare); err != nil {
		return err
	}
	for _, one := range round {
		if err := one.use(); err != nil {
			return err
		}
	}
	return s.round(ctx, unprepare, unprepareWall, round, c.plugin.unprepare)
}

// burstFloor measures what every Prepare has in it, for all claims at once: the GET, a call without a claim, a durable file.
func (w *stopwatch) burstFloor(ctx context.Context, c cell, round []claim, s samples) error {
	files := make(chan string, len(round))
	_, all, err := together(ctx, round, func(ctx context.Context, one claim) (time.Duration, error) {
		if _, err := w.cluster.get(ctx, one); err != nil {
			return 0, err
		}
		if _, err := c.plugin.nothing(ctx, one); err != nil {
			return 0, err
		}
		name, took, err := w.floor.create()
		if err == nil {
			files <- name
		}
		return took, err
	})
	close(files)
	for name := range files {
		if _, gone := w.floor.remove(name); gone != nil {
			return gone
		}
	}
	if err != nil {
		return err
	}
	s.add(floorWall, all)
	return nil
}

// wave measures one call for all claims, where one has a device as it is: the others would wait for directories and files that are
// still being cleared.
func (c cell) wave(ctx context.Context, round []claim, s samples) error {
	if c.Case != casePlain || c.Devices != 1 {
		return nil
	}
	took, err := c.plugin.prepareAll(ctx, round)
	if err != nil {
		return err
	}
	s.add(waveWall, took)
	_, _, err = together(ctx, round, c.plugin.unprepare)
	return err
}

func (s samples) round(ctx context.Context, name, wall string, round []claim, do action) error {
	each, all, err := together(ctx, round, do)
	if err != nil {
		return err
	}
	for _, took := range each {
		s.add(name, took)
	}
	s.add(wall, all)
	return nil
}

// use leaves something in the claim's directories, as its workload would.
func (c claim) use() error {
	for _, dir := range c.directories {
		if err := fill(dir); err != nil {
			return err
		}
	}
	return nil
}

// rest waits until what the plugin clears after its answers is cleared, so that the next Prepare finds as much to do as the first:
// the directories are empty, and only the CDI files of before are there.
func (c cell) rest(ctx context.Context) error {
	_, err := lone.Await(ctx, time.Now(), "the directories and CDI files of released claims to go", func() (bool, error) {
		for _, one := range c.claims {
			for _, dir := range one.directories {
				if ok, err := empty(dir); !ok || err != nil {
					return false, err
				}
			}
		}
		files, err := c.plugin.files()
		return files <= c.plugin.standing, err
	})
	return err
}
