// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fettle-dev/fettle/demo/internal/play"
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
