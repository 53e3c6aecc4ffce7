// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime/debug"
)

// version is set by the build of a release. Without it the module's own version is shown, as "go install" records it.
var version string

func runVersion(_ context.Context, args []string, stdout, _ io.Writer) error {
	if _, err := newArguments("version", "Shows the version of this binary.").parse(args, stdout); err != nil {
		return err
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	_, err := fmt.Fprintf(stdout, "fettle %s\nrevision %s\n%s\n",
		cmp.Or(version, info.Main.Version, "(unknown)"), cmp.Or(setting(info, "vcs.revision"), "(unknown)"), cmp.Or(info.GoVersion, "(unknown)"))
	return err
}

// setting is one of the build's, by its key in runtime/debug.
func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
