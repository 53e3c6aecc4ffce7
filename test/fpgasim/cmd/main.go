// SPDX-License-Identifier: Apache-2.0

// Command cmd serves a simulated machine with DFL cards below a directory: commands as JSON lines on its input, answers on its output.
// It ends, and the machine with it, at the end of its input.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/fettle-dev/fettle/test/fpgasim"
)

func main() {
	root := flag.String("root", "", "the directory to mount the machine at")
	file := flag.String("machine", "", "a JSON file that describes the machine")
	flag.Parse()
	if err := run(*root, *file); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(root, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the machine: %w", err)
	}
	var machine fpgasim.Machine
	if err := json.Unmarshal(text, &machine); err != nil {
		return fmt.Errorf("read the machine %s: %w", file, err)
	}
	return fpgasim.Serve(root, machine, os.Stdin, os.Stdout)
}
