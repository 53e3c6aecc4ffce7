// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fettle-dev/fettle/test/elffile"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

var update = flag.Bool("update", false, "rewrite the expected output in the scripts")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"fettle": func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// The scripts find the machines at $MACHINES, the bitstreams at $BITSTREAMS, a registry at $REGISTRY, and one that refuses artifactType at
// $PICKY. $LIBRARY is a libcuda.so.1.
func TestScripts(t *testing.T) {
	machines, err := filepath.Abs("../../test/machines")
	if err != nil {
		t.Fatal(err)
	}
	bitstreams, err := filepath.Abs("../../pkg/fpga/testdata")
	if err != nil {
		t.Fatal(err)
	}
	registry, picky := fpgaregistry.Start(t).Host, pickyRegistry(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *update,
		Setup: func(env *testscript.Env) error {
			env.Setenv("MACHINES", machines)
			env.Setenv("BITSTREAMS", bitstreams)
			env.Setenv("REGISTRY", registry)
			env.Setenv("PICKY", picky)
			library := filepath.Join(env.WorkDir, "libcuda.so.1")
			env.Setenv("LIBRARY", library)
			return os.WriteFile(library, elffile.File{Soname: "libcuda.so.1"}.Bytes(), 0o600)
		},
	})
}
