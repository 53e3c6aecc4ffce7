// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/test/nvmlsim"
)

// The series of claims for MIG instances. Those of the simulator are the calls of fettle-nvml that such a Prepare or Unprepare makes,
// made alone.
const (
	migPrepare            = "mig.prepare"
	migUnprepare          = "mig.unprepare"
	migSimulatorPrepare   = "mig.simulator.prepare"
	migSimulatorUnprepare = "mig.simulator.unprepare"
)

// The ratios of their medians.
const (
	migPrepareCost       = "mig.prepare.over_simulator"
	migUnprepareCost     = "mig.unprepare.over_simulator"
	migFlatness          = "mig.flatness"
	migUnprepareFlatness = "mig.unprepare.flatness"
	migSimulatorFlatness = "mig.simulator.flatness"
	migOwnFlatness       = "mig.own_flatness"
)

func migSeries() []string {
	return []string{migPrepare, migUnprepare, migSimulatorPrepare, migSimulatorUnprepare}
}

func migRatios() []string {
	return []string{migPrepareCost, migUnprepareCost, migFlatness, migUnprepareFlatness, migSimulatorFlatness, migOwnFlatness}
}

const (
	// migMachine has eight H100 with seven places of the smallest profile each.
	migMachine   = "8xh100-iommu"
	migProfile   = 19 // 1g.10gb
	gpusPerNode  = 8
	migPlaces    = gpusPerNode * 7
	targetMIG    = 1.3
	migStartName = "-mig-1g-10gb-s"
)

const migPolicy = `apiVersion: fettle.dev/v1alpha1
kind: PartitionPolicy
metadata: {name: small}
spec: {devices: {nvidia: {mig: {mode: Dynamic, profiles: [1g.10gb]}}}}
`

// migConfiguration has no other process ask the library meanwhile.
const migConfiguration = `apiVersion: config.fettle.dev/v1alpha1
kind: KubeletPluginConfiguration
discoveryInterval: 1h
nvml: {driverRoot: %s}
health: {disabledSources: [nvml]}
`

// migNode is a node on which all places but one are held, or none is. Beside it is a machine on which as many instances are, and that has
// no plugin.
type migNode struct {
	plugin *plugin
	claim  claim
	held   int
	alone  *nvml.Prober
	place  nvml.MIGPlace
	samples
}

// measureMIG measures claims for MIG instances on an empty node and on one where only one place is left, in turn.
func (b *bench) measureMIG(ctx context.Context) (err error) {
	b.say("building fettle-nvml with the simulator")
	command := filepath.Join(b.disk, "fettle-nvml")
	if err := buildWith(ctx, b.root, command, "./test/nvmlsim/fettle-nvml", "CGO_ENABLED=1"); err != nil {
		return err
	}
	forget, err := b.cluster.createPolicy(ctx, migPolicy)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, forget()) }()
	var nodes []*migNode
	defer func() {
		for _, n := range nodes {
			err = errors.Join(err, n.plugin.Stop())
		}
	}()
	for _, held := range []int{0, migPlaces - 1} {
		b.say("%s: holding %d instances", migMachine, held)
		n, err := b.newMIGNode(ctx, command, held)
		if n != nil {
			nodes = append(nodes, n)
		}
		if err != nil {
			return fmt.Errorf("a node with %d MIG instances: %w", held, err)
		}
	}
	b.say("%s: preparing", migMachine)
	random := rand.New(rand.NewPCG(7, 8))
	for begin := time.Now(); b.form.more(len(nodes[0].of(migPrepare)), begin, 10*b.form.limit); {
		for _, i := range random.Perm(len(nodes)) {
			if err := nodes[i].round(ctx, random.IntN(2) == 0); err != nil {
				return err
			}
		}
	}
	return b.report.instances(nodes[0], nodes[1])
}

// createPolicy makes a PartitionPolicy from its YAML. forget deletes it, so that it holds for no machine that is measured later.
func (api *controlPlane) createPolicy(ctx context.Context, text string) (forget func() error, err error) {
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		return nil, fmt.Errorf("read a policy: %w", err)
	}
	resource := schema.GroupVersionResource{Group: v1alpha1.GroupName, Version: "v1alpha1", Resource: "partitionpolicies"}
	client := api.Dynamic.Resource(resource)
	if _, err := client.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("make a PartitionPolicy: %w", err)
	}
	return func() error {
		return client.Delete(context.WithoutCancel(ctx), object.GetName(), metav1.DeleteOptions{})
	}, nil
}

// newMIGNode starts a plugin, and has claims prepared for the first places. The last place is for what is measured.
func (b *bench) newMIGNode(ctx context.Context, command string, held int) (*migNode, error) {
	object, err := b.newNode(ctx, fmt.Sprintf("mig-%d", held))
	if err != nil {
		return nil, err
	}
	if _, err := b.simulateMIG(object.Host, object.Disk); err != nil {
		return nil, err
	}
	file := filepath.Join(object.Disk, "config.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, migConfiguration, object.Disk), 0o600); err != nil {
		return nil, fmt.Errorf("write the plugin's configuration: %w", err)
	}
	object.Flags = []string{"--config=" + file, "--nvml-command=" + command}
	n := &migNode{held: held, samples: samples{}}
	if n.plugin, err = b.start(ctx, object); err != nil {
		return nil, err
	}
	found, err := b.cluster.published(ctx, n.plugin, migPlaces+gpusPerNode)
	if err != nil {
		return n, err
	}
	places := slices.DeleteFunc(found.of("gpu"), func(name string) bool { return !isPlace(name) })
	shapes := make([]shape, 0, held+1)
	for i, name := range append(slices.Clone(places[:held]), places[len(places)-1]) {
		shapes = append(shapes, shape{
			name: fmt.Sprintf("mig-%d-%d", held, i), node: object.Name, pool: "gpu", devices: []string{name}, what: casePlain,
		})
	}
	claims, err := b.cluster.createClaims(ctx, shapes)
	if err != nil {
		return n, err
	}
	for _, c := range claims[:held] {
		if _, err := n.plugin.prepare(ctx, c); err != nil {
			return n, err
		}
	}
	n.claim = claims[held]
	return n, b.simulateAlone(n, object, command)
}

func isPlace(name string) bool {
	ok, err := filepath.Match("*"+migStartName+"?", name)
	return ok && err == nil
}

// simulateMIG makes a machine with its host tree, and the file of its library.
func (b *bench) simulateMIG(host, driverRoot string) (nvmlsim.Machine, error) {
	if err := expandFile(b.root, migMachine, host); err != nil {
		return nvmlsim.Machine{}, err
	}
	return nvmlsim.Adopt(nvmlsim.DefaultFile(driverRoot), host, nvmlsim.H100)
}

// simulateAlone makes the machine that has no plugin, with as many instances.
func (b *bench) simulateAlone(n *migNode, object node, command string) error {
	root := filepath.Join(object.Disk, "alone")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return fmt.Errorf("make a machine without a plugin: %w", err)
	}
	machine, err := b.simulateMIG(filepath.Join(object.Fast, "alone"), root)
	if err != nil {
		return err
	}
	if err := machine.SwitchOn(); err != nil {
		return err
	}
	for i := range n.held {
		if _, err := machine.Foreign(i/7, migProfile, uint32(i%7), 1); err != nil {
			return err
		}
	}
	state, err := machine.Look()
	if err != nil {
		return err
	}
	last := state.Cards[gpusPerNode-1]
	n.place = nvml.MIGPlace{PCIBusID: last.BusID, Parent: last.UUID, ProfileID: migProfile, Start: 6}
	n.alone = nvml.NewProber(nvml.Command{Path: command, DriverRoot: root, Timeout: time.Minute, State: []string{"/"}})
	return nil
}

// round prepares and unprepares once, with the simulator's calls alone before or after.
func (n *migNode) round(ctx context.Context, simulatorFirst bool) error {
	do := []func(context.Context) error{n.whole, n.simulator}
	if simulatorFirst {
		slices.Reverse(do)
	}
	for _, one := range do {
		if err := one(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (n *migNode) whole(ctx context.Context) error {
	took, err := n.plugin.prepare(ctx, n.claim)
	if err != nil {
		return err
	}
	n.add(migPrepare, took)
	if took, err = n.plugin.unprepare(ctx, n.claim); err != nil {
		return err
	}
	n.add(migUnprepare, took)
	return nil
}

// simulator makes the calls of pkg/mig: Prepare asks for the mode, looks, and has the instance made; Unprepare has it destroyed.
func (n *migNode) simulator(ctx context.Context) error {
	begin := time.Now()
	if _, err := n.alone.SetMIGMode(ctx, nil, n.place, true, false); err != nil {
		return err
	}
	if _, err := n.alone.ListMIG(ctx, nil, n.place); err != nil {
		return err
	}
	if _, err := n.alone.CreateMIG(ctx, nil, n.place, false); err != nil {
		return err
	}
	n.add(migSimulatorPrepare, time.Since(begin))
	begin = time.Now()
	if _, err := n.alone.DestroyMIG(ctx, nil, n.place, nil); err != nil {
		return err
	}
	n.add(migSimulatorUnprepare, time.Since(begin))
	return nil
}

// instances writes what claims for MIG instances cost.
func (r *report) instances(empty, full *migNode) error {
	var errs []error
	for _, n := range []*migNode{empty, full} {
		at := point{Machine: migMachine, Held: n.held, Devices: 1, Parallel: 1}
		samples := len(n.of(migPrepare))
		errs = append(errs, r.series(at, n.samples),
			r.value(migPrepareCost, &at, samples, n.median(migPrepare)/n.median(migSimulatorPrepare)),
			r.value(migUnprepareCost, &at, samples, n.median(migUnprepare)/n.median(migSimulatorUnprepare)))
	}
	at := point{Machine: migMachine, Held: full.held, Devices: 1, Parallel: 1}
	samples := len(full.of(migPrepare))
	over := func(name string) float64 { return full.median(name) / empty.median(name) }
	own := func(n *migNode) float64 { return n.median(migPrepare) - n.median(migSimulatorPrepare) }
	return errors.Join(append(errs,
		r.against(targetMIG, migFlatness, &at, samples, over(migPrepare)),
		r.value(migUnprepareFlatness, &at, samples, over(migUnprepare)),
		r.value(migSimulatorFlatness, &at, samples, over(migSimulatorPrepare)),
		r.value(migOwnFlatness, &at, samples, own(full)/own(empty)))...)
}
