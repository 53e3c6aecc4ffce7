// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/demo/internal/play"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/test/harness"
)

// machines says which machines of test/machines each node is made of.
func machines() map[string][]string {
	return map[string][]string{
		"node1": {"8xh100-sxm", "4xlocalssd"},
		"node2": {"8xmi300x", "2xintel-gpu", "2xa100-2xn6000"},
	}
}

// times is how long the parts took.
type times struct {
	up, install, scenarios time.Duration
}

// prepare starts the cluster and installs the chart.
func prepare(ctx context.Context, h *harness.Harness, stdout io.Writer) (times, error) {
	const limit = 6 * time.Minute // some 12 seconds on an idle machine
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var t times
	fmt.Fprintln(stdout, strings.TrimSpace("Starting Kubernetes "+h.Emulate))
	start := time.Now()
	if err := h.Up(ctx); err != nil {
		return t, err
	}
	t.up = time.Since(start)
	for _, node := range h.NodeNames() {
		names := machines()[node]
		fmt.Fprintf(stdout, "%s is now %s\n", node, strings.Join(names, " + "))
		machine, err := h.LoadMachine(names...)
		if err != nil {
			return t, err
		}
		if err := h.Place(ctx, node, machine); err != nil {
			return t, err
		}
		if err := vendorFiles(h, node); err != nil {
			return t, err
		}
	}
	registry, err := h.StartRegistry(ctx)
	if err != nil {
		return t, err
	}
	if err := pushKernels(ctx, h.Root, registry); err != nil {
		return t, err
	}
	values, err := chartValues(h, registry)
	if err != nil {
		return t, err
	}
	fmt.Fprintln(stdout, "Installing the chart")
	start = time.Now()
	if err := h.Install(ctx, values); err != nil {
		return t, err
	}
	if err := published(ctx, h); err != nil {
		return t, err
	}
	t.install = time.Since(start)
	nodes, err := h.Kubectl(ctx, "get", "acceleratornodes")
	fmt.Fprintf(stdout, "\n%s\n", nodes)
	return t, err
}

// vendorDir is where each node has what the scenario of presets gives, vendorSource where that is in the repository.
const (
	vendorDir    = "/mnt/disks/vendor"
	vendorSource = "demo/15-preset/node"
)

// vendorFiles gives a node files beside its devices, as the installation of a driver would. Placing a machine removes them.
func vendorFiles(h *harness.Harness, node string) error {
	if err := os.CopyFS(filepath.Join(h.MachineDir(node), vendorDir), os.DirFS(filepath.Join(h.Root, vendorSource))); err != nil {
		return fmt.Errorf("give %s the files of presets: %w", node, err)
	}
	return nil
}

// published waits until every node says that its GPUs are.
func published(ctx context.Context, h *harness.Harness) error {
	const limit = 30 * time.Second
	return harness.Poll(ctx, "the nodes' devices", limit, func(ctx context.Context) error {
		for _, name := range h.NodeNames() {
			node, err := h.AcceleratorNode(ctx, name)
			if err != nil {
				return err
			}
			gpus := func(p v1alpha1.PoolStatus) bool { return p.Kind == string(device.KindGPU) && p.Devices > 0 }
			if !slices.ContainsFunc(node.Status.Pools, gpus) {
				return fmt.Errorf("%s publishes no GPU", name)
			}
		}
		return nil
	})
}

// chartValues are the demo's own over those of a simulated machine, with the registry at this address behind the name in the scenarios.
func chartValues(h *harness.Harness, registry string) (harness.Values, error) {
	data, err := os.ReadFile(filepath.Join(h.Root, "demo", "values.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read the chart's values: %w", err)
	}
	var own harness.Values
	if err := yaml.UnmarshalStrict(data, &own); err != nil {
		return nil, fmt.Errorf("demo/values.yaml: %w", err)
	}
	return h.BaseValues().Merge(own).Merge(harness.Values{"bitstreams": map[string]any{"registries": map[string]any{
		"plainHTTP": []string{registry}, "mirrors": map[string]any{registryName: []string{registry}},
	}}}), nil
}

// playAll runs the scenarios, some at a time, and says of each how it ended. The results are in the order of the scenarios.
func playAll(ctx context.Context, h *harness.Harness, scenarios []play.Scenario, o options, stdout io.Writer) ([]result, error) {
	look, err := os.ReadFile(filepath.Join(h.Root, "demo", "look.sh"))
	if err != nil {
		return nil, fmt.Errorf("read the script that looks at devices: %w", err)
	}
	if err := play.Contexts(h.Kubeconfig(), scenarios); err != nil {
		return nil, err
	}
	results := make([]result, len(scenarios))
	var printing sync.Mutex
	var group errgroup.Group
	group.SetLimit(o.parallel)
	for i, s := range scenarios {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			r := result{Scenario: s, Skipped: tooOld(s, h.Emulate)}
			start := time.Now()
			if r.Skipped == "" {
				r.Err = play.Play(ctx, h, s, string(look), o.keep)
			}
			r.Took = time.Since(start)
			results[i] = r
			if ctx.Err() != nil {
				return nil // interrupted, which is no verdict
			}
			printing.Lock()
			defer printing.Unlock()
			fmt.Fprintf(stdout, "%s %s (%.1f s)\n", r.verdict(), s.Name, r.Took.Seconds())
			if r.Err == nil {
				return nil
			}
			dir := filepath.Join(h.Cache, "demo-failed", s.Name)
			fmt.Fprintf(stdout, "  %v\n  more about it: %s\n", r.Err, dir)
			return h.Dump(context.WithoutCancel(ctx), dir)
		})
	}
	return results, group.Wait()
}

// tooOld says why a scenario cannot work with an older API; empty where it can.
func tooOld(s play.Scenario, emulate string) string {
	if emulate == "" || minor(emulate) >= minor(s.Script.Since) {
		return ""
	}
	return fmt.Sprintf("needs Kubernetes %s: %s", s.Script.Since, s.Script.Because)
}

// minor is the number after the dot; 0 for an empty version.
func minor(version string) int {
	_, text, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return n
}
