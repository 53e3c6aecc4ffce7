// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

// The cases of a Prepare for an FPGA region.
const (
	// caseAlways programs the region each time.
	caseAlways = "always"
	// caseClocked is that on a region with user clocks, which are measured before.
	caseClocked = "clocked"
	// caseLoaded finds that the region holds the image already.
	caseLoaded = "loaded"
)

// fpgaMachine is a file of test/machines, with cards that a simulator answers for.
const fpgaMachine = "4xfpga"

// fpgaConfiguration lets the plugin program what the simulator serves. It looks at the machine after each programming, as shipped.
const fpgaConfiguration = `apiVersion: config.fettle.dev/v1alpha1
kind: KubeletPluginConfiguration
discoveryInterval: 1h
fpga:
  programming: true
  simulatedNodes: ` + fpgasim.SysNodes + `
`

// fpgas is a node whose FPGAs are simulated by a process of its own, as the kernel would.
type fpgas struct {
	*simulator
	node    node
	machine fpgasim.Machine
}

// measureFPGAs goes from the backend alone to whole Prepares. Where no machine can be simulated, the figures say why.
func (b *bench) measureFPGAs(ctx context.Context) error {
	f, err := b.startFPGAs(ctx)
	if reason, ok := errors.AsType[*noFPGAs](err); ok {
		return b.reportNoFPGAs(reason)
	}
	if err != nil {
		return err
	}
	b.say("%s: programming", fpgaMachine)
	err = b.programming(ctx, f)
	if err == nil {
		err = b.preparing(ctx, f)
	}
	if err != nil {
		err = fmt.Errorf("machine %s: %w", fpgaMachine, err)
	}
	return errors.Join(err, f.stop())
}

// noFPGAs says why no machine with FPGAs can be simulated here.
type noFPGAs struct{ error }

func (e *noFPGAs) Unwrap() error { return e.error }

// reportNoFPGAs writes each figure once.
func (b *bench) reportNoFPGAs(reason error) error {
	at := point{Machine: fpgaMachine}
	names := slices.Concat(fpgaThroughputs(), fpgaRatios(), fpgaCounts())
	for _, s := range fpgaSeries() {
		names = append(names, s+".p50")
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, b.report.nothing(name, &at, reason))
	}
	return errors.Join(errs...)
}

// startFPGAs makes the node.
func (b *bench) startFPGAs(ctx context.Context) (*fpgas, error) {
	if err := checkFUSE(); err != nil {
		return nil, &noFPGAs{err}
	}
	b.say("simulating machine %s", fpgaMachine)
	n, err := b.newNode(ctx, "bench-fpga", unlimited()...)
	if err != nil {
		return nil, err
	}
	return b.simulateOn(ctx, n)
}

// simulateOn expands the machine in the node's host tree, and has a simulator answer for its FPGAs.
func (b *bench) simulateOn(ctx context.Context, n node) (*fpgas, error) {
	if err := expandFile(b.root, fpgaMachine, n.host); err != nil {
		return nil, err
	}
	file := filepath.Join(b.root, "test", "machines", fpgaMachine+".txtar")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read a machine: %w", err)
	}
	tree, err := sim.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("make a simulated machine: %w", err)
	}
	f := &fpgas{node: n}
	if f.machine, err = fpgasim.FromTree(tree); err != nil {
		return nil, err
	}
	program := filepath.Join(b.disk, "fpgasim")
	if err := build(ctx, b.root, program, "./test/fpgasim/cmd"); err != nil {
		return nil, err
	}
	if f.simulator, err = simulate(ctx, program, file, filepath.Join(n.fast, "fpgasim")); err != nil {
		return nil, &noFPGAs{err}
	}
	if err := f.join(f.machine, n.host); err != nil {
		return nil, &noFPGAs{errors.Join(err, f.stop())}
	}
	return f, nil
}

// checkFUSE says why nothing can be simulated that answers.
func checkFUSE() error {
	if os.Geteuid() != 0 {
		return errors.New("simulated FPGAs are mounted, which needs root")
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("simulated FPGAs need FUSE: %w", err)
	}
	return f.Close()
}
