// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// groupSummaries has a line for each first word of verbs of two words.
func groupSummaries() map[string]string {
	return map[string]string{
		"bitstream": "inspect, push, verify and list the bitstreams of FPGAs",
		"cache":     "build, inspect, verify, copy and extract images of compiled GPU kernels",
		"explain":   "say why pods and claims have no devices",
		"machine":   "record machines as files, and write such files as host trees",
		"preset":    "explain what presets give to containers",
		"stack":     "see what AcceleratorStacks do with the drivers of nodes",
	}
}

// program is the command line, with the name that it was called by: fettle, or kubectl fettle.
type program struct {
	name     string
	commands commandTable
	*screen
}

// run does what the arguments say.
func (p program) run(ctx context.Context, args []string) error {
	root := p.root() //nolint:contextcheck // cobra hands the context to the verb
	if completes(args) {
		plainUsages(root)
	}
	root.SetArgs(arrange(root, args))
	return root.ExecuteContext(ctx)
}

// plainUsages takes the marks out of the flags' descriptions, which say to the help what to call a value.
func plainUsages(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = strings.ReplaceAll(f.Usage, "`", "") })
	for _, child := range c.Commands() {
		plainUsages(child)
	}
}

// root makes the tree of the verbs.
func (p program) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "fettle",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: p.name},
		Version:       versionName(),
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs, RunE: p.unknown,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetVersionTemplate("fettle {{.Version}}\n")
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SetFlagErrorFunc(p.wrongFlag)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { p.help(c, p.people) })
	root.SetHelpCommand(p.helpCommand())
	for _, c := range p.commands {
		words, _ := split(c.usage)
		parent := root
		for _, word := range words[:len(words)-1] {
			parent = p.group(parent, word)
		}
		parent.AddCommand(p.verb(c))
	}
	root.InitDefaultHelpCmd()
	return root
}

// group returns the command of a first word.
func (p program) group(parent *cobra.Command, word string) *cobra.Command {
	for _, c := range parent.Commands() {
		if c.Name() == word {
			return c
		}
	}
	c := &cobra.Command{Use: word, Short: groupSummaries()[word], Args: cobra.ArbitraryArgs, RunE: p.unknown}
	parent.AddCommand(c)
	return c
}

// verb makes the command of a row.
func (p program) verb(c command) *cobra.Command {
	words, want := split(c.usage)
	last := len(words) - 1
	out := &cobra.Command{
		Use: strings.Join(append(words[last:], want...), " "), Short: c.summary, Long: strings.TrimSpace(c.help),
		Example: strings.TrimSpace(c.examples), Args: cobra.ArbitraryArgs, DisableFlagsInUseLine: true,
	}
	if c.name() == "bitstream ls" {
		out.Aliases = []string{"list"}
	}
	a := &arguments{FlagSet: out.Flags(), command: out, name: c.name(), want: want}
	a.BoolP("help", "h", false, "show this help")
	act := c.declare(a)
	a.completeFiles()
	stdout := p.people
	if slices.Contains(printsFiles(), c.name()) {
		stdout = p.stdout
	}
	out.RunE = func(out *cobra.Command, operands []string) error {
		if err := a.check(operands); err != nil {
			return err
		}
		return act(out.Context(), operands, stdout, p.stderr)
	}
	return out
}

// helpCommand makes "help VERB".
func (p program) helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "show the help of a command", Args: cobra.ArbitraryArgs, DisableFlagsInUseLine: true,
		RunE: func(c *cobra.Command, words []string) error {
			verb, found, rest := findVerb(c.Root(), words)
			if len(rest) > 0 {
				return p.unknown(verb, rest)
			}
			if len(found) == 0 || verb == c {
				verb = c.Root()
			}
			p.help(verb, p.people)
			return nil
		},
		ValidArgsFunction: func(c *cobra.Command, words []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			verb, _, _ := findVerb(c.Root(), words)
			var names []cobra.Completion
			for _, child := range verb.Commands() {
				names = append(names, cobra.CompletionWithDesc(child.Name(), child.Short))
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// unknown refuses a word that is no command, and the lack of one.
func (p program) unknown(c *cobra.Command, words []string) error {
	group := strings.TrimPrefix(strings.TrimPrefix(c.CommandPath(), p.name), " ")
	if len(words) == 0 {
		if group == "" {
			return usageError{fmt.Errorf("want a command; see %s help", p.name)}
		}
		return usageError{fmt.Errorf("%s: want one of its commands, %s; see %s --help", group, childNames(c), c.CommandPath())}
	}
	if !c.HasSubCommands() {
		return usageError{fmt.Errorf("%s has no command %q; see %s --help", c.CommandPath(), words[0], c.CommandPath())}
	}
	prefix := group + " "
	if group == "" {
		prefix = ""
	}
	hint := meant(words[0], strings.Split(childNames(c), ", "), prefix)
	return usageError{fmt.Errorf("unknown command %q; %s %s help", prefix+words[0], hint, p.name)}
}

func childNames(c *cobra.Command) string {
	var names []string
	for _, child := range c.Commands() {
		names = append(names, child.Name())
	}
	return strings.Join(names, ", ")
}

// wrongFlag refuses flags.
func (p program) wrongFlag(c *cobra.Command, err error) error {
	var missing *pflag.NotExistError
	hint := "see"
	if errors.As(err, &missing) && len(missing.GetSpecifiedName()) > 1 {
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		hint = meant(missing.GetSpecifiedName(), names, "--")
	}
	name := strings.TrimSpace(strings.TrimPrefix(c.CommandPath(), p.name))
	if name != "" {
		name += ": "
	}
	return usageError{fmt.Errorf("%s%w; %s %s --help", name, err, hint, c.CommandPath())}
}

// meant begins the sentence that says where to look, with the names that may have been meant, by cobra's measure of how far apart two words
// are. Short words have to be closer.
func meant(typed string, names []string, prefix string) string {
	all := cobra.Command{SuggestionsMinimumDistance: min(2, len(typed)/2)}
	for _, name := range names {
		all.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	found := all.SuggestionsFor(typed)
	if len(found) == 0 {
		return "see"
	}
	slices.Sort(found)
	return "did you mean " + prefix + strings.Join(found, " or "+prefix) + "? See"
}
