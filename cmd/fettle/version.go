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

const versionHelp = `
Shows the version of this binary, the commit that it was built from where the build recorded it, and the version of Go.`

const versionExamples = `
fettle version
fettle --version`

func showVersion(*arguments) action {
	return func(_ context.Context, _ []string, stdout, _ io.Writer) error {
		info := buildInfo()
		_, err := fmt.Fprintf(stdout, "fettle %s\nrevision %s\n%s\n",
			versionName(), cmp.Or(setting(info, "vcs.revision"), "(unknown)"), cmp.Or(info.GoVersion, "(unknown)"))
		return err
	}
}

// versionName returns the version alone.
func versionName() string { return cmp.Or(version, buildInfo().Main.Version, "(unknown)") }

func buildInfo() *debug.BuildInfo {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info
	}
	return &debug.BuildInfo{}
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
