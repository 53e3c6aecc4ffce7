// SPDX-License-Identifier: Apache-2.0

// Package again is how a suite names the specs that failed and may run once more. tools/stages reads the names from the suite's output.
package again

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
)

const (
	// Stage is the variable in which tools/stages names the target that it makes. It ends in Suffix where a spec runs once more.
	Stage  = "FETTLE_STAGE"
	Suffix = "/again"
	// Prefix stands before each spec that Write writes.
	Prefix = "AGAIN "
)

// Spec is a spec that failed.
type Spec struct {
	Name string `json:"name"`
	// Where is the line of the source that failed, and Why is its message in one line.
	Where string `json:"where"`
	Why   string `json:"why"`
	// Artifacts is the directory with what explains the failure; empty if there is none.
	Artifacts string `json:"artifacts,omitempty"`
	// Focus selects the spec: the target is made once more with it as AGAIN. Package is that of a Go test, for PACKAGE.
	Focus   string `json:"focus"`
	Package string `json:"package,omitempty"`
}

// Pattern is a regular expression that matches text and passes through make and the shell as it is.
func Pattern(text string) string {
	return strings.NewReplacer("'", ".", `\$`, ".", "\n", ".").Replace(regexp.QuoteMeta(text))
}

// Line puts a message in one line that is not endless.
func Line(message string) string {
	const most = 1500
	line := []rune(strings.Join(strings.Fields(message), " "))
	if len(line) > most {
		return string(line[:most]) + " …"
	}
	return string(line)
}

// Write names specs to tools/stages, on lines of their own. It writes nothing where no stage is being made.
func Write(w io.Writer, stage string, specs []Spec) error {
	if stage == "" {
		return nil
	}
	for _, s := range specs {
		data, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("name the spec %q: %w", s.Name, err)
		}
		fmt.Fprintf(w, "\n%s%s\n", Prefix, data)
	}
	return nil
}

// Read returns the spec that a line of a suite's output names.
func Read(line string) (Spec, bool) {
	// The suite may have begun the line with marks of its progress.
	_, text, found := strings.Cut(line, Prefix+"{")
	var s Spec
	if !found || json.Unmarshal([]byte("{"+text), &s) != nil || s.Name == "" || s.Focus == "" {
		return Spec{}, false
	}
	return s, true
}
