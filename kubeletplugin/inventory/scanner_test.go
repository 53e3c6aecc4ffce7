// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/fpga/region"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/record"
)

func newLooker(t *testing.T, root string) *looker {
	t.Helper()
	file := nodeconfig.File{HostDevices: localSSD()}.WithDefaults()
	store, err := record.Open(disk.OS{}, filepath.Join(t.TempDir(), "state"))
	must(t, err)
	m := newMetrics()
	return &looker{
		config: &Config{Node: testNode, HostRoot: root, File: file}, store: store, latest: newLatest(), metrics: m, purger: newPurger(m),
		contents: region.OpenContents(disk.OS{}, t.TempDir()),
	}
}

func (l *looker) mustSee(t *testing.T) *view {
	t.Helper()
	l.look(t.Context())
	v, _ := l.latest.get()
	if v == nil {
		t.Fatal("no view")
	}
	return v
}

func TestLookSeesChanges(t *testing.T) {
	root := expand(t, "8xh100-sxm")
	l := newLooker(t, root)
	if v := l.mustSee(t); len(v.devices) != 8 {
		t.Errorf("%d devices, want 8", len(v.devices))
	}
	must(t, os.RemoveAll(root))
	l.look(t.Context())
	if v, _ := l.latest.get(); len(v.devices) != 8 {
		t.Error("a host tree that cannot be opened took the last view")
	}
	if got := testutil.ToFloat64(l.metrics.backgroundErrors.WithLabelValues("discovery")); got != 1 {
		t.Errorf("counted %v errors, want 1", got)
	}
	expandInto(t, "empty", root)
	if v := l.mustSee(t); len(v.devices) != 0 {
		t.Errorf("%d devices, want none", len(v.devices))
	}
}

// TestDirtyDirectory is withheld, emptied in the background, and published again; one that a claim holds is left alone, whatever
// its files are called.
func TestDirtyDirectory(t *testing.T) {
	root := expand(t, "4xlocalssd")
	l := newLooker(t, root)
	all := l.mustSee(t)
	if len(all.devices) != 4 || len(all.withheld) != 0 {
		t.Fatalf("devices %v, withheld %v", all.devices, all.withheld)
	}
	dirty, held, stale := all.devices[0], all.devices[1], all.devices[2]
	for _, d := range all.devices[:3] {
		must(t, os.MkdirAll(filepath.Join(root, d.Edits.Mounts[0].HostPath, ".fettle-trash-u0-0", "old"), 0o755))
	}
	holder := &record.Record{UID: "u1", Phase: record.Prepared, Devices: []record.Device{{Pool: testNode + "/host", Name: held.Name}}}
	must(t, l.store.Create(holder))
	must(t, l.store.Acquire(holder))
	former := &record.Record{UID: "u2", Devices: []record.Device{{Pool: testNode + "/host", Name: stale.Name}}}
	must(t, l.store.Acquire(former)) // a link without a record, as an interrupted release leaves it

	v := l.mustSee(t)
	if len(v.withheld) != 2 || v.withheld[dirty.Name] != beingEmptied || v.withheld[stale.Name] != beingEmptied {
		t.Errorf("withheld %v, want %s and %s", v.withheld, dirty.Name, stale.Name)
	}
	receive(t, l.purger.done)
	l.purger.wait()
	if v := l.mustSee(t); len(v.withheld) != 0 {
		t.Errorf("withheld %v after it was emptied", v.withheld)
	}
	if _, err := os.Stat(filepath.Join(root, held.Edits.Mounts[0].HostPath, ".fettle-trash-u0-0", "old")); err != nil {
		t.Errorf("a holder's file was deleted: %v", err)
	}
}

// TestPurgeFails: a directory that cannot be emptied is tried again at the interval, not at once and for ever.
func TestPurgeFails(t *testing.T) {
	p := newPurger(newMetrics())
	p.start(t.Context(), filepath.Join(t.TempDir(), "missing"))
	p.wait()
	if closed(p.done) {
		t.Error("a failure counts as done: the next look would start over at once")
	}
	if got := testutil.ToFloat64(p.metrics.backgroundErrors.WithLabelValues("purge")); got != 1 {
		t.Errorf("counted %v errors, want 1", got)
	}
}

// TestNVMLIsAskedOnce: the library initialises every GPU, so it is asked again only where the kernel's story changed or it failed.
func TestNVMLIsAskedOnce(t *testing.T) {
	root := expand(t, "8xh100-sxm")
	l := newLooker(t, root)
	asked, answer := 0, errors.New("driver not ready")
	l.query = func(context.Context) (nvml.Report, error) {
		asked++
		return nvml.Report{DriverVersion: "570.86.15"}, answer
	}
	steps := []struct {
		name   string
		before func()
		want   int
	}{
		{"first look", func() {}, 1},
		{"after a failure", func() { answer = nil }, 2},
		{"no change", func() {}, 2},
		{"no change again", func() {}, 2},
		{"another machine", func() {
			must(t, os.RemoveAll(root))
			expandInto(t, "2xa100-2xn6000", root)
		}, 3},
		{"no NVIDIA GPU", func() {
			must(t, os.RemoveAll(root))
			expandInto(t, "empty", root)
		}, 3},
		{"still none", func() {}, 3},
	}
	for _, step := range steps {
		step.before()
		l.mustSee(t)
		if asked != step.want {
			t.Errorf("%s: asked %d times, want %d", step.name, asked, step.want)
		}
	}
}

func TestRunLooksAtTheInterval(t *testing.T) {
	root := expand(t, "empty")
	l := newLooker(t, root)
	l.config.File.DiscoveryInterval.Duration = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { l.run(ctx); close(ended) }()
	for v, changed := l.latest.get(); v == nil; v, changed = l.latest.get() {
		receive(t, changed)
	}
	_, changed := l.latest.get()
	must(t, os.MkdirAll(filepath.Join(root, "mnt", "disks", "ssd0"), 0o755))
	receive(t, changed)
	cancel()
	receive(t, ended)
}

// TestRecoveringIsWithheld: a device whose last claim was left halfway is not published before that is undone.
func TestRecoveringIsWithheld(t *testing.T) {
	l := newLooker(t, expand(t, "8xh100-sxm"))
	all := l.mustSee(t)
	first := all.devices[0]
	l.recovering = func() map[[2]string]string {
		return map[[2]string]string{{poolName(testNode, first.Kind), first.Name}: "u1"}
	}
	if got, want := len(l.mustSee(t).published(first.Kind)), len(all.published(first.Kind))-1; got != want {
		t.Errorf("%d devices are published, want %d", got, want)
	}
	l.recovering = func() map[[2]string]string { return nil }
	if got, want := len(l.mustSee(t).published(first.Kind)), len(all.published(first.Kind)); got != want {
		t.Errorf("%d devices are published after the recovery, want %d", got, want)
	}
}
