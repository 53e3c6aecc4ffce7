// SPDX-License-Identifier: Apache-2.0

// Command nvidia-cuda-mps-control stands in for NVIDIA's program of that name. Package mpssim has what it does.
package main

import (
	"os"

	"github.com/fettle-dev/fettle/test/mpssim"
)

func main() { os.Exit(mpssim.Control(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
