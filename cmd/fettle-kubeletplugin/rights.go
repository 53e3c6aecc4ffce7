// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/fettle-dev/fettle/pkg/confine"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
)

// rights confines this process as the plugin with the same configuration file does, and prints what is left. It is for administrators and
// for tests.
func rights(args []string, stdout, stderr io.Writer, confined func(*nodeconfig.File) error) int {
	flags := flag.NewFlagSet("fettle-kubeletplugin rights", flag.ContinueOnError)
	flags.SetOutput(stderr)
	path := flags.String("config", "", "configuration file")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := printRights(*path, stdout, confined); err != nil {
		fmt.Fprintln(stderr, "fettle-kubeletplugin rights:", err)
		return 1
	}
	return 0
}

func printRights(path string, stdout io.Writer, confined func(*nodeconfig.File) error) error {
	file, err := nodeconfig.Load(path)
	if err != nil {
		return err
	}
	if err := confined(&file); err != nil {
		return err
	}
	state, err := confine.ReadState()
	if err != nil {
		return err
	}
	names := []string{}
	for _, f := range features(&file) {
		names = append(names, string(f))
	}
	_, err = fmt.Fprintf(stdout, "features: %s\n%s", strings.Join(names, " "), state)
	return err
}
