// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fettle-dev/fettle/pkg/artifact/layout"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/elffile"
	"github.com/fettle-dev/fettle/test/fpgaregistry"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"fettle":                  called1,
		"kubectl-fettle":          called1,
		"kubectl_complete-fettle": called1,
		"authorities":             func() { os.Exit(authorities(os.Args[1:])) },
	})
}

// called1 is main, whatever the name of the program.
func called1() {
	name, args := called(os.Args)
	os.Exit(runAs(context.Background(), name, args, os.Stdout, os.Stderr))
}

// authorities says whom this process believes, of two choices: the authorities in the file, or others. It fails if it believes nobody.
func authorities(args []string) int {
	pem, err := os.ReadFile(args[0])
	believed, poolErr := x509.SystemCertPool()
	if err = errors.Join(err, poolErr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	file := x509.NewCertPool()
	file.AppendCertsFromPEM(pem)
	switch {
	case believed.Equal(x509.NewCertPool()):
		fmt.Println("nobody")
		return 1
	case believed.Equal(file):
		fmt.Println("those of the file")
	default:
		fmt.Println("others")
	}
	return 0
}

// The scripts find the machines at $MACHINES, the bitstreams at $BITSTREAMS, a registry at $REGISTRY, and one that refuses artifactType at
// $PICKY. $LIBRARY is a libcuda.so.1. The command "sign v2|v3 DIR TAG release|stranger" signs in a layout as cosign does, and $RELEASE is a
// TrustPolicy for registry.example/fpga that believes the one of the two.
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
	signers := map[string]signer{"release": newSigner(t, nil), "stranger": newSigner(t, nil)}
	policy := signers["release"].policy("registry.example/fpga/*")
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       check.Updating(),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"sign": func(ts *testscript.TestScript, _ bool, args []string) {
				s := signers[args[3]]
				s.l = layout.At(ts.MkAbs(args[1]))
				m, err := s.l.Tagged(t.Context(), args[2])
				ts.Check(err)
				if args[0] == "v2" {
					s.v2(m.Digest)
				} else {
					s.v3(m.Digest, signPredicate)
				}
			},
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", os.Getenv("GORACE")) // how long the race detector keeps every one of the programs from ending
			env.Setenv("MACHINES", machines)
			env.Setenv("BITSTREAMS", bitstreams)
			env.Setenv("REGISTRY", registry)
			env.Setenv("PICKY", picky)
			env.Setenv("RELEASE", policy)
			library := filepath.Join(env.WorkDir, "libcuda.so.1")
			env.Setenv("LIBRARY", library)
			return os.WriteFile(library, elffile.File{Soname: "libcuda.so.1"}.Bytes(), 0o600)
		},
	})
}
