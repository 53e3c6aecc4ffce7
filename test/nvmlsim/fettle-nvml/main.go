// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Command fettle-nvml is the real one with the simulator in the place of NVIDIA's library. Its option -library names the file of the
// machine's state; without, that is nvmlsim.json below -driver-root.
package main

import (
	"os"

	"github.com/fettle-dev/fettle/cmd/fettle-nvml/child"
	"github.com/fettle-dev/fettle/test/nvmlsim/library"
)

func main() { os.Exit(child.Run(os.Args[1:], os.Stdout, os.Stderr, library.Open)) }
