// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/test/again"
)

// report is the file of a run.
type report struct {
	Commit string    `json:"commit"`
	Begin  time.Time `json:"begin"`
	Passed bool      `json:"passed"`
	Stages []stage   `json:"stages"`
	// Failed are the lines that say why tests failed, and Flaky the specs that passed when they ran once more.
	Failed []string `json:"failed"`
	Flaky  []flaky  `json:"flaky"`
}

// stage is a target that was made.
type stage struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Passed  bool    `json:"passed"`
}

// flaky is a spec that failed and then passed, with where and why it failed.
type flaky struct {
	Stage string `json:"stage"`
	again.Spec
}

// String is the line at the end of a run.
func (f flaky) String() string {
	const most = 400
	why := []rune(f.Why)
	if len(why) > most {
		why = append(why[:most], '…')
	}
	return fmt.Sprintf("FLAKY %s: %s: %s: %s", f.Name, f.Stage, f.Where, string(why))
}

// write writes the report to a file, if it has a name.
func (r report) write(file string) error {
	if file == "" {
		return nil
	}
	r.Failed, r.Flaky = append([]string{}, r.Failed...), append([]flaky{}, r.Flaky...)
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the report of the run: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the directory for the report of the run: %w", err)
	}
	if err := os.WriteFile(file, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the report of the run: %w", err)
	}
	return nil
}

// took is how long a test of a target took.
type took struct {
	stage, name string
	time        time.Duration
}

// slowest is how many tests are listed.
const slowest = 10

// list prints the stages and the slowest tests, longest first.
func list(out io.Writer, stages []stage, tests []took) {
	stages = slices.SortedStableFunc(slices.Values(stages), func(a, b stage) int { return cmp.Compare(b.Seconds, a.Seconds) })
	total := 0.0
	for _, s := range stages {
		total += s.Seconds
	}
	fmt.Fprintf(out, "== %.0f s in all, by target:\n", total)
	for _, s := range stages {
		fmt.Fprintf(out, "%7.1f s  %s\n", s.Seconds, s.Name)
	}
	if len(tests) == 0 {
		return
	}
	fmt.Fprintln(out, "== the slowest tests:")
	for _, t := range longest(tests, slowest) {
		fmt.Fprintf(out, "%7.1f s  %s: %s\n", t.time.Seconds(), t.stage, t.name)
	}
}

// longest returns the n slowest tests. A test is left out where one of its own subtests is among them.
func longest(tests []took, n int) []took {
	all := slices.SortedStableFunc(slices.Values(tests), func(a, b took) int { return cmp.Compare(b.time, a.time) })
	for {
		top := all[:min(n, len(all))]
		i := slices.IndexFunc(top, func(t took) bool {
			return slices.ContainsFunc(top, func(sub took) bool {
				return sub.stage == t.stage && strings.HasPrefix(sub.name, t.name+"/")
			})
		})
		if i < 0 {
			return top
		}
		all = slices.Delete(all, i, i+1)
	}
}
