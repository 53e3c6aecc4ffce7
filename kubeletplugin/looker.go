// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/sysfs"
)

// looker turns the host tree into views. Only its own goroutine uses it.
type looker struct {
	config  *Config
	store   *record.Store
	latest  *latest
	metrics *metrics
	// query asks NVML; nil where it is switched off.
	query func(context.Context) (nvml.Report, error)
	// uevents carries a value for every burst of kernel events; nil where the kernel does not tell.
	uevents <-chan struct{}
	// wake carries a value when a claim gave something back, so that a device may be free again.
	wake   chan struct{}
	purger *purger
	// again carries a value when a region was programmed, so that its attributes are read anew.
	again chan struct{}
	// contents is what regions hold, bootID the host's boot.
	contents *region.Contents
	bootID   string
	// recovering are the devices, by pool and name, whose last claim an earlier process left halfway. Nil: none.
	recovering func() map[[2]string]string

	// asked is what the kernel told of GPUs when NVML last answered, and report its answer. The library initialises every GPU of
	// a node without persistence mode, so it is asked only when the kernel's story changed.
	asked  []device.Device
	report *nvml.Report
	// found is what the last look found, without what claims make of it. Nil before the first.
	found *view
}

// run looks at once, then on every kernel event and at the latest after the configured interval, until ctx ends.
func (l *looker) run(ctx context.Context) {
	ticker := time.NewTicker(l.config.File.DiscoveryInterval.Duration)
	defer ticker.Stop()
	l.look(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.look(ctx)
		case <-l.uevents:
			l.look(ctx)
		case <-l.again:
			l.look(ctx)
		case <-l.wake:
			l.judgeSoon(ctx)
		case <-l.purger.done:
			l.judgeSoon(ctx)
		}
	}
}

func (l *looker) look(ctx context.Context) {
	start := time.Now()
	found, err := l.machine(ctx)
	if ctx.Err() != nil {
		return // the process ends: what was not looked at is not gone
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking at the machine failed; the last view stays")
		l.metrics.backgroundErrors.WithLabelValues("discovery").Inc()
		return
	}
	l.metrics.discovery.Observe(time.Since(start).Seconds())
	l.found = found
	l.judge(ctx)
}

// judgeSoon judges once for all that is given back within a moment: what a claim leaves is mostly gone when it is answered.
func (l *looker) judgeSoon(ctx context.Context) {
	const pause = 200 * time.Millisecond
	select {
	case <-ctx.Done():
	case <-time.After(pause):
		l.judge(ctx)
	}
}

// judge decides which of the devices that were found may be given out now.
func (l *looker) judge(ctx context.Context) {
	if l.found == nil {
		return // the next look does
	}
	v := &view{devices: slices.Clone(l.found.devices), problems: slices.Clone(l.found.problems), withheld: maps.Clone(l.found.withheld)}
	l.withholdDirty(v)
	l.withholdRecovering(v)
	l.addContents(v)
	v.tenants = l.tenantsOf(v.devices)
	v.bindLate = l.config.File.BindLate()
	if l.latest.set(v) {
		klog.FromContext(ctx).Info("Hardware changed", "devices", len(v.devices), "withheld", len(v.withheld), "problems", len(v.problems))
	}
	whole, _ := l.latest.get()
	l.metrics.observeView(whole)
	for _, dir := range dirtyDirectories(v) {
		l.purger.start(ctx, l.config.hostPath(dir))
	}
}

// machine looks twice at most: first without NVML, and again with its report where the kernel's story is new.
func (l *looker) machine(ctx context.Context) (*view, error) {
	// The tree is opened anew each time: a driver container may mount over it.
	tree, err := sysfs.Open(l.config.HostRoot)
	if err != nil {
		return nil, fmt.Errorf("open the host tree %s: %w", l.config.HostRoot, err)
	}
	defer tree.Close()
	opts := discover.Options{HostDevices: l.config.File.HostDevices, FPGARegions: l.config.File.FPGARegions}
	inventory := discover.Discover(ctx, tree, opts)
	if l.query != nil && !reflect.DeepEqual(l.asked, inventory.Devices) {
		l.report, l.asked = nil, nil
	}
	if l.query != nil {
		kernel := inventory.Devices
		opts.NVML = l.cachedQuery
		inventory = discover.Discover(ctx, tree, opts)
		if l.report != nil {
			l.asked = kernel
		}
	}
	v := &view{devices: inventory.Devices, problems: inventory.Problems, withheld: map[string]string{}}
	withholdUnusable(v)
	return v, nil
}

// withholdUnusable keeps back what no container could be given, so that it does not keep the others back.
func withholdUnusable(v *view) {
	for i := range v.devices {
		d := &v.devices[i]
		if _, err := cdi.Common(d.Edits); err != nil {
			v.withhold(d.Name, d.Name, discover.ReasonInvalid, err)
		}
	}
}

func (l *looker) cachedQuery(ctx context.Context) (nvml.Report, error) {
	if l.report != nil {
		return *l.report, nil
	}
	report, err := l.query(ctx)
	if err != nil {
		return nvml.Report{}, err
	}
	l.report = &report
	return report, nil
}

// withholdDirty keeps directories that are not yet empty from the scheduler. A directory that a claim holds is that claim's: what
// it calls its files is its own affair.
func (l *looker) withholdDirty(v *view) {
	for i := range v.devices {
		d := &v.devices[i]
		if d.Kind != device.KindHost || len(d.Edits.Mounts) == 0 {
			continue
		}
		if l.store.Held(poolName(l.config.Node, d.Kind), d.Name) {
			continue
		}
		path := d.Edits.Mounts[0].HostPath
		dirty, err := isDirty(l.config.hostPath(path))
		switch {
		case err != nil:
			v.withhold(d.Name, path, discover.ReasonHostPathUnusable, err)
		case dirty:
			v.withheld[d.Name] = beingEmptied
		}
	}
}

// withholdRecovering keeps back what is not undone yet of claims that an earlier process left halfway.
func (l *looker) withholdRecovering(v *view) {
	if l.recovering == nil {
		return
	}
	held := l.recovering()
	for i := range v.devices {
		d := &v.devices[i]
		if uid, ok := held[[2]string{poolName(l.config.Node, d.Kind), d.Name}]; ok {
			v.withheld[d.Name] = "is being recovered: a Prepare or Unprepare of claim " + uid + " was interrupted"
		}
	}
}

const beingEmptied = "is being emptied after its last claim"

func dirtyDirectories(v *view) []string {
	var dirs []string
	for i := range v.devices {
		if d := &v.devices[i]; v.withheld[d.Name] == beingEmptied {
			dirs = append(dirs, d.Edits.Mounts[0].HostPath)
		}
	}
	return dirs
}

func isDirty(path string) (bool, error) {
	d, err := hostdir.Open(path)
	if err != nil {
		return false, err
	}
	defer d.Close()
	return d.Dirty()
}
