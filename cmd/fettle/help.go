// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ofKubectl marks the flags that kubectl has too.
const ofKubectl = "fettle.dev/of-kubectl"

// help shows a verb, a group of verbs, or all.
func (p program) help(c *cobra.Command, w io.Writer) {
	switch {
	case !c.HasParent():
		fmt.Fprintf(w, "Fettle hands a pod its GPUs and FPGAs in working order.\n\nUsage: %s COMMAND [FLAGS]\n\nCommands:\n", p.name)
		p.list(w, func(string) bool { return true })
		fmt.Fprintf(w, "\n%[1]s COMMAND --help tells a command's flags, %[1]s --version the version.\n", p.name)
		fmt.Fprint(w, "As a plugin of kubectl: kubectl fettle COMMAND.\n")
	case c.HasSubCommands():
		group := c.Name() + " "
		fmt.Fprintf(w, "Usage: %s COMMAND [FLAGS]\n\nTo %s.\n\nCommands:\n", c.CommandPath(), c.Short)
		p.list(w, func(name string) bool { return strings.HasPrefix(name, group) })
		fmt.Fprintf(w, "\n%s COMMAND --help tells a command's flags.\n", c.CommandPath())
	default:
		p.helpOfVerb(c, w)
	}
}

// list shows a line a verb.
func (p program) list(w io.Writer, shown func(name string) bool) {
	for _, c := range p.commands {
		if shown(c.name()) {
			fmt.Fprintf(w, "  %-17s %s\n", c.name(), c.summary)
		}
	}
}

func (p program) helpOfVerb(c *cobra.Command, w io.Writer) {
	fmt.Fprintf(w, "Usage: %s\n", useLine(c))
	if c.Long != "" {
		fmt.Fprintf(w, "\n%s\n", c.Long)
	}
	if c.Example != "" {
		fmt.Fprint(w, "\nExamples:\n")
		for line := range strings.Lines(c.Example) {
			if rest, ok := strings.CutPrefix(line, "fettle "); ok {
				line = p.name + " " + rest
			}
			fmt.Fprintf(w, "  %s\n", strings.TrimRight(line, "\n"))
		}
	}
	own, kubectl := splitFlags(c)
	fmt.Fprintf(w, "\nFlags:\n%s", own.FlagUsages())
	if kubectl.HasFlags() {
		fmt.Fprintf(w, "\nFlags that say which cluster, as for kubectl:\n%s", kubectl.FlagUsages())
	}
}

// useLine is a verb with its operands.
func useLine(c *cobra.Command) string { return c.UseLine() + " [FLAGS]" }

// splitFlags tells a verb's own flags from those of kubectl.
func splitFlags(c *cobra.Command) (own, kubectl *pflag.FlagSet) {
	own, kubectl = pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Annotations[ofKubectl] != nil {
			kubectl.AddFlag(f)
			return
		}
		own.AddFlag(f)
	})
	return own, kubectl
}
