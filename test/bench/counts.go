// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"
)

// counts are what does not depend on the machine's mood, for all claims of a cell.
type counts struct {
	// prepares and unprepares are file syncs.
	prepares, unprepares int
	// files are CDI files that were there while the claims were prepared, and not before.
	files int
	// plugin and containerd are CPU time, from the first Prepare until all is at rest again.
	plugin, containerd time.Duration
}

// counts prepares all claims one after another, and then unprepares them.
func (b *bench) counts(ctx context.Context, c cell, runtime *containerd) error {
	var n counts
	begin, err := cpuTimes(c.plugin, runtime)
	if err != nil {
		return err
	}
	if n.prepares, err = b.countSyncs(ctx, c, c.plugin.prepare); err != nil {
		return err
	}
	files, err := c.plugin.files()
	if err != nil {
		return err
	}
	n.files = files - c.plugin.standing
	if c.Case == caseOwn && n.files <= 0 {
		return errors.New("claims with mount paths of their own wrote no CDI file: the case is not what it is called")
	}
	n.unprepares, err = b.countSyncs(ctx, c, func(ctx context.Context, one claim) (time.Duration, error) {
		if err := one.use(); err != nil {
			return 0, err
		}
		return c.plugin.unprepare(ctx, one)
	})
	if err != nil {
		return err
	}
	if err := errors.Join(b.rest(ctx, c), runtime.quiet(ctx)); err != nil {
		return err
	}
	end, err := cpuTimes(c.plugin, runtime)
	n.plugin, n.containerd = end[0]-begin[0], end[1]-begin[1]
	return errors.Join(err, b.reportCounts(c, n))
}

// countSyncs runs an action for each claim. Where the kernel does not count for us it only does that.
func (b *bench) countSyncs(ctx context.Context, c cell, do action) (int, error) {
	all := func() error {
		for _, one := range c.claims {
			if _, err := do(ctx, one); err != nil {
				return err
			}
		}
		return nil
	}
	if b.syncs == nil {
		return 0, all()
	}
	return b.syncs.count(ctx, c.plugin.pid(), all)
}

func (b *bench) reportCounts(c cell, n counts) error {
	at, claims := c.point, len(c.claims)
	at.Parallel = 0
	each := func(name string, total float64) error {
		return b.report.value(name, &at, claims, total/float64(claims))
	}
	errs := []error{each("cpu.plugin", milliseconds(n.plugin)), each("prepare.files", float64(n.files))}
	if at.Watched {
		errs = append(errs, each("cpu.containerd", milliseconds(n.containerd)))
	}
	if b.syncs == nil {
		errs = append(errs, b.report.nothing("prepare.syncs", &at, b.syncReason), b.report.nothing("unprepare.syncs", &at, b.syncReason))
	} else {
		errs = append(errs, each("prepare.syncs", float64(n.prepares)), each("unprepare.syncs", float64(n.unprepares)))
	}
	return errors.Join(errs...)
}

// cpuTimes are those of the plugin and of a containerd, if there is one.
func cpuTimes(p *plugin, runtime *containerd) (used [2]time.Duration, err error) {
	if used[0], err = cpuTime(p.pid()); err == nil && runtime != nil {
		used[1], err = cpuTime(runtime.pid())
	}
	return used, err
}
