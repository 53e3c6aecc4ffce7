// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Text writes results as the lines of an aligned table, each as soon as it is there.
type Text struct {
	out     io.Writer
	width   int
	results []Result
}

// NewText aligns the table for a list of checks.
func NewText(out io.Writer, checks []Check) *Text {
	t := &Text{out: out}
	for _, c := range checks {
		t.width = max(t.width, len(c.Name))
	}
	return t
}

// Add writes one result. The lines of a message stand below each other. The error is that of the writer.
func (t *Text) Add(r Result) error {
	t.results = append(t.results, r)
	// STATUS, name, seconds as in " 123.4s", message.
	const gaps, seconds = 2, 7
	line := fmt.Sprintf("%s%*s%-*s%*s%*.1fs", r.Status, gaps, "", t.width, r.Check.Name, gaps, "", seconds-1, r.Duration.Seconds())
	indent := strings.Repeat(" ", len(line)+gaps)
	if r.Message != "" {
		line += strings.Repeat(" ", gaps) + strings.ReplaceAll(r.Message, "\n", "\n"+indent)
	}
	_, err := fmt.Fprintln(t.out, line)
	return err
}

// Summary writes what the failures have in common, and the last line.
func (t *Text) Summary(took time.Duration) error {
	var text strings.Builder
	if findings := Findings(t.results); len(findings) > 0 {
		text.WriteString("\nFindings, by cause:\n")
		for _, f := range findings {
			fmt.Fprintf(&text, "* %s\n", f)
		}
	}
	count := map[Status]int{}
	for _, r := range t.results {
		count[r.Status]++
	}
	fmt.Fprintf(&text, "\n%d passed, %d failed, %d skipped in %s\n", count[Passed], count[Failed], count[Skipped],
		took.Round(100*time.Millisecond))
	_, err := io.WriteString(t.out, text.String())
	return err
}

// List writes the checks and what each expects.
func List(out io.Writer, checks []Check) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, c := range checks {
		fmt.Fprintf(table, "%s\t%s\n", c.Name, c.Summary) // a tabwriter's errors come at Flush
	}
	return table.Flush()
}
