// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Command fettle-nvml asks NVIDIA's management library about this node's GPUs and divides them into MIG instances. It is a program of its
// own so that the library, which may hang or crash, is never loaded into a process that has other work. Package pkg/nvml runs it and reads
// its output; package child has what it does.
package main

import (
	"os"

	"github.com/fettle-dev/fettle/cmd/fettle-nvml/child"
)

func main() { os.Exit(child.Run(os.Args[1:], os.Stdout, os.Stderr, child.Load)) }
