// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// The series of claims for one further share of a device, and the ratios of the medians where most and where fewest shares are held.
const (
	sharePrepare           = "share.prepare"
	shareUnprepare         = "share.unprepare"
	shareFlatness          = "share.flatness"
	shareUnprepareFlatness = "share.unprepare.flatness"
)

// shareMachine has a GPU for each number of shares. All are of one plugin, so that only the device differs.
const (
	shareMachine = "shares"
	targetShare  = 1.3
)

// sharedGPU is a GPU of which so many shares are held, and a claim for one more.
type sharedGPU struct {
	held int
	next claim
	samples
}

// measureShares measures a further share of GPUs of which claims hold more and more shares, in turn.
func (b *bench) measureShares(ctx context.Context) (err error) {
	b.say("starting on machine %s", shareMachine)
	p, err := b.startShares(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	found, err := b.cluster.published(ctx, p, len(b.form.shares))
	if err != nil {
		return err
	}
	var all []*sharedGPU
	for i, held := range b.form.shares {
		b.say("%s: holding %d shares of one GPU", shareMachine, held)
		gpu, err := b.holdShares(ctx, p, found.of("gpu")[i], held)
		if err != nil {
			return fmt.Errorf("a GPU with %d shares: %w", held, err)
		}
		all = append(all, gpu)
	}
	b.say("%s: preparing", shareMachine)
	random := rand.New(rand.NewPCG(9, 10))
	for begin := time.Now(); b.form.moreShares(len(all[0].of(sharePrepare)), begin); {
		for _, i := range random.Perm(len(all)) {
			if err := all[i].round(ctx, p); err != nil {
				return err
			}
		}
	}
	return b.report.shares(all)
}

// moreShares says whether a share is to be taken once more, after n times.
func (f form) moreShares(n int, begin time.Time) bool {
	return n < leastSamples || n < f.passes*f.width() && time.Since(begin) < 4*f.limit
}

func (b *bench) startShares(ctx context.Context) (*plugin, error) {
	n, err := b.newNode(ctx, shareMachine, unlimited()...)
	if err != nil {
		return nil, err
	}
	if err := (machine{name: shareMachine, gpus: len(b.form.shares)}).expand(n.Host); err != nil {
		return nil, err
	}
	file := filepath.Join(n.Disk, "config.yaml")
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		return nil, fmt.Errorf("write the plugin's configuration: %w", err)
	}
	n.Flags = append(n.Flags, "--config="+file)
	return b.start(ctx, n)
}

// holdShares prepares so many claims for shares of a GPU, and makes one more claim.
func (b *bench) holdShares(ctx context.Context, p *plugin, gpu string, held int) (*sharedGPU, error) {
	claims, err := b.cluster.createClaims(ctx, shares(p.node.Name+"-"+gpu, p.node.Name, []string{gpu}, held+1))
	if err != nil {
		return nil, err
	}
	for _, c := range claims[:held] {
		if _, err := p.prepare(ctx, c); err != nil {
			return nil, err
		}
	}
	return &sharedGPU{held: held, next: claims[held], samples: samples{}}, nil
}

func (g *sharedGPU) round(ctx context.Context, p *plugin) error {
	if err := g.time(ctx, sharePrepare, g.next, p.prepare); err != nil {
		return err
	}
	return g.time(ctx, shareUnprepare, g.next, p.unprepare)
}

// shares writes what a further share costs.
func (r *report) shares(all []*sharedGPU) error {
	var errs []error
	held := 0
	for _, g := range all {
		held += g.held
	}
	at := func(g *sharedGPU) *point {
		return &point{Machine: shareMachine, Held: held, Shares: g.held, Devices: 1, Parallel: 1, Case: casePlain}
	}
	for _, g := range all {
		errs = append(errs, r.series(*at(g), g.samples))
	}
	first, last := all[0], all[len(all)-1]
	over := func(name string) float64 { return last.median(name) / first.median(name) }
	n := len(last.of(sharePrepare))
	return errors.Join(append(errs,
		r.against(targetShare, shareFlatness, at(last), n, over(sharePrepare)),
		r.value(shareUnprepareFlatness, at(last), n, over(shareUnprepare)))...)
}
