// SPDX-License-Identifier: Apache-2.0

// Command cmd serves the sys of an expanded host tree as package pcisim does: commands as JSON lines on its input, answers on its output.
// It ends, and the machine with it, at the end of its input.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fettle-dev/fettle/pkg/sim"
	"github.com/fettle-dev/fettle/test/pcisim"
)

func main() {
	tree := flag.String("tree", "", "the expanded host tree")
	file := flag.String("machine", "", "the host tree as text")
	major := flag.Uint("major", 0, "the major of device nodes that appear; 0: as the kernel numbers them")
	drm := flag.Uint("drm-minor", 0, "the first minor of graphics nodes of virtual functions, with a major")
	minor := flag.Uint("vfio-minor", 0, "the first minor of VFIO's device nodes")
	order := flag.String("order", "", "the file of a test, which says all of the above")
	flag.Parse()
	numbers := pcisim.Machine{
		VFIOMajor: uint32(*major), VFIOMinor: uint32(*minor), DRMMajor: uint32(*major), DRMMinor: uint32(*drm),
	}
	var err error
	if *order != "" {
		err = pcisim.ServeOrder(*order, os.Stdin, os.Stdout)
	} else {
		err = serve(*tree, *file, numbers)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(tree, file string, numbers pcisim.Machine) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the machine: %w", err)
	}
	host, err := sim.Parse(text)
	if err != nil {
		return fmt.Errorf("read the machine %s: %w", file, err)
	}
	machine, err := pcisim.FromTree(host)
	if err != nil {
		return fmt.Errorf("read the machine %s: %w", file, err)
	}
	numbers.Files, numbers.Dev = machine.Files, filepath.Join(tree, "dev")
	return pcisim.Serve(filepath.Join(tree, "sys"), numbers, os.Stdin, os.Stdout)
}
