// SPDX-License-Identifier: Apache-2.0

package script

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	const text = `since 1.36 the gate is off before
# a comment
apply a.yaml b.yaml
exec pod main -- ls -l  /dev | sort
...
> (?P<node>/dev/\S+)
>
get pods {.items[?(@.name=="${node}")]}
> ${node} \d+
! apply wrong.yaml
> .*refused.*
`
	got, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := Script{Since: "1.36", Because: "the gate is off before", Steps: []Step{
		{Line: 3, Verb: "apply", Args: []string{"a.yaml", "b.yaml"}},
		{Line: 4, Verb: "exec", Args: []string{"pod", "main"}, Text: "ls -l  /dev | sort", Want: []string{Any, `(?P<node>/dev/\S+)`, ""}},
		{Line: 8, Verb: "get", Args: []string{"pods"}, Text: `{.items[?(@.name=="${node}")]}`, Want: []string{`${node} \d+`}},
		{Line: 10, Verb: "apply", Fails: true, Args: []string{"wrong.yaml"}, Want: []string{".*refused.*"}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("script (-want +got):\n%s", diff)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"> early":                           "line 1: expected output belongs below a step",
		"dance":                             `there is no step "dance"`,
		"apply":                             "apply has 0 words, want 1 to 100",
		"exec pod main":                     "exec needs 2 words",
		"node node1":                        "node needs 1 words",
		"convert":                           "convert has 0 words, want 1 to 100",
		"! running pod":                     "running cannot be expected to fail",
		"look pod main":                     "line 1: look pod main: say what must be seen",
		"! apply a.yaml":                    "say what must be seen",
		"exec p c -- ls ${node}":            "${node} is set by no (?P<node>...) before",
		"exec p c -- ls\n> ${node}":         "${node} is set by no (?P<node>...) before",
		"exec p c -- ls\n> (":               "missing closing )",
		"running p\nsince 1.36 too late":    "want: since VERSION REASON, before all steps",
		"running p\n\nexec p c --\n> x\nup": "line 5: there is no step",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, test := range []struct {
		name string
		want []string
		seen string
		vars map[string]string
		sets map[string]string
		ok   bool
	}{
		{name: "nothing expected", seen: "whatever", ok: true},
		{name: "whole lines", want: []string{`a\d`}, seen: "a1\n", ok: true},
		{name: "not parts of lines", want: []string{`a`}, seen: "a1\n"},
		{name: "alternatives are of the whole line", want: []string{`a|b`}, seen: "ab\n"},
		{name: "a line too many", want: []string{`a`}, seen: "a\nb\n"},
		{name: "a line too few", want: []string{`a`, `b`}, seen: "a\n"},
		{name: "nothing seen", want: []string{`a`}, seen: ""},
		{name: "any lines before", want: []string{Any, `b`}, seen: "a\na\nb\n", ok: true},
		{name: "any may be none", want: []string{Any, `b`, Any}, seen: "b\n", ok: true},
		{name: "any tries further", want: []string{Any, `(?P<n>\d)`, `end`}, seen: "1\n2\nend\n", sets: map[string]string{"n": "2"}, ok: true},
		{name: "set and used", want: []string{`(?P<n>\S+) x`, `${n} y`}, seen: "a.b x\na.b y\n", sets: map[string]string{"n": "a.b"}, ok: true},
		{name: "values are quoted", want: []string{`${n}`}, vars: map[string]string{"n": "a.b"}, seen: "axb\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			vars, err := Step{Want: test.want}.Match(test.seen, test.vars)
			if ok := err == nil; ok != test.ok {
				t.Fatalf("error %v, want a match: %v", err, test.ok)
			}
			for name, value := range test.sets {
				if vars[name] != value {
					t.Errorf("%s is %q, want %q", name, vars[name], value)
				}
			}
		})
	}
}

// FuzzParse holds that a script that parses can be written and read again, step by step.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("../../*/expect")
	if err != nil || len(files) == 0 {
		f.Fatalf("no expect files (%v)", err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse([]byte(text))
		if err != nil {
			return
		}
		for _, step := range s.Steps {
			if again, err := parseStep(step.Line, step.String()); err != nil || again.Verb != step.Verb {
				t.Errorf("step %q: read again: %v, %v", step, again, err)
			}
		}
	})
}
