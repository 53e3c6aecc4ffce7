// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/fettle-dev/fettle/test/check"
)

// TestCallsPage: the page of the calls is the table.
func TestCallsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# What is asked of NVIDIA's library

` + "`fettle-nvml`" + ` calls these functions of NVML, and no others. The table is made of ` + "`cmd/fettle-nvml/child/calls.go`" + `
(` + "`go test ./cmd/fettle-nvml/child -run Page -update`" + `). Each call is made to fail with each error of nvml.h that
means something, and with others, on the simulated cards (` + "`test/nvmlsim/library`" + `): nothing crashes, other GPUs and other
parts are as before, and the next try does what was asked.

Whatever was asked: a GPU that is lost, needs a reset, or lacks power or interrupts is withheld (` + "`NotResponding`" + `); a question
that the driver does not permit is ` + "`NotPermitted`" + `; libraries and a kernel module of different versions, or a module that
does not run, are named with what to do. A report with a question that failed is asked for again at the next look.

| call | what for | no answer means | no failure |
|---|---|---|---|
`)
	for _, c := range Calls() {
		var absent []string
		for _, ret := range c.Absent {
			absent = append(absent, strings.TrimPrefix(gonvml.Return.Error(ret), "ERROR_"))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", c.Name, c.Use, c.Failure, strings.Join(absent, ", "))
	}
	check.Golden(t, filepath.Join("..", "..", "..", "docs", "design", "nvml-calls.md"), []byte(b.String()))
}

// TestCallsAreNamedOnce: a row is found by its name.
func TestCallsAreNamedOnce(t *testing.T) {
	var names []string
	for _, c := range Calls() {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	if n := len(slices.Compact(slices.Clone(names))); n != len(names) {
		t.Errorf("%d rows with %d names", len(names), n)
	}
}
