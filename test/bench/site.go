// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
)

// site is one machine, twice: a plugin that will hold claims, and one of the same kind that holds none, to be measured in turn with
// it.
type site struct {
	machine      machine
	loaded, bare *plugin
	// held are the claims that are prepared level by level, prepared how many of them are. They are of GPUs that both sites'
	// machines have.
	held     []claim
	prepared int
	groups   []group
}

// group is claims of one shape. Those of bare are the same on the plugin without claims, where that is measured.
type group struct {
	what     string
	devices  int
	parallel []int
	claims   []claim
	bare     []claim
}

// The plugins of a site are asked for more claims a second than a node ever sees, so their own limit on calls, which has a figure of
// its own, is out of the way.
func unlimited() []string { return []string{"--kube-api-qps=10000", "--kube-api-burst=10000"} }

// newSite starts both plugins.
func (b *bench) newSite(ctx context.Context, m machine) (s *site, loaded, bare pools, err error) {
	b.say("starting on machine %s", m.name)
	s = &site{machine: m}
	if s.loaded, loaded, err = b.startSite(ctx, "bench", m); err != nil {
		return s, nil, nil, err
	}
	s.bare, bare, err = b.startSite(ctx, "bench-bare", m)
	return s, loaded, bare, err
}

func (b *bench) startSite(ctx context.Context, name string, m machine) (*plugin, pools, error) {
	n, err := b.newNode(ctx, name, unlimited()...)
	if err != nil {
		return nil, nil, err
	}
	if m.directories > 0 {
		n.Host = filepath.Join(n.Disk, "host") // what a claim leaves in a directory is on a disk
	}
	if err := m.expand(n.Host); err != nil {
		return nil, nil, err
	}
	file := filepath.Join(n.Disk, "config.yaml")
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		return nil, nil, fmt.Errorf("write the plugin's configuration: %w", err)
	}
	n.Flags = append(n.Flags, "--config="+file)
	p, err := b.start(ctx, n)
	if err != nil {
		return nil, nil, err
	}
	found, err := b.cluster.published(ctx, p, m.devices())
	if err == nil {
		p.standing, err = p.files()
	}
	if err != nil {
		return nil, nil, errors.Join(err, p.Stop())
	}
	return p, found, nil
}

func (s *site) stop() error {
	var errs []error
	for _, p := range []*plugin{s.loaded, s.bare} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	return errors.Join(errs...)
}

// gpuSite has claims of whole GPUs.
func (b *bench) gpuSite(ctx context.Context) (_ *site, err error) {
	s, loaded, bare, err := b.newSite(ctx, b.form.gpuMachine())
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if err != nil {
		return nil, err
	}
	node, shared := s.loaded.node.Name, b.form.shared()
	gpus, free := loaded.of("gpu")[:shared], loaded.of("gpu")[shared:]
	b.say("creating claims to hold")
	if s.held, err = b.cluster.createClaims(ctx, shares(node, node, gpus, b.form.top())); err != nil {
		return nil, err
	}
	for _, devices := range widths() {
		one := group{what: casePlain, devices: devices, parallel: b.form.parallel}
		shapes := cut("gpu", one, node, free, b.form.width())
		if one.claims, err = b.cluster.createClaims(ctx, shapes); err != nil {
			return nil, err
		}
		if devices == 1 {
			shapes = cut("gpu", one, s.bare.node.Name, bare.of("gpu")[shared:], b.form.width())
			if one.bare, err = b.cluster.createClaims(ctx, shapes); err != nil {
				return nil, err
			}
		}
		s.groups = append(s.groups, one)
	}
	return s, nil
}

// shares are claims that share some GPUs of a node. Their names begin with a word.
func shares(word, node string, gpus []string, n int) []shape {
	shapes := make([]shape, n)
	for i := range n {
		at := i % len(gpus)
		shapes[i] = shape{
			name: fmt.Sprintf("%s-share-%d", word, i), node: node, pool: "gpu", devices: gpus[at : at+1], what: casePlain,
			share: fmt.Sprintf("5ea5e000-0000-4000-8000-%012d", i),
		}
	}
	return shapes
}

// cut makes claims of devices that no other of them has, as many as there are devices for, and n at most.
func cut(pool string, g group, node string, devices []string, n int) []shape {
	var shapes []shape
	for i := 0; i < n && (i+1)*g.devices <= len(devices); i++ {
		shapes = append(shapes, shape{
			name: fmt.Sprintf("%s-%s-%d-%d", node, g.what, g.devices, i), node: node, pool: pool, what: g.what,
			devices: devices[i*g.devices : (i+1)*g.devices],
		})
	}
	return shapes
}

// diskSite has claims of host directories, on a machine of few devices.
func (b *bench) diskSite(ctx context.Context, held []claim) (_ *site, err error) {
	s, loaded, bare, err := b.newSite(ctx, b.form.diskMachine())
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if err != nil {
		return nil, err
	}
	s.held = held
	for _, what := range []string{caseEffect, caseOwn} {
		for _, devices := range widths() {
			one := group{what: what, devices: devices, parallel: b.form.parallel}
			if devices > 1 {
				one.parallel = []int{1} // there are directories for no more
			}
			if one.claims, err = b.directoryClaims(ctx, one, s.loaded, loaded.of("host")); err != nil {
				return nil, err
			}
			if devices == 1 {
				if one.bare, err = b.directoryClaims(ctx, one, s.bare, bare.of("host")); err != nil {
					return nil, err
				}
			}
			s.groups = append(s.groups, one)
		}
	}
	return s, nil
}

func (b *bench) directoryClaims(ctx context.Context, g group, p *plugin, devices []string) ([]claim, error) {
	claims, err := b.cluster.createClaims(ctx, cut("host", g, p.node.Name, devices, b.form.width()))
	if err != nil || g.what != caseEffect {
		return claims, err
	}
	for i := range claims {
		for _, name := range devices[i*g.devices : (i+1)*g.devices] {
			claims[i].directories = append(claims[i].directories, p.node.directory(name))
		}
	}
	return claims, nil
}

// hold prepares claims until so many are held.
func (b *bench) hold(ctx context.Context, s *site, n int) (err error) {
	work, inner := errgroup.WithContext(ctx)
	work.SetLimit(writers)
	for _, c := range s.held[s.prepared:n] {
		work.Go(func() error {
			_, err := s.loaded.prepare(inner, c)
			return err
		})
	}
	if err := work.Wait(); err != nil {
		return fmt.Errorf("prepare %d claims to be held: %w", n, err)
	}
	s.prepared = n
	s.loaded.standing, err = s.loaded.files()
	return err
}
