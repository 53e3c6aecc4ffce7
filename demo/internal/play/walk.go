// SPDX-License-Identifier: Apache-2.0

package play

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/demo/internal/script"
)

// Exchange is a command on a page, and what the page shows below it.
type Exchange struct {
	Command, Output string
}

// console is a block of a page with commands behind "$ ".
var console = regexp.MustCompile("(?ms)^```console\n(.*?)^```")

// Exchanges reads the commands of a page in their order.
func Exchanges(page string) []Exchange {
	var found []Exchange
	for _, block := range console.FindAllStringSubmatch(page, -1) {
		for part := range strings.SplitSeq("\n"+block[1], "\n$ ") {
			command, output, _ := strings.Cut(part, "\n")
			if command != "" {
				found = append(found, Exchange{Command: command, Output: output})
			}
		}
	}
	return found
}

// walk runs the commands of a page and compares what they print with what the page shows.
func (st *stage) walk(ctx context.Context, step script.Step) error {
	page, err := os.ReadFile(filepath.Join(st.h.Root, step.Args[0]))
	if err != nil {
		return err
	}
	exchanges := Exchanges(string(page))
	if len(exchanges) == 0 {
		return fmt.Errorf("%s has no command", step.Args[0])
	}
	for _, e := range exchanges {
		if err := st.exchange(ctx, e); err != nil {
			return fmt.Errorf("%s: $ %s: %w", step.Args[0], e.Command, err)
		}
	}
	return nil
}

// exchange runs a command that changes something once, and another one until it prints what the page shows.
func (st *stage) exchange(ctx context.Context, e Exchange) error {
	words := strings.Fields(e.Command)
	if len(words) < 2 {
		return errors.New("want kubectl or fettle with a verb")
	}
	if words[0] == "kubectl" && slices.Contains([]string{"apply", "delete"}, words[1]) {
		return st.exchangeOnce(ctx, e, words)
	}
	return st.h.Poll(ctx, words[1], patience, func(ctx context.Context) error { return st.exchangeOnce(ctx, e, words) })
}

func (st *stage) exchangeOnce(ctx context.Context, e Exchange, words []string) error {
	args := slices.Clone(words[1:])
	for i := 1; i < len(args); i++ {
		if args[i-1] != "-f" {
			continue
		}
		args[i] = st.file(args[i])
		if args[0] == "apply" && !slices.Contains(st.applied, args[i]) {
			st.applied = append(st.applied, args[i])
		}
	}
	var out string
	var err error
	switch words[0] {
	case "kubectl":
		out, err = st.kubectl(ctx, args...)
	case "fettle":
		out, err = st.h.Fettle(ctx, append(args, "--namespace", st.Namespace())...)
	default:
		err = fmt.Errorf("%s is neither kubectl nor fettle", words[0])
	}
	if err != nil {
		return err
	}
	if err := e.Same(out); err != nil {
		return fmt.Errorf("it prints\n%s\nThe page has\n%s\n%w", out, e.Output, err)
	}
	return nil
}

// Same compares an output with the page's. A line "..." on the page stands for any number of lines.
func (e Exchange) Same(out string) error {
	var step script.Step
	for line := range strings.SplitSeq(Comparable(e.Output), "\n") {
		if line != script.Any {
			line = regexp.QuoteMeta(line)
		}
		step.Want = append(step.Want, line)
	}
	_, err := step.Match(Comparable(out), nil)
	return err
}

// What differs from run to run.
var (
	usage     = regexp.MustCompile(`\d+ used, \d+ free`)
	madeName  = regexp.MustCompile(`\b(\w+-gpu)-[a-z0-9]{5}\b`)
	namespace = regexp.MustCompile(` deleted from \S+ namespace\b`)
	gap       = regexp.MustCompile(`\s{2,}`)
)

// Comparable returns the output of a command without what differs from run to run: widths of columns, counts of what other pods use,
// numbers of claims and problems, ages, and the ends of names that Kubernetes makes.
func Comparable(output string) string {
	output = usage.ReplaceAllString(output, "N used, N free")
	output = madeName.ReplaceAllString(output, "$1-XXXXX")
	output = namespace.ReplaceAllString(output, " deleted")
	var lines []string
	var head []string
	for line := range strings.SplitSeq(strings.TrimSpace(output), "\n") {
		cells := gap.Split(strings.TrimSpace(line), -1)
		if cells[0] == "NAME" {
			head = cells
		} else if len(cells) == len(head) {
			for i, column := range head {
				if slices.Contains([]string{"AGE", "CLAIMS", "PROBLEMS", "RESTARTS"}, column) {
					cells[i] = column
				}
			}
		}
		lines = append(lines, strings.Join(cells, "  "))
	}
	return strings.Join(lines, "\n")
}
