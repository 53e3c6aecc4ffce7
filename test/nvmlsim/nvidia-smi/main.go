// SPDX-License-Identifier: Apache-2.0

// Command nvidia-smi stands in for NVIDIA's on a simulated machine. The machine's file is in the directory that the program is installed
// below: ROOT/nvmlsim.json or ROOT/nvmlsim/nvmlsim.json for ROOT/usr/bin/nvidia-smi.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/fettle-dev/fettle/test/nvmlsim"
	"github.com/fettle-dev/fettle/test/nvmlsim/smi"
)

func main() {
	machine, err := find()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(12) // as nvidia-smi does without NVIDIA's library
	}
	os.Exit(smi.Run(machine, os.Args[1:], os.Stdout))
}

// find looks in each directory above the program.
func find() (nvmlsim.Machine, error) {
	program, err := os.Executable()
	if err != nil {
		return nvmlsim.Machine{}, err
	}
	for dir := filepath.Dir(program); dir != filepath.Dir(dir); {
		dir = filepath.Dir(dir)
		for _, file := range []string{nvmlsim.DefaultFile(dir), nvmlsim.DefaultFile(filepath.Join(dir, nvmlsim.WritableDir))} {
			if _, err := os.Stat(file); err == nil {
				return nvmlsim.Machine{File: file}, nil
			}
		}
	}
	return nvmlsim.Machine{}, fmt.Errorf("%s: no simulated machine in any directory above", program)
}
