// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/lone"
)

// bench is what all measurements share.
type bench struct {
	options
	report  *report
	cluster *controlPlane
	floor   *floor
	// fast and disk are directories of the run's own, in memory and on the disk of the plugins' records.
	fast, disk string
	// nodes counts what was started, for names.
	nodes int
	// stopwatch is there with the cluster.
	stopwatch *stopwatch

	progress io.Writer
	begin    time.Time
}

// newBench makes what the measurements need; close removes it.
func newBench(ctx context.Context, o options, r *report, progress io.Writer) (b *bench, err error) {
	b = &bench{options: o, report: r, progress: progress, begin: time.Now()}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if err := b.makeDirectories(); err != nil {
		return nil, err
	}
	if b.plugin == "" {
		b.say("building the plugin")
		b.plugin = filepath.Join(b.disk, "fettle-kubeletplugin")
		if err := build(ctx, b.root, b.plugin, "./cmd/fettle-kubeletplugin"); err != nil {
			return nil, err
		}
	}
	if b.floor, err = newFloor(filepath.Join(b.disk, "floor")); err != nil {
		return nil, err
	}
	b.say("starting the control plane")
	cluster, err := lone.StartCluster(ctx, lone.ClusterConfig{
		Programs: b.assets, CRDs: filepath.Join(b.root, "deployments", "crds"), Dir: b.fast, Namespace: namespace,
	})
	if err != nil {
		return b, err
	}
	b.cluster = &controlPlane{Cluster: cluster}
	b.stopwatch = &stopwatch{form: b.form, floor: b.floor, cluster: b.cluster}
	return b, nil
}

func (b *bench) makeDirectories() (err error) {
	if b.fast, err = os.MkdirTemp(memoryDir(), "fb"); err != nil {
		return err
	}
	if err := os.MkdirAll(b.state, 0o755); err != nil {
		return err
	}
	state, err := filepath.Abs(b.state)
	if err != nil {
		return err
	}
	if b.disk, err = os.MkdirTemp(state, "bench"); err != nil {
		return err
	}
	return checkDisk(b.disk)
}

func (b *bench) close() error {
	var errs []error
	if b.cluster != nil {
		errs = append(errs, b.cluster.Stop())
	}
	if b.floor != nil {
		errs = append(errs, b.floor.close())
	}
	for _, dir := range []string{b.fast, b.disk} {
		if dir != "" {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// measure goes through claims on the two machines, presets, instances and shares of GPUs, plans and caches.
func (b *bench) measure(ctx context.Context) error {
	switch {
	case b.caches:
		return b.measureCaches(ctx)
	case b.drivers:
		return measureDriver(ctx, b)
	case b.partitions:
		return b.measurePartitions(ctx)
	case b.plans:
		return b.measurePlan(ctx)
	}
	if err := forget(b.plugin); err != nil {
		return err
	}
	gpus, err := b.gpuSite(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(b.measureSite(ctx, gpus), gpus.stop()); err != nil {
		return err
	}
	disks, err := b.diskSite(ctx, gpus.held)
	if err != nil {
		return err
	}
	if err := errors.Join(b.measureSite(ctx, disks), disks.stop()); err != nil {
		return err
	}
	if err := b.measurePresets(); err != nil {
		return err
	}
	if err := measureDriver(ctx, b); err != nil {
		return err
	}
	if err := b.measurePartitions(ctx); err != nil {
		return err
	}
	if err := b.measurePlan(ctx); err != nil {
		return err
	}
	return b.measureCaches(ctx)
}

// measurePartitions measures claims for MIG instances and for shares of GPUs.
func (b *bench) measurePartitions(ctx context.Context) error {
	if err := b.measureMIG(ctx); err != nil {
		return err
	}
	return b.measureShares(ctx)
}

// forget has a file be read from the disk the next time, as a node reads a program whose image came some time ago. What the linker wrote a
// moment ago is in memory in large folios, each of which Linux 6.18 maps whole where one page of it is used: 10 MiB more of the plugin's
// would be resident.
func forget(name string) (err error) {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return errors.Join(f.Sync(), os.NewSyscallError("fadvise", unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)))
}

// say tells a person what is going on.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.progress, "bench: %5.1fs %s\n", time.Since(b.begin).Seconds(), fmt.Sprintf(format, args...))
}
