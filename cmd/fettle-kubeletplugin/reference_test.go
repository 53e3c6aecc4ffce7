// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// TestReference: the page of the plugin's flags has each of them, with the variables that are read in its place. -update writes it.
func TestReference(t *testing.T) {
	// Another test may have set it, and the log's own level is the default of a flag.
	level := flagSet(&options{}).Lookup("v").Value
	before := level.String()
	check.Must(t, level.Set("0"))
	t.Cleanup(func() { check.Must(t, level.Set(before)) })
	var out strings.Builder
	out.WriteString("<!-- Made from the code by: go test ./cmd/fettle-kubeletplugin -run TestReference -update -->\n\n" +
		"# Flags of the kubelet plugin\n\nA flag wins over its `FETTLE_` variable, that over the second variable, and " +
		"that over the default.\n\n")
	foreign := foreignEnv()
	flagSet(&options{}).VisitAll(func(f *flag.Flag) {
		variables := "`" + envName(f.Name) + "`"
		if other := foreign[f.Name]; other != "" {
			variables += ", `" + other + "`"
		}
		fallback := ""
		if f.DefValue != "" {
			fallback = ", default `" + f.DefValue + "`"
		}
		fmt.Fprintf(&out, "- **`--%s`** (%s%s): %s\n", f.Name, variables, fallback, f.Usage)
	})
	check.Golden(t, "../../docs/user/reference/kubelet-plugin-flags.md", out.String())
}
