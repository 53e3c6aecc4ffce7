// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// testTree is the tree of all verbs.
func testTree(t *testing.T) *cobra.Command {
	t.Helper()
	_, screen := newScreen(t.Context(), io.Discard, io.Discard)
	t.Cleanup(screen.end)
	return program{"fettle", commands(), screen}.root()
}

// TestArrange: flags may stand before the verb, and the forms of Go's flag package become those of GNU. Values and operands stay.
func TestArrange(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"", ""},
		{"devices", "devices"},
		{"devices -root DIR", "devices --root DIR"},
		{"devices -root=DIR -o=json", "devices --root=DIR -o=json"},
		{"devices --o json", "devices -o json"},
		{"devices -ojson", "devices -ojson"},
		{"devices --output json", "devices --output json"},
		{"-o json devices", "devices -o json"},
		{"--context prod -n team bitstream ls", "bitstream ls --context prod -n team"},
		{"bitstream -n team ls -A", "bitstream ls -n team -A"},
		{"-n bitstream bitstream ls", "bitstream ls -n bitstream"},
		{"-A bitstream ls", "bitstream ls -A"},
		{"-Aw bitstream ls", "bitstream ls -Aw"},
		{"-wn team bitstream ls", "bitstream ls -wn team"},
		{"--kubeconfig=k devices -cluster", "devices --kubeconfig=k --cluster"},
		{"cache inspect REF -files=false", "cache inspect REF --files=false"},
		{"bitstream push -name -odd FILE REF", "bitstream push --name -odd FILE REF"},
		{"cache build DIR -t REF --t REF", "cache build DIR -t REF -t REF"},
		{"convert -name x -n y -f -", "convert --name x -n y -f -"},
		{"preset explain -- -name", "preset explain -- -name"},
		{"preset explain devices", "preset explain devices"},
		{"devices -help", "devices --help"},
		{"-help", "--help"},
		{"--version", "--version"},
		{"devices -unknown", "devices -unknown"},
		{"devcies --root DIR", "devcies --root DIR"},
		{"bitstream list", "bitstream list"},
		{"__complete -n team preset explain cl", "__complete preset explain -n team cl"},
		{"__complete devices -root", "__complete devices -root"},
	} {
		got := strings.Join(arrange(testTree(t), strings.Fields(test.args)), " ")
		if got != test.want {
			t.Errorf("%q: got %q, want %q", test.args, got, test.want)
		}
	}
	if got := arrange(testTree(t), nil); got == nil {
		t.Error("no arguments: cobra would take those of the process")
	}
}

// eachVerb visits the verbs of the tree.
func eachVerb(c *cobra.Command, visit func(*cobra.Command)) {
	if !c.HasSubCommands() {
		visit(c)
	}
	for _, child := range c.Commands() {
		eachVerb(child, visit)
	}
}

// TestFlagsAgree: a flag before the verb can be read without knowing the verb, because every verb that has it, by name or letter, gives it
// a value or none does. Every letter has a name, and no flag's name is a letter.
func TestFlagsAgree(t *testing.T) {
	values := map[string]string{}
	eachVerb(testTree(t), func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if len(f.Name) == 1 {
				t.Errorf("%s: flag --%s has one letter: give it a name, and the letter as its shorthand", c.CommandPath(), f.Name)
			}
			for _, name := range []string{f.Name, f.Shorthand} {
				if name == "" {
					continue
				}
				now := fmt.Sprintf("has a value: %t", f.NoOptDefVal == "")
				if before := values[name]; before != "" && before != now {
					t.Errorf("%s: flag %s %s; elsewhere it is not so", c.CommandPath(), name, now)
				}
				values[name] = now
			}
		})
	})
	if values["kubeconfig"] == "" || values["o"] == "" {
		t.Error("no flags were looked at")
	}
}

// TestCalled: one file is three programs.
func TestCalled(t *testing.T) {
	for _, test := range []struct {
		argv []string
		name string
		args []string
	}{
		{[]string{"/bin/fettle", "devices"}, "fettle", []string{"devices"}},
		{[]string{"kubectl-fettle", "devices"}, "kubectl fettle", []string{"devices"}},
		{[]string{"/x/kubectl_complete-fettle", "devices", ""}, "kubectl fettle", []string{"__complete", "devices", ""}},
	} {
		name, args := called(test.argv)
		if diff := cmp.Diff(test.args, args); diff != "" || name != test.name {
			t.Errorf("%v: name %q, arguments (-want +got):\n%s", test.argv, name, diff)
		}
	}
}
