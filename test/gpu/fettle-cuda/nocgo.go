// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

// Command fettle-cuda, built without cgo, only says so: NVIDIA's library can be loaded by cgo alone.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "this fettle-cuda was built without cgo and cannot load NVIDIA's library: build it with CGO_ENABLED=1")
	os.Exit(1)
}
