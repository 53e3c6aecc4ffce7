// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fettle-dev/fettle/test/elffile"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"fettle-hook": func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// The scripts find a bundle below bundle, whose state is in state, with the loader of glibc and the library libfake.so.1.2.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Condition: func(condition string) (bool, error) {
			_, err := os.Stat("/sbin/ldconfig")
			return condition == "root" && os.Geteuid() == 0 && err == nil, nil
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", os.Getenv("GORACE")) // how long the race detector keeps every one of the programs from ending
			loader := map[string]string{"amd64": "lib64/ld-linux-x86-64.so.2", "arm64": "lib/ld-linux-aarch64.so.1"}[runtime.GOARCH]
			for name, content := range map[string][]byte{
				"bundle/config.json":                                []byte(`{"root": {"path": "rootfs"}}`),
				"bundle/rootfs/" + loader:                           elffile.File{Soname: filepath.Base(loader)}.Bytes(),
				"bundle/rootfs/usr/local/fettle/lib/libfake.so.1.2": elffile.File{Soname: "libfake.so.1"}.Bytes(),
				"state": []byte(`{"ociVersion": "1.2.0", "id": "c1", "bundle": "` + filepath.Join(env.WorkDir, "bundle") + `"}`),
			} {
				name = filepath.Join(env.WorkDir, name)
				if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
					return err
				}
				if err := os.WriteFile(name, content, 0o755); err != nil {
					return err
				}
			}
			return nil
		},
	})
}
