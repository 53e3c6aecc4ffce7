// SPDX-License-Identifier: Apache-2.0

// Command nvidia-smi stands in for NVIDIA's on a simulated machine. The machine's file is in a directory that the program is installed
// below: ROOT/nvmlsim.json or ROOT/nvmlsim/nvmlsim.json for ROOT/usr/bin/nvidia-smi.
package main

import (
	"os"

	"github.com/fettle-dev/fettle/test/nvmlsim/smi"
)

func main() { os.Exit(smi.Main(os.Args[1:])) }
