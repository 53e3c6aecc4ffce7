// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// arguments is a subcommand's command line: its flags, which may stand before, between and after what else it wants.
type arguments struct {
	*flag.FlagSet
	want    []string // what the operands are, for the usage
	formats []string // the values of -o; nil where there is no such flag
}

// newArguments declares a subcommand by its usage: the name and the operands, in capitals. One that ends in ... stands for one or more,
// one in brackets may be left out and comes last.
func newArguments(usage, help string) arguments {
	var name, want []string
	for _, word := range strings.Fields(usage) {
		if word == strings.ToUpper(word) {
			want = append(want, word)
			continue
		}
		name = append(name, word)
	}
	a := arguments{FlagSet: flag.NewFlagSet(strings.Join(name, " "), flag.ContinueOnError), want: want}
	a.Usage = func() {
		_, _ = fmt.Fprintf(a.Output(), "Usage: fettle %s [FLAGS]\n\n%s\n\nFlags:\n", usage, strings.TrimSpace(help))
		a.PrintDefaults()
	}
	return a
}

// format declares -o, the format of the output, for a verb that prints a table or what the table is made of.
func (a *arguments) format() *string { return a.formatOf("table", "json", "yaml") }

// formatOf declares -o for other formats. The first of them is the default.
func (a *arguments) formatOf(formats ...string) *string {
	a.formats = formats
	return a.String("o", formats[0], "output `format`: "+a.anyFormat())
}

// anyFormat lists the formats for people: "table, json or yaml".
func (a arguments) anyFormat() string {
	last := len(a.formats) - 1
	return strings.Join(a.formats[:last], ", ") + " or " + a.formats[last]
}

// parse reads the flags and gives the operands, as many as the usage names. Help is a result: it goes to stdout.
func (a arguments) parse(args []string, stdout io.Writer) (operands []string, err error) {
	var printed bytes.Buffer
	a.SetOutput(&printed)
	for len(args) > 0 {
		if err := a.Parse(args); errors.Is(err, flag.ErrHelp) {
			_, writeErr := printed.WriteTo(stdout)
			return nil, errors.Join(err, writeErr)
		} else if err != nil {
			return nil, a.misused(err)
		}
		rest := a.Args()
		if ended := len(args) - len(rest); ended > 0 && args[ended-1] == "--" {
			operands = append(operands, rest...)
			break
		}
		if len(rest) == 0 {
			break
		}
		operands, args = append(operands, rest[0]), rest[1:]
	}
	repeats := slices.ContainsFunc(a.want, func(word string) bool { return strings.HasSuffix(word, "...") })
	needed := slices.DeleteFunc(slices.Clone(a.want), func(word string) bool { return strings.HasPrefix(word, "[") })
	if len(operands) < len(needed) || len(operands) > len(a.want) && !repeats {
		return nil, a.misused(fmt.Errorf("got %d arguments, want %s", len(operands), a.operands()))
	}
	if format := a.Lookup("o"); format != nil && !slices.Contains(a.formats, format.Value.String()) {
		return nil, a.misused(fmt.Errorf("output format %q: want %s", format.Value, a.anyFormat()))
	}
	return operands, nil
}

func (a arguments) operands() string {
	if len(a.want) == 0 {
		return "none"
	}
	return strings.Join(a.want, " ")
}

// given says whether a flag was on the command line.
func (a arguments) given(name string) bool {
	found := false
	a.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

func (a arguments) misused(err error) error {
	return usageError{fmt.Errorf("%s: %w; see fettle %s --help", a.Name(), err, a.Name())}
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

// Set adds one.
func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}
