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

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// The series of Prepares for a region.
const (
	fpgaPrepare   = "fpga.prepare"
	fpgaUnprepare = "fpga.unprepare"
	// fpgaPR is the ioctl that programs, of one Prepare, and fpgaOverhead the rest of that Prepare.
	fpgaPR       = "fpga.pr"
	fpgaOverhead = "fpga.overhead"
)

// The file syncs of a claim.
const (
	fpgaPrepareSyncs   = "fpga.prepare.syncs"
	fpgaUnprepareSyncs = "fpga.unprepare.syncs"
)

func fpgaSeries() []string { return []string{fpgaPrepare, fpgaPR, fpgaOverhead, fpgaUnprepare} }

func fpgaCounts() []string { return []string{fpgaPrepareSyncs, fpgaUnprepareSyncs} }

// fpgaCase is claims of one kind.
type fpgaCase struct {
	name   string
	device string
	// card is the simulator's, of which the device is the first port.
	card    int
	program v1alpha1.ProgramMode
	// programs says that each Prepare programs the region.
	programs bool
}

// fpgaCases are in the order in which they are measured: that a region is loaded is the doing of the case before.
func fpgaCases() []fpgaCase {
	const plain, clocked = "intel-0000-3b-00-0-port0", "intel-0000-3d-00-0-port0"
	return []fpgaCase{
		{name: caseAlways, device: plain, card: 0, program: v1alpha1.ProgramAlways, programs: true},
		{name: caseLoaded, device: plain, card: 0, program: v1alpha1.ProgramIfDifferent},
		{name: caseClocked, device: clocked, card: 1, program: v1alpha1.ProgramAlways, programs: true},
	}
}

// preparing measures the plugin with the same regions.
func (b *bench) preparing(ctx context.Context, f *fpgas) (err error) {
	p, err := b.startFPGAPlugin(ctx, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	for _, size := range b.form.images {
		b.say("%s: preparing with images of %d MiB", fpgaMachine, size>>20)
		if err := b.prepareImages(ctx, f, p, size); err != nil {
			return fmt.Errorf("image of %d bytes: %w", size, err)
		}
	}
	return nil
}

func (b *bench) startFPGAPlugin(ctx context.Context, f *fpgas) (*plugin, error) {
	file := filepath.Join(f.node.disk, "config.yaml")
	if err := os.WriteFile(file, []byte(fpgaConfiguration), 0o600); err != nil {
		return nil, fmt.Errorf("write the plugin's configuration: %w", err)
	}
	f.node.flags = append(f.node.flags, "--config="+file)
	p, err := b.start(ctx, f.node)
	if err != nil {
		return nil, err
	}
	regions := 0
	for _, card := range f.machine.Cards {
		regions += len(card.Ports)
	}
	found, _, err := b.published(ctx, p, regions)
	for _, c := range fpgaCases() {
		if err == nil && !slices.Contains(found.of("fpga"), c.device) {
			err = fmt.Errorf("device %s is not among %q", c.device, found.of("fpga"))
		}
	}
	if err == nil {
		p.standing, err = p.files()
	}
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// prepareImages measures all cases in turn with an image of one size.
func (b *bench) prepareImages(ctx context.Context, f *fpgas, p *plugin, size int) error {
	cells := make([]*fpgaCell, 0, len(fpgaCases()))
	for _, c := range fpgaCases() {
		at := point{Machine: fpgaMachine, Devices: 1, Parallel: 1, Case: c.name, Bytes: size}
		one, err := b.fpgaClaim(ctx, f, c, size)
		if err != nil {
			return err
		}
		cells = append(cells, &fpgaCell{fpgaCase: c, cell: cell{point: at, plugin: p, claims: []claim{one}}, samples: samples{}})
	}
	random := rand.New(rand.NewPCG(5, 6))
	begin := time.Now()
	// The first time is not measured: nothing is loaded yet, and the plugin has read nothing.
	for n := -1; n < 0 || b.form.more(n, begin); n++ {
		for _, c := range cells {
			measured := c.samples
			if n < 0 {
				measured = samples{}
			}
			if err := b.fpgaCycle(ctx, c, random, measured); err != nil {
				return fmt.Errorf("case %s: %w", c.name, err)
			}
		}
	}
	for _, c := range cells {
		if err := b.report.series(c.point, c.samples); err != nil {
			return err
		}
		if err := b.fpgaSyncs(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// fpgaCell is what is measured of one case.
type fpgaCell struct {
	fpgaCase
	cell
	samples samples
}

// fpgaCycle measures one claim from Prepare to Unprepare, in turn with what every Prepare needs.
func (b *bench) fpgaCycle(ctx context.Context, c *fpgaCell, random *rand.Rand, s samples) error {
	one := c.claims[0]
	compared := []func() error{
		func() error { return s.time(ctx, get, one, b.get) },
		func() error { return s.time(ctx, rpc, one, c.plugin.nothing) },
		func() error { return b.floorOnce(s) },
		func() error { return c.prepare(ctx, s) },
	}
	random.Shuffle(len(compared), func(i, j int) { compared[i], compared[j] = compared[j], compared[i] })
	for _, measure := range compared {
		if err := measure(); err != nil {
			return err
		}
	}
	return s.time(ctx, fpgaUnprepare, one, c.plugin.unprepare)
}

// prepare splits a Prepare into the ioctl and the rest. What the ioctl took is the plugin's own word, since only it sees when the kernel
// has answered.
func (c *fpgaCell) prepare(ctx context.Context, s samples) error {
	before, err := c.plugin.programmings(ctx)
	if err != nil {
		return err
	}
	took, err := c.plugin.prepare(ctx, c.claims[0])
	if err != nil {
		return err
	}
	after, err := c.plugin.programmings(ctx)
	if err != nil {
		return err
	}
	want := 0.0
	if c.programs {
		want = 1
	}
	if got := after.count - before.count; got != want {
		return fmt.Errorf("the region was programmed %v times, want %v: the case is not what it is called", got, want)
	}
	ioctl := after.took - before.took
	s.add(fpgaPrepare, took)
	s.add(fpgaOverhead, took-ioctl)
	if !c.programs {
		return nil
	}
	s.add(fpgaPR, ioctl)
	return c.plugin.looked(ctx, before.looks)
}

// fpgaSyncs counts the file syncs of one claim.
func (b *bench) fpgaSyncs(ctx context.Context, c *fpgaCell) error {
	for _, of := range []struct {
		name string
		do   action
	}{{fpgaPrepareSyncs, c.plugin.prepare}, {fpgaUnprepareSyncs, c.plugin.unprepare}} {
		n, err := b.countSyncs(ctx, c.cell, of.do)
		if err != nil {
			return err
		}
		if b.syncs == nil {
			err = b.report.nothing(of.name, &c.point, b.syncReason)
		} else {
			err = b.report.value(of.name, &c.point, len(c.claims), float64(n))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fpgaClaim stages an image on the node, and makes a claim that loads it.
func (b *bench) fpgaClaim(ctx context.Context, f *fpgas, c fpgaCase, size int) (claim, error) {
	const store = "/srv/bitstreams"
	name := fmt.Sprintf("%s-%d", c.name, size)
	data := fpgasim.GBS(f.machine.Cards[c.card].Ports[0].Interface, accelerator, "auto", size)
	file := store + "/" + name + ".gbs"
	if err := os.MkdirAll(f.node.host+store, 0o755); err != nil {
		return claim{}, fmt.Errorf("stage an image: %w", err)
	}
	if err := os.WriteFile(f.node.host+file, data, 0o644); err != nil {
		return claim{}, fmt.Errorf("stage an image: %w", err)
	}
	object := v1alpha1.ClusterFPGABitstream{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindClusterFPGABitstream},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ClusterFPGABitstreamSpec{
			HostFile: &v1alpha1.HostBitstream{Path: file, Digest: digestOf(data)}, Namespaces: []string{namespace},
		},
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&object)
	if err != nil {
		return claim{}, err
	}
	delete(content, "status")
	client := b.cluster.dynamic.Resource(v1alpha1.GroupVersion.WithResource("clusterfpgabitstreams"))
	if _, err := client.Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{}); err != nil {
		return claim{}, fmt.Errorf("create bitstream %s: %w", name, err)
	}
	configs, err := fpgaConfigurations(name, c.program)
	if err != nil {
		return claim{}, err
	}
	return b.createClaim(ctx, shape{
		name: "fpga-" + name, node: f.node.name, pool: "fpga", devices: []string{c.device}, what: c.name, configs: configs,
	})
}

// fpgaConfigurations are what a class allows and a claim asks for.
func fpgaConfigurations(bitstream string, program v1alpha1.ProgramMode) ([]resourceapi.DeviceAllocationConfiguration, error) {
	kind := metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindFPGAConfig}
	class, err := opaque(resourceapi.AllocationConfigSourceClass, nil, v1alpha1.FPGAConfig{
		TypeMeta: kind, Policy: &v1alpha1.FPGAPolicy{AllowedBitstreams: []string{bitstream}},
	})
	if err != nil {
		return nil, err
	}
	own, err := opaque(resourceapi.AllocationConfigSourceClaim, nil, v1alpha1.FPGAConfig{
		TypeMeta: kind, Bitstream: &v1alpha1.BitstreamSource{Kind: v1alpha1.KindClusterFPGABitstream, Name: bitstream}, Program: program,
	})
	return []resourceapi.DeviceAllocationConfiguration{class, own}, err
}
