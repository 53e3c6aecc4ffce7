// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// arguments is a verb's command line: its flags, which may stand before, between and after what else it wants.
type arguments struct {
	*pflag.FlagSet
	command *cobra.Command
	name    string   // of the verb, without the program's
	want    []string // what the operands are, for the usage
	formats []string // the values of -o; nil where there is no such flag
}

// split cuts a usage into the verb's words and its operands, which are in capitals. An operand that ends in ... stands for one or more,
// one in brackets may be left out and comes last.
func split(usage string) (words, want []string) {
	for _, word := range strings.Fields(usage) {
		if word == strings.ToUpper(word) {
			want = append(want, word)
			continue
		}
		words = append(words, word)
	}
	return words, want
}

// format declares -o, the format of the output, for a verb that prints a table or what the table is made of.
func (a *arguments) format() *string { return a.formatOf("table", "json", "yaml") }

// formatOf declares -o for other formats. The first of them is the default. Templates are accepted beside them.
func (a *arguments) formatOf(formats ...string) *string {
	a.formats = append(slices.Clone(formats), "jsonpath=TEMPLATE", "go-template=TEMPLATE")
	format := a.StringP("output", "o", formats[0], "output `format`: "+a.anyFormat())
	a.completeFlag("output", append(slices.Clone(formats), "jsonpath=", "go-template=")...)
	return format
}

// anyFormat lists the formats for people: "table, json or yaml".
func (a *arguments) anyFormat() string {
	last := len(a.formats) - 1
	return strings.Join(a.formats[:last], ", ") + " or " + a.formats[last]
}

// check counts the operands, which are as many as the usage names, and looks at the format.
func (a *arguments) check(operands []string) error {
	repeats := slices.ContainsFunc(a.want, func(word string) bool { return strings.HasSuffix(word, "...") })
	needed := slices.DeleteFunc(slices.Clone(a.want), func(word string) bool { return strings.HasPrefix(word, "[") })
	if len(operands) < len(needed) || len(operands) > len(a.want) && !repeats {
		return a.misused(fmt.Errorf("got %d arguments, want %s", len(operands), a.operands()))
	}
	if a.formats == nil {
		return nil
	}
	format := a.Lookup("output").Value.String()
	if slices.Contains(a.formats, format) && !strings.Contains(format, "=") {
		return nil
	}
	switch _, err := templateOf(format); {
	case errors.Is(err, errNoTemplate):
		return a.misused(fmt.Errorf("output format %q: want %s", format, a.anyFormat()))
	case err != nil:
		return a.misused(fmt.Errorf("output format %q: %w", format, err))
	}
	return nil
}

func (a *arguments) operands() string {
	if len(a.want) == 0 {
		return "none"
	}
	return strings.Join(a.want, " ")
}

// given says whether a flag was on the command line.
func (a *arguments) given(name string) bool { return a.Changed(name) }

// misused makes a fault of the command line of an error.
func (a *arguments) misused(err error) error {
	return usageError{fmt.Errorf("%s: %w; see %s --help", a.name, err, a.command.CommandPath())}
}

// where looks at the values of a flag that is declared as they are read, so that what is wrong with one is said of the flag.
func (a *arguments) where(name string, check func(value string) error) {
	f := a.Lookup(name)
	f.Value = checked{f.Value, check}
}

// checked is a flag that takes some values only.
type checked struct {
	pflag.Value
	check func(string) error
}

// Set refuses the others.
func (c checked) Set(value string) error {
	if err := c.check(value); err != nil {
		return err
	}
	return c.Value.Set(value)
}

// isName wants a name of an object that may have dots, like those of nodes and classes.
func isName(value string) error { return first(validation.IsDNS1123Subdomain(value)) }

// isLabelKey wants the key of a label or taint.
func isLabelKey(value string) error { return first(validation.IsQualifiedName(value)) }

// isNamespace wants the name of a namespace.
func isNamespace(value string) error { return first(validation.IsDNS1123Label(value)) }

func first(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return errors.New(faults[0])
}

// oneOf wants one of some words.
func oneOf(words ...string) func(value string) error {
	return func(value string) error {
		if !slices.Contains(words, value) {
			return fmt.Errorf("want one of %s", strings.Join(words, ", "))
		}
		return nil
	}
}

// unless takes an empty value too, which stands for the flag's absence.
func unless(check func(value string) error) func(value string) error {
	return func(value string) error {
		if value == "" {
			return nil
		}
		return check(value)
	}
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

// Set adds one.
func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

// Type is what pflag asks of a value.
func (l *list) Type() string { return "list" }
