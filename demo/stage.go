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
	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/harness"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// machines says which machines of test/machines each node is made of.
func machines() map[string][]string {
	return map[string][]string{
		"node1": {"8xh100-sxm", "4xlocalssd"},
		"node2": {"8xmi300x", "2xintel-gpu", "2xa100-2xn6000"},
		"node3": {"8xh100-iommu"},
		"node4": {"2xmi300x-divided", "2xb60-sriov"},
		"node5": {fpgaMachine},
	}
}

// reacts says of which nodes the PCI functions react to what is written. They have a label and a taint for the scenarios of partitions.
func reacts(node string) bool { return node == "node3" || node == "node4" }

// gpus are the models of NVIDIA's GPUs of nodes, as the simulated library knows them.
func gpus() map[string]string {
	return map[string]string{"node1": nvmlsim.H100, "node2": nvmlsim.A100x40, "node3": nvmlsim.H100}
}

// times is how long the parts took.
type times struct {
	up, install, scenarios time.Duration
}

// prepare starts the cluster and installs the chart.
func prepare(ctx context.Context, h *harness.Harness, stdout io.Writer) (times, error) {
	const limit = 6 * time.Minute // some 12 seconds on an idle machine
	ctx, cancel := context.WithTimeout(ctx, h.Patient(limit))
	defer cancel()
	var t times
	fmt.Fprintln(stdout, strings.TrimSpace("Starting Kubernetes "+h.Emulate))
	start := time.Now()
	if err := h.Up(ctx); err != nil {
		return t, err
	}
	t.up = time.Since(start)
	simulators, err := h.Simulators(ctx, filepath.Join(h.State, "simulators"))
	if err != nil {
		return t, err
	}
	tag, err := simulators.NVMLImage(ctx)
	if err != nil {
		return t, err
	}
	for _, node := range h.NodeNames() {
		fmt.Fprintf(stdout, "%s is now %s\n", node, strings.Join(machines()[node], " + "))
		if err := place(ctx, h, simulators, node); err != nil {
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
	if err := h.Install(ctx, values.Merge(harness.NVMLValues(tag))); err != nil {
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

// machineOf is what a node is made of.
func machineOf(h *harness.Harness, node string) (*sim.Machine, error) {
	if programs(node) {
		return fpgaCards(h.Root)
	}
	return h.LoadMachine(machines()[node]...)
}

// place makes a node be its machine.
func place(ctx context.Context, h *harness.Harness, simulators *harness.Simulators, node string) error {
	machine, err := machineOf(h, node)
	if err != nil {
		return err
	}
	if err := h.Place(ctx, node, machine); err != nil {
		return err
	}
	if err := ownSrv(ctx, h, node); err != nil {
		return err
	}
	if err := vendorFiles(h, node); err != nil {
		return err
	}
	if reacts(node) {
		if err := simulators.StartPCI(ctx, node, machine); err != nil {
			return err
		}
		for _, command := range [][]string{{"label", "node", node, "demo=partitions"}, {"taint", "node", node, "demo=partitions:NoSchedule"}} {
			if _, err := h.Kubectl(ctx, command...); err != nil {
				return err
			}
		}
	}
	if programs(node) {
		if err := simulators.StartFPGA(ctx, node, machine); err != nil {
			return err
		}
		return stageBitstreams(ctx, h, node)
	}
	if model, ok := gpus()[node]; ok {
		_, err = simulators.StartNVML(ctx, node, model)
	}
	return err
}

// published waits until every node says that its GPUs or FPGAs are.
func published(ctx context.Context, h *harness.Harness) error {
	const limit = time.Minute
	return h.Poll(ctx, "the nodes' devices", limit, func(ctx context.Context) error {
		for _, name := range h.NodeNames() {
			node, err := h.AcceleratorNode(ctx, name)
			if err != nil {
				return err
			}
			cards := func(p v1alpha1.PoolStatus) bool { return p.Kind != string(device.KindHost) && p.Devices > 0 }
			if !slices.ContainsFunc(node.Status.Pools, cards) {
				return fmt.Errorf("%s publishes neither a GPU nor an FPGA", name)
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
	return h.BaseValues().Merge(own).Merge(harness.Values{
		"bitstreams": map[string]any{"registries": map[string]any{
			"plainHTTP": []string{registry}, "mirrors": map[string]any{registryName: []string{registry}},
			"mirrorsOnly": []string{registryName},
		}},
		"kernelCaches": map[string]any{"volumes": map[string]any{"image": map[string]any{"tag": h.Version, "pullPolicy": "Never"}}},
	}), nil
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
			dir := filepath.Join(h.Artifacts("demo"), s.Name)
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
