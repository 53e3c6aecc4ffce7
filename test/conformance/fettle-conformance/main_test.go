// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/conformance"
)

func TestExitStatus(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args           string
		want           int
		stdout, stderr string
	}{
		"list":           {args: "--list", stdout: "prepare/idempotent "},
		"list some":      {args: "--list --focus ^cdi/ --skip wiped", stdout: "cdi/resolve "},
		"list none":      {args: "--list --focus ^no-such/", want: 3, stderr: "inconclusive: no check matches --focus and --skip, see"},
		"no check":       {args: "--driver a --endpoint a.sock --skip .", want: 3, stderr: "inconclusive: no check matches"},
		"help":           {args: "--help", stdout: "--restart-command PROGRAM"},
		"short help":     {args: "-h", stdout: "Usage:"},
		"version":        {args: "--version", stdout: "devel"},
		"unknown flag":   {args: "--drivre a", want: 2, stderr: "not defined: -drivre\nusage: fettle-conformance --driver NAME"},
		"no driver":      {args: "--endpoint a.sock", want: 2, stderr: "--driver is missing"},
		"no socket":      {args: "--driver a", want: 2, stderr: "--registration or --endpoint is missing"},
		"argument":       {args: "--driver a dra.sock", want: 2, stderr: `unexpected argument "dra.sock"`},
		"bad expression": {args: "--focus (", want: 2, stderr: "missing closing )"},
		"not parallel":   {args: "--driver a --endpoint a.sock --parallel 1", want: 2, stderr: "want at least 2"},
		"no API server":  {args: "--driver a --endpoint a.sock --kubeconfig no-such-file", want: 1, stderr: "find the API server"},
		"no parameters":  {args: "--driver a --endpoint a.sock --parameters no-such-file", want: 1, stderr: "read the parameters"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			got := run(t.Context(), strings.Fields(test.args), &stdout, &stderr)
			if got != test.want || !strings.Contains(stdout.String(), test.stdout) || !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("status %d, want %d with %q and %q\n%s%s", got, test.want, test.stdout, test.stderr, &stdout, &stderr)
			}
		})
	}
}

func TestListSelects(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	run(t.Context(), []string{"--list", "--focus", "^cdi/", "--skip", "wiped|valid"}, &stdout, io.Discard)
	for line := range strings.Lines(stdout.String()) {
		if !strings.HasPrefix(line, "cdi/") || strings.HasPrefix(line, "cdi/wiped") {
			t.Errorf("listed: %s", line)
		}
	}
	if all := len(conformance.Checks()); strings.Count(stdout.String(), "\n") >= all {
		t.Errorf("listed all %d checks", all)
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	if command("  ", time.Minute, io.Discard) != nil {
		t.Error("an empty line is a command")
	}
	file := filepath.Join(t.TempDir(), "made;here")
	if err := command("touch "+file, time.Minute, io.Discard)(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("a shell saw the line: %v", err)
	}
	var stderr bytes.Buffer
	err := command("ls /no/such/file", time.Minute, &stderr)(t.Context())
	if err == nil || !strings.Contains(stderr.String(), "/no/such/file") {
		t.Errorf("error %v, output %q", err, &stderr)
	}
	// fragile: sleep does not end before, so that no limit is too short
	if err := command("sleep 60", time.Millisecond, io.Discard)(t.Context()); err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("error %v, want that of the deadline", err)
	}
}

// TestReadmeNamesFlags wants every flag explained.
func TestReadmeNamesFlags(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	flagSet(&options{}).VisitAll(func(f *flag.Flag) {
		if !strings.Contains(string(text), "| `--"+f.Name+"` |") {
			t.Errorf("README.md has no line for --%s", f.Name)
		}
	})
}

// TestHelp wants what a stranger has to know before the list of flags: what must be given, an example that is a right command line, and
// what a run does to the node.
func TestHelp(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	must(t, help(&stdout))
	before, flags, found := strings.Cut(stdout.String(), "\nFlags:\n")
	if !found {
		t.Fatalf("no list of flags:\n%s", &stdout)
	}
	for _, want := range []string{
		"--driver NAME --registration SOCKET|--endpoint SOCKET", "restarts the plugin", "deletes CDI spec files", "3  inconclusive",
	} {
		if !strings.Contains(before, want) {
			t.Errorf("no %q in\n%s", want, before)
		}
	}
	_, example, _ := strings.Cut(before, "\nExample:\n  fettle-conformance ")
	example, _, _ = strings.Cut(example, "\n\n")
	o, err := parse(shellWords(strings.ReplaceAll(example, "\\\n", " ")))
	if err != nil || o.config.Driver == "" || o.config.Registration == "" || o.restart != "systemctl restart example-plugin" {
		t.Errorf("the example %q is read as %+v, %v", example, o, err)
	}
	flagSet(&options{}).VisitAll(func(f *flag.Flag) {
		if !strings.Contains(flags, "  --"+f.Name) {
			t.Errorf("--%s is not in the list", f.Name)
		}
	})
	const widest = 140
	for line := range strings.Lines(stdout.String()) {
		if len(line) > widest {
			t.Errorf("a line has %d characters: %s", len(line), line)
		}
	}
}

// shellWords splits a line as a shell does, as far as the example needs it: blanks, and quotes that keep them.
func shellWords(line string) []string {
	var words []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
