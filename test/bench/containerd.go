// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// containerd is a container runtime that watches a node's CDI directory, and runs nothing.
type containerd struct{ *process }

// runtimeConfig keeps a containerd away from the host's directories. Its CDI cache is what watches.
const runtimeConfig = `version = 3
root = %q
state = %q
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.blockfile",
]

[grpc]
address = %q

[ttrpc]
address = %q

[plugins.'io.containerd.nri.v1.nri']
disable = true

[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = [%q]
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [%q]
conf_dir = %q
`

// checkContainerd says why there will be no containerd.
func checkContainerd(assets string) error {
	if os.Geteuid() != 0 {
		return errors.New("containerd needs root")
	}
	if _, err := os.Stat(filepath.Join(assets, "containerd")); err != nil {
		return fmt.Errorf("no containerd, make cluster-build makes one: %w", err)
	}
	return nil
}

// watch starts a containerd and waits until it watches the node's CDI directory.
func (b *bench) watch(ctx context.Context, n node) (_ *containerd, err error) {
	b.runtimes++
	dir := filepath.Join(b.fast, "c"+strconv.Itoa(b.runtimes))
	cni := filepath.Join(dir, "cni")
	if err := os.MkdirAll(cni, 0o700); err != nil {
		return nil, fmt.Errorf("make containerd's directories: %w", err)
	}
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf(runtimeConfig, filepath.Join(b.disk, "c"+strconv.Itoa(b.runtimes)), filepath.Join(dir, "state"),
		filepath.Join(dir, "c.sock"), filepath.Join(dir, "t.sock"), n.cdi(), cni, cni)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write containerd's configuration: %w", err)
	}
	// Mounts of its own, so that none is left on the host.
	child, err := startProcess(syscall.CLONE_NEWNS, filepath.Join(b.assets, "containerd"), "--config", config, "--log-level", "warn")
	if err != nil {
		return nil, err
	}
	c := &containerd{child}
	_, err = await(ctx, c.begin, "containerd to watch "+n.cdi(), func() (bool, error) {
		if err := c.running(); err != nil {
			return false, err
		}
		return watches(c.pid(), n.cdi())
	})
	if err == nil {
		err = c.quiet(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// quiet waits until containerd, where there is one, has read what changed: one cell's changes must not be paid by the next.
func (c *containerd) quiet(ctx context.Context) error {
	if c == nil {
		return nil
	}
	const (
		interval = 50 * time.Millisecond
		calm     = 4
		// What its timers use in an interval.
		idle = 3 * time.Millisecond
	)
	same, last := 0, time.Duration(0)
	_, err := await(ctx, time.Now(), "containerd to come to rest", func() (bool, error) {
		if err := pause(ctx, interval); err != nil {
			return false, err
		}
		used, err := cpuTime(c.pid())
		same++
		if used-last > idle {
			same = 0
		}
		last = used
		return same >= calm, err
	})
	return err
}
