// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// selftest looks at what its container was given: every device node beyond those of every container must open for reading, and
// there must be one. It changes nothing, so it may run on devices that are in use.
func selftest(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("selftest", flag.ContinueOnError)
	flags.SetOutput(stderr)
	devices := flags.String("devices", "/dev", "directory that holds the device nodes")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	nodes, err := givenNodes(*devices)
	if err != nil {
		fmt.Fprintln(stderr, "selftest:", err)
		return 1
	}
	if len(nodes) == 0 {
		fmt.Fprintf(stderr, "selftest: no device node below %s: the claim gave this container nothing\n", *devices)
		return 1
	}
	code := 0
	for _, path := range nodes {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			fmt.Fprintln(stderr, "selftest:", err)
			code = 1
			continue
		}
		_ = f.Close()
		fmt.Fprintln(stdout, "opened", path)
	}
	return code
}

// givenNodes are the character devices that not every container has (OCI runtime spec, config-linux.md, Default Devices).
func givenNodes(dir string) ([]string, error) {
	standard := map[string]bool{
		"null": true, "zero": true, "full": true, "random": true, "urandom": true, "tty": true, "console": true, "ptmx": true,
	}
	var nodes []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
		if entry.IsDir() && (name == "pts" || name == "shm" || name == "mqueue") {
			return fs.SkipDir
		}
		if entry.Type()&fs.ModeCharDevice != 0 && !standard[name] {
			nodes = append(nodes, path)
		}
		return nil
	})
	return nodes, err
}
