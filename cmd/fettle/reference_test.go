// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fettle-dev/fettle/test/check"
)

// manual is the document about the command line. What stands between the two marks is made from the commands.
const (
	manual = "../../docs/user/cli.md"
	begin  = "<!-- Made by: go test ./cmd/fettle -run TestReference -update -->\n"
	end    = "<!-- The end of what is made. -->\n"
)

// TestReference: the page has every verb as it is, with its flags and examples. -update writes it anew.
func TestReference(t *testing.T) {
	text, err := os.ReadFile(manual)
	check.Must(t, err)
	before, rest, ok := strings.Cut(string(text), begin)
	old, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s: want the marks %q and %q", manual, begin, end)
	}
	made := reference(testTree(t))
	if check.Updating() {
		check.Must(t, os.WriteFile(manual, []byte(before+begin+made+end+after), 0o600))
		return
	}
	if diff := cmp.Diff(made, old); diff != "" {
		t.Errorf("%s is stale: run go test ./cmd/fettle -run TestReference -update (-commands +page):\n%s", manual, diff)
	}
}

// reference has a section for each verb in the order of the help. The flags of kubectl, which are the same everywhere, come once.
func reference(root *cobra.Command) string {
	var out strings.Builder
	kubectl := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, c := range commands() {
		verb, _, _ := findVerb(root, strings.Fields(c.name()))
		fmt.Fprintf(&out, "\n### %s\n\n%s\n\n    %s\n\nExamples:\n\n%s\nFlags:\n\n", c.name(), paragraphs(verb.Long), useLine(verb),
			indented(verb.Example))
		own, shared := splitFlags(verb)
		fmt.Fprint(&out, indented(own.FlagUsagesWrapped(130)))
		if shared.HasFlags() {
			fmt.Fprint(&out, "\nand [those of kubectl](#flags-of-kubectl).\n")
		}
		kubectl.AddFlagSet(shared)
	}
	fmt.Fprintf(&out, "\n### Flags of kubectl\n\nWith the meaning that they have there:\n\n%s\n", indented(kubectl.FlagUsagesWrapped(130)))
	return out.String()
}

// paragraphs keeps Markdown from reading words in capitals and paths otherwise: nothing of the helps needs more.
func paragraphs(text string) string {
	return strings.NewReplacer("_", `\_`, "*", `\*`, "<", `\<`).Replace(text)
}

// indented makes a block of code.
func indented(text string) string {
	var out strings.Builder
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		out.WriteString(strings.TrimRight("    "+line, " \n") + "\n")
	}
	return out.String()
}

// TestSummaries: every group of verbs has a line of its own, and every verb help and an example.
func TestSummaries(t *testing.T) {
	for _, c := range testTree(t).Commands() {
		if c.HasSubCommands() && c.Short == "" {
			t.Errorf("%s: want a line in groupSummaries", c.Name())
		}
	}
	for _, c := range commands() {
		if c.summary == "" || strings.TrimSpace(c.help) == "" || !strings.Contains(c.examples, "fettle "+c.name()) {
			t.Errorf("%s: want a summary, a help and an example", c.name())
		}
	}
}

// parses says whether a command line is one of fettle's: its verb is there, and takes these flags and operands. Nothing is run.
func parses(t *testing.T, args []string) error {
	t.Helper()
	table := commands()
	for i := range table {
		declare := table[i].declare
		table[i].declare = func(flags *arguments) action {
			declare(flags)
			return func(context.Context, []string, io.Writer, io.Writer) error { return nil }
		}
	}
	ctx, screen := newScreen(t.Context(), io.Discard, io.Discard)
	defer screen.end()
	return program{"fettle", table, screen}.run(ctx, args)
}

// fettleLine is a command line of fettle in a document or example: at the beginning of a line, after a prompt or a pipe, or in backticks.
var fettleLine = regexp.MustCompile(
	"(?m)(?:^ *(?:\\$ )?|\\| |`)(?:sudo )?(?:kubectl )?fettle ((?:'[^'\n]*'|\"[^\"\n]*\"|[^|`'\"\n#;])*)")

// shellWords cuts a line into words as a shell does, which documents need for quotes alone. What follows > or 2> goes to a file.
func shellWords(line string) []string {
	var words []string
	for _, word := range regexp.MustCompile(`(?:[^\s'"]|'[^']*'|"[^"]*")+`).FindAllString(line, -1) {
		if word == ">" || word == "&&" || word == "<" {
			break
		}
		words = append(words, strings.NewReplacer("'", "", `"`, "").Replace(word))
	}
	return words
}

// TestDocumentedCommands: every command line of fettle in a document, an example or a scenario's text is one that fettle understands.
func TestDocumentedCommands(t *testing.T) {
	seen := 0
	look := func(where, text string) {
		for _, match := range fettleLine.FindAllStringSubmatch(text, -1) {
			args := shellWords(match[1])
			if len(args) == 0 || !known(args[0]) || args[len(args)-1] == "[FLAGS]" {
				continue // a sentence about fettle, or a usage
			}
			seen++
			// A sentence may name a verb alone, whatever it wants beside.
			if name := strings.Join(args, " "); isVerb(name) || isGroup(name) {
				continue
			}
			err := parses(t, args)
			if prose := match[0][0] == '`'; prose && err != nil && strings.Contains(err.Error(), ": got 0 arguments, ") {
				continue // a sentence about a flag
			}
			if err != nil {
				t.Errorf("%s: fettle %s: %v", where, match[1], err)
			}
		}
	}
	for _, c := range commands() {
		look("the examples of "+c.name(), c.examples)
	}
	for _, dir := range []string{"../../docs", "../../demo", "../../test/machines"} {
		check.Must(t, filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(name) != ".md" && entry.Name() != "expect" {
				return err
			}
			text, err := os.ReadFile(name)
			look(name, string(text))
			return err
		}))
	}
	readme, err := os.ReadFile("../../README.md")
	check.Must(t, err)
	look("README.md", string(readme))
	if seen < 60 {
		t.Errorf("found %d command lines, want those of all documents", seen)
	}
}

// known reports whether a word begins a verb or is one of the words that cobra adds.
func known(word string) bool {
	for _, c := range commands() {
		if first, _, _ := strings.Cut(c.name(), " "); first == word {
			return true
		}
	}
	return word == "help" || strings.HasPrefix(word, "-")
}

func isVerb(name string) bool {
	for _, c := range commands() {
		if c.name() == name {
			return true
		}
	}
	return false
}

func isGroup(name string) bool { return groupSummaries()[name] != "" }
