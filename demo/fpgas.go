// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/fpgasim"
	"github.com/fettle-dev/fettle/test/harness"
)

const (
	// fpgaMachine is the machine whose cards can be programmed.
	fpgaMachine = "4xfpga"
	// bitstreamStore is where that node has bitstreams as files, and bitstreamSource is where they are on their way into the node.
	bitstreamStore, bitstreamSource = "/srv/intel.com/fpga", "bitstreams"
	// The shells of the cards: of the two ports of the Arria 10, as the proposal's example names it, of the D5005, and of the N6000.
	arriaShell, d5005Shell, n6000Shell = "ce48969398f05f33946d560708be108a", "9346116da52d5ca8b06aa9a389ef7c8d",
		"98b4d5bc98ba5f4b98d9a2841ccf11b0"
	// The accelerators: the proposal's, one that examples of the D5005 and the N6000 load, and what a wiped region shows.
	compress, loopback, blank = "18b79ffa2ee54aa096ef4230dafacb5f", "f7df405cbd7acf7222f144b0b93acd18", "00000000000000000000000000000b1a"
)

// stagedBitstreams are the files of the node's store: accelerators by shell.
func stagedBitstreams() map[string][]string {
	return map[string][]string{arriaShell: {compress}, d5005Shell: {loopback, blank}, n6000Shell: {loopback}}
}

// programs says of which node the FPGAs can be programmed.
func programs(node string) bool { return slices.Contains(machines()[node], fpgaMachine) }

// fpgaCards is the machine with the shell and the driver that the proposal's example was written for.
func fpgaCards(root string) (*sim.Machine, error) {
	text, err := os.ReadFile(filepath.Join(root, "test", "machines", fpgaMachine+".txtar"))
	if err != nil {
		return nil, fmt.Errorf("read the machine with FPGAs: %w", err)
	}
	for _, change := range [][2]string{
		{"69528db6eb31577a8c3668f9faa081f6", arriaShell},
		{"region2/dfl-port.1/ltr 0\n", "region2/dfl-port.1/ltr 0\nfpga_region/region2/dfl-port.1/debug 0\n"},
		{"region2/dfl-port.2/ltr 0\n", "region2/dfl-port.2/ltr 0\nfpga_region/region2/dfl-port.2/debug 0\n"},
	} {
		if !bytes.Contains(text, []byte(change[0])) {
			return nil, fmt.Errorf("machine %s: has no %q, which the demo changes", fpgaMachine, change[0])
		}
		text = bytes.ReplaceAll(text, []byte(change[0]), []byte(change[1]))
	}
	machine, err := sim.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("machine %s: %w", fpgaMachine, err)
	}
	return machine, nil
}

// stageBitstreams puts the files into the node's store. The node shares the root of this machine, and gets a /srv of its own.
func stageBitstreams(ctx context.Context, h *harness.Harness, node string) error {
	const size = 1 << 20
	source := filepath.Join(h.MachineDir(node), bitstreamSource)
	for shell, accelerators := range stagedBitstreams() {
		dir := filepath.Join(source, shell)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("stage bitstreams: %w", err)
		}
		for _, id := range accelerators {
			gbs := fpgasim.GBS(shell, id, "auto", size)
			if id == blank {
				gbs = fpgasim.ClearingGBS(shell, id, "auto", size, time.Second) // scenario 24 says how long it takes
			}
			if err := os.WriteFile(filepath.Join(dir, id+".gbs"), gbs, 0o644); err != nil {
				return fmt.Errorf("stage bitstreams: %w", err)
			}
		}
	}
	_, err := h.OnNode(ctx, node, "sh", "-c", `mkdir -p "$1" && cp -r "$0"/. "$1"/`, filepath.Join(harness.MachineRoot, bitstreamSource),
		bitstreamStore)
	return err
}
