// SPDX-License-Identifier: Apache-2.0

// Command cmd serves a simulated machine with DFL cards below a directory: commands as JSON lines on its input, answers on its output.
// It ends, and the machine with it, at the end of its input.
//
// A machine is a JSON file, or a host tree as text (pkg/sim). Of the latter the sys is served, to be mounted over the sys of the expanded
// tree; device nodes that can be programmed are plain files in its directory fpgasim.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/fpgasim"
)

func main() {
	root := flag.String("root", "", "the directory to mount the machine at; that of a host tree's sys for a tree")
	file := flag.String("machine", "", "a JSON file that describes the machine, or a host tree as .txtar")
	openable := flag.Bool("openable", false, "renumber a tree's character devices, as its expansion was")
	dev := flag.String("dev", "", "the directory of the tree's character devices, which come and go with ports; empty for none")
	shared := flag.Bool("shared", false, "other mount namespaces see the tree, too: end without waiting for them")
	noDigests := flag.Bool("no-digests", false, "leave the digests of images out of the trace, which take longer than to copy them")
	flag.Parse()
	machine, err := read(*file, *openable)
	if err == nil {
		if *dev != "" {
			machine.Dev = *dev
		}
		machine.Shared, machine.NoDigests = *shared, *noDigests
		err = fpgasim.Serve(*root, machine, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(file string, openable bool) (fpgasim.Machine, error) {
	var machine fpgasim.Machine
	text, err := os.ReadFile(file)
	if err != nil {
		return machine, fmt.Errorf("read the machine: %w", err)
	}
	if filepath.Ext(file) != ".txtar" {
		if err := json.Unmarshal(text, &machine); err != nil {
			return machine, fmt.Errorf("read the machine %s: %w", file, err)
		}
		return machine, nil
	}
	tree, err := sim.Parse(text)
	if err == nil && openable {
		tree, err = tree.Openable()
	}
	if err != nil {
		return machine, fmt.Errorf("read the machine %s: %w", file, err)
	}
	return fpgasim.FromTree(tree)
}
