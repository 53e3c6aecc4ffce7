// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// This file follows the recipe "A verb of the command line" of docs/design/adding.md: one row, and nothing else, makes a verb that can be
// run, that help shows, and whose mistakes are those of every verb.

func nicList(flags *arguments) action {
	format := flags.format()
	return func(_ context.Context, _ []string, stdout, _ io.Writer) error {
		_, err := fmt.Fprintln(stdout, "eth0", *format)
		return err
	}
}

func TestVerbOfOnesOwn(t *testing.T) {
	table := append(commands(), command{"nic ls", "list network cards", "\nLists network cards.", "fettle nic ls", nicList})
	for _, tt := range []struct {
		args []string
		out  string // a part of what is printed
		err  string
	}{
		{[]string{"nic", "ls", "-o", "json"}, "eth0 json\n", ""},
		{[]string{"nic", "ls", "--help"}, "Usage: fettle nic ls", ""},
		{[]string{"help"}, "  nic ls            list network cards\n", ""},
		{[]string{"nic", "ls", "one"}, "", "nic ls: got 1 arguments, want none; see fettle nic ls --help"},
		{[]string{"nic", "rm"}, "", `unknown command "nic rm"; see fettle help`},
	} {
		var out bytes.Buffer
		ctx, screen := newScreen(t.Context(), &out, io.Discard)
		err := program{"fettle", table, screen}.run(ctx, tt.args)
		if got := fmt.Sprint(err); err != nil && got != tt.err || err == nil && tt.err != "" {
			t.Errorf("%v: error %v, want %q", tt.args, err, tt.err)
		}
		if !strings.Contains(out.String(), tt.out) {
			t.Errorf("%v: printed %q, want %q in it", tt.args, out.String(), tt.out)
		}
	}
}

// TestEveryVerbHasAScript: a script runs each verb, as the recipe asks, and the rows are in order.
func TestEveryVerbHasAScript(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var scripts []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		scripts = append(scripts, text...)
	}
	for _, c := range commands() {
		if !regexp.MustCompile(`(?m)^!? ?exec fettle ` + c.name() + `( |$)`).Match(scripts) {
			t.Errorf("no script in testdata/script runs %q: see docs/design/adding.md", c.name())
		}
	}
	if !slices.IsSortedFunc(commands(), func(a, b command) int { return strings.Compare(a.name(), b.name()) }) {
		t.Error("the table of commands is not sorted")
	}
}
