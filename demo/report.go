// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fettle-dev/fettle/demo/internal/play"
	"github.com/fettle-dev/fettle/test/again"
	"github.com/fettle-dev/fettle/test/harness"
)

// result is what became of a scenario.
type result struct {
	Scenario play.Scenario
	Took     time.Duration
	// Skipped says why it was not run; empty if it was.
	Skipped string
	Err     error
}

// verdict is PASS, FAIL or SKIP.
func (r result) verdict() string {
	switch {
	case r.Err != nil:
		return "FAIL"
	case r.Skipped != "":
		return "SKIP"
	default:
		return "PASS"
	}
}

// reason is why, in one line.
func (r result) reason() string {
	if r.Err == nil {
		return r.Skipped
	}
	const most = 300
	line := []rune(strings.Join(strings.Fields(r.Err.Error()), " "))
	if len(line) > most {
		return string(line[:most]) + "…"
	}
	return string(line)
}

// repeatable are the scenarios that failed and may run once more; none where one left something behind.
func repeatable(c harness.Config, results []result) []again.Spec {
	var specs []again.Spec
	for _, r := range results {
		if errors.Is(r.Err, play.ErrClear) {
			return nil
		}
		if r.Err == nil {
			continue
		}
		where := "demo/" + r.Scenario.Name
		if step := (*play.StepError)(nil); errors.As(r.Err, &step) {
			where += fmt.Sprintf("/expect:%d", step.Step.Line)
		}
		specs = append(specs, again.Spec{
			Name: r.Scenario.Name, Where: where, Why: again.Line(r.Err.Error()), Focus: "^" + again.Pattern(r.Scenario.Name) + `\z`,
			Artifacts: filepath.Join(c.Artifacts("demo"), r.Scenario.Name),
		})
	}
	return specs
}

// report prints a line a scenario, and how long everything took.
func report(w io.Writer, results []result, t times) {
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	counts := map[string]int{}
	for _, r := range results {
		counts[r.verdict()]++
		fmt.Fprintln(table, strings.TrimSpace(fmt.Sprintf("%s\t%s\t%s\t%.1f s\t%s",
			r.verdict(), r.Scenario.Name, r.Scenario.Title, r.Took.Seconds(), r.reason())))
	}
	table.Flush()
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped. Cluster %.1f s, chart %.1f s, scenarios %.1f s.\n",
		counts["PASS"], counts["FAIL"], counts["SKIP"], t.up.Seconds(), t.install.Seconds(), t.scenarios.Seconds())
}
