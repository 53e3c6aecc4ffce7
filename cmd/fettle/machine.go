// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fettle-dev/fettle/pkg/sim"
)

const machineExpandHelp = `
Writes the host tree of a machine file below a directory, which must not hold any of it yet. Device nodes need root; without, they
are left out and named on stderr. Use the tree with fettle devices --root.`

const machineExpandExamples = `
fettle machine expand test/machines/8xmi300x.txtar host
fettle devices --root host`

func machineExpand(flags *arguments) action {
	openable := flags.Bool("openable", false,
		"renumber the character devices to 4:1 to 4:63, which any kernel can open, so that containers can use them without the drivers")
	return func(_ context.Context, operands []string, stdout, stderr io.Writer) error {
		file, dir := operands[0], operands[1]
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read the machine: %w", err)
		}
		machine, err := sim.Parse(data)
		if err != nil {
			return fmt.Errorf("machine %s: %w", file, err)
		}
		notes, err := machine.Expand(dir, sim.Options{OpenableNodes: *openable})
		for _, note := range notes {
			if _, err := fmt.Fprintln(stderr, note); err != nil {
				return err
			}
		}
		if err != nil {
			return fmt.Errorf("machine %s: %w", file, err)
		}
		return nil
	}
}

const machineRecordHelp = `
Prints a machine file of what discovery may read of this machine: accelerators and the bridges above them, DRM, KFD,
FPGA, NVIDIA's driver and the versions of modules. It reads only, and opens no device. Serial numbers and unique ids are
replaced unless kept. Run it as root, or what only root may read is recorded as unreadable.`

const machineRecordExamples = `
sudo fettle machine record > machine.txtar`

func machineRecord(flags *arguments) action {
	dir := flags.String("root", "/", "`directory` that holds the machine's sys, proc and dev")
	keep := flags.Bool("keep-ids", false, "keep serial numbers and unique ids as they are")
	return func(_ context.Context, _ []string, stdout, _ io.Writer) (err error) {
		root, err := os.OpenRoot(*dir)
		if err != nil {
			return fmt.Errorf("open the machine's root: %w", err)
		}
		defer func() { err = errors.Join(err, root.Close()) }()
		machine, err := sim.Record(root, sim.RecordOptions{KeepIDs: *keep})
		if err != nil {
			return err
		}
		_, err = stdout.Write(machine.Format())
		return err
	}
}
