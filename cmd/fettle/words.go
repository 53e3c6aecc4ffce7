// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// arrange puts the words of the verb first and writes each flag as GNU does. Flags may stand before the verb, as for kubectl. A long flag
// may have one dash and a flag of one letter two, as the flag package of Go's library has them: scripts that were written for it go on
// working. Nothing else changes. The verb refuses what is wrong.
func arrange(root *cobra.Command, args []string) []string {
	if completes(args) {
		// The last word is the one to complete.
		last := max(len(args)-1, 1)
		before := arrange(root, args[1:last])
		if verb, words, _ := findVerb(root, before); verb.HasSubCommands() {
			before = words // the flags of a verb that is not there yet
		}
		return slices.Concat(args[:1], before, args[last:])
	}
	verb, words, rest := findVerb(root, args)
	verb.InitDefaultHelpFlag()
	verb.InitDefaultVersionFlag()
	own := flagIndex{}
	own.add(verb.Flags())
	return append(words, own.gnu(rest)...)
}

// completes reports whether a shell asks what may follow.
func completes(args []string) bool {
	return len(args) > 0 && slices.Contains([]string{cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}, args[0])
}

// findVerb looks for the words of a verb among flags, and returns the other arguments in their order.
func findVerb(root *cobra.Command, args []string) (verb *cobra.Command, words, rest []string) {
	all := flagIndex{}
	all.addTree(root)
	verb, words = root, []string{}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return verb, words, append(rest, args[i:]...)
		}
		if isFlag(arg) {
			rest = append(rest, arg)
			if all.wantsNext(arg) && i+1 < len(args) {
				i++
				rest = append(rest, args[i])
			}
			continue
		}
		at := slices.IndexFunc(verb.Commands(), func(c *cobra.Command) bool { return c.Name() == arg || c.HasAlias(arg) })
		if at < 0 {
			return verb, words, append(rest, args[i:]...)
		}
		verb, words = verb.Commands()[at], append(words, arg)
	}
	return verb, words, rest
}

func isFlag(arg string) bool { return len(arg) > 1 && arg[0] == '-' && arg != "--" }

// flagIndex has flags by their names and letters.
type flagIndex map[string]*pflag.Flag

func (x flagIndex) add(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		x[f.Name] = f
		if f.Shorthand != "" {
			x[f.Shorthand] = f
		}
	})
}

func (x flagIndex) addTree(c *cobra.Command) {
	x.add(c.Flags())
	for _, child := range c.Commands() {
		x.addTree(child)
	}
}

// wantsNext reports whether the value of a flag is the next argument.
func (x flagIndex) wantsNext(arg string) bool {
	name, _, valued := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	if valued || name == "" {
		return false
	}
	if f := x[name]; f != nil {
		return f.NoOptDefVal == ""
	}
	if strings.HasPrefix(arg, "--") {
		return false
	}
	// Several letters: the value of the first that has one is the rest.
	for i := range len(name) {
		f := x[name[i:i+1]]
		if f == nil {
			return false
		}
		if f.NoOptDefVal == "" {
			return i == len(name)-1
		}
	}
	return false
}

// gnu writes a long flag with two dashes and a letter with one. Values and operands stay as they are.
func (x flagIndex) gnu(args []string) []string {
	out := slices.Clone(args)
	for i := 0; i < len(out); i++ {
		if out[i] == "--" {
			break
		}
		if !isFlag(out[i]) {
			continue
		}
		next := x.wantsNext(out[i])
		bare := strings.TrimLeft(out[i], "-")
		name, _, _ := strings.Cut(bare, "=")
		switch f := x[name]; {
		case f == nil:
		case f.Name == name && len(name) > 1:
			out[i] = "--" + bare
		default:
			out[i] = "-" + bare
		}
		if next {
			i++
		}
	}
	return out
}
