// SPDX-License-Identifier: Apache-2.0

package again

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWriteRead(t *testing.T) {
	want := []Spec{
		{Name: `Fettle "lends" what's <there>`, Where: "test/e2e/a_test.go:3", Why: "AGAIN {", Artifacts: "/tmp/x", Focus: `^a\z`},
		{Name: "controller.TestAPI/nodes", Focus: `^TestAPI\z`, Package: "./controller"},
	}
	var out bytes.Buffer
	out.WriteString("SSS")
	if err := Write(&out, "test-e2e", want); err != nil {
		t.Fatal(err)
	}
	var got []Spec
	for line := range strings.Lines(out.String()) {
		if s, ok := Read("S" + line); ok {
			got = append(got, s)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	out.Reset()
	if err := Write(&out, "", want); err != nil || out.Len() > 0 {
		t.Errorf("without a stage it writes %q, %v", out.String(), err)
	}
	for _, line := range []string{"", "AGAIN", "AGAIN {", "AGAIN {}", `AGAIN {"name":"a"}`, `AGAIN {"focus":"a"}`} {
		if s, ok := Read(line); ok {
			t.Errorf("%q is read as %+v", line, s)
		}
	}
}

// TestPatternThroughMake has make hand patterns to a program as the Makefile does, through a make that it calls.
func TestPatternThroughMake(t *testing.T) {
	file := filepath.Join(t.TempDir(), "Makefile")
	const rules = "outer:\n\t@$(MAKE) --no-print-directory -f " + "$(firstword $(MAKEFILE_LIST)) inner\ninner:\n\t" +
		`@printf %s $(if $(AGAIN),'$(AGAIN)')` + "\n"
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"gives devices to pods", `it's $(HOME), $x and $$: 100 % "sure"`, `a\b (c) [d] {e} #f ; g | h = i & j`,
		"tests: `x` <y> *z?", "two  blanks, 1 → 2",
	} {
		pattern := "^" + Pattern(text) + `\z`
		out, err := exec.Command("make", "-f", file, "outer", "AGAIN="+pattern).CombinedOutput()
		if err != nil || string(out) != pattern {
			t.Errorf("%q arrives as %q, %v", pattern, out, err)
		}
		re := regexp.MustCompile(pattern)
		if !re.MatchString(text) || re.MatchString(text+"s") || re.MatchString("s"+text) {
			t.Errorf("%q does not match %q and nothing else", pattern, text)
		}
	}
}

func TestLine(t *testing.T) {
	if got := Line(" a\n  b\t c\n"); got != "a b c" {
		t.Errorf("got %q", got)
	}
	if got := []rune(Line(strings.Repeat("é", 2000))); len(got) != 1502 {
		t.Errorf("%d characters", len(got))
	}
}
