// SPDX-License-Identifier: Apache-2.0

// Command stages makes targets of the Makefile one after the other: go run ./tools/stages MAKE TARGET...
//
// It says when each target begins and how long it took, so that a run that is cut off shows where its time went, and lists at its end what
// took longest: the targets, and the slowest tests among all that they ran; and why tests failed, where only the end of a log is kept.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: stages MAKE TARGET...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "stages:", err)
		os.Exit(1)
	}
}

// took is how long a target or one of its tests took.
type took struct {
	stage, name string
	time        time.Duration
}

// run makes the targets until one fails, and lists what took longest in either case.
func run(program string, targets []string, out io.Writer) error {
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "== %s %s\n", time.Now().UTC().Format(time.TimeOnly), fmt.Sprintf(format, args...))
	}
	var stages, tests []took
	var failed []string
	defer func() {
		list(out, stages, tests)
		if len(failed) > 0 {
			fmt.Fprintln(out, "== what failed:\n"+strings.Join(failed, "\n"))
		}
	}()
	for _, target := range targets {
		say("%s begins", target)
		begin := time.Now()
		printed, err := makeTarget(program, target, out)
		stages = append(stages, took{stage: target, time: time.Since(begin)})
		tests = append(tests, printed.tests...)
		if err != nil {
			failed = printed.failed
			say("%s failed after %.0f s", target, time.Since(begin).Seconds())
			return fmt.Errorf("make %s: %w", target, err)
		}
		say("%s took %.0f s", target, time.Since(begin).Seconds())
	}
	return nil
}

// jsonFlag is the variable of the Makefile that has "go test" print events, which tell how long each test took.
const jsonFlag = "GOTEST_JSON=-json"

// makeTarget makes a target, shows what it prints, and returns the reader of it, which knows the tests that ran.
func makeTarget(program, target string, out io.Writer) (*reader, error) {
	printed := &reader{out: out, stage: target, output: map[string][]string{}}
	command := exec.Command(program, target) //nolint:gosec // the Makefile names both
	command.Env = append(os.Environ(), jsonFlag)
	command.Stdout, command.Stderr = printed, printed
	// A process that a target leaves running keeps the output open.
	command.WaitDelay = time.Second
	err := command.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	printed.flush()
	return printed, err
}

// slowest is how many tests are listed.
const slowest = 10

// list prints the stages and the slowest tests, longest first.
func list(out io.Writer, stages, tests []took) {
	sortLongest(stages)
	total := time.Duration(0)
	for _, s := range stages {
		total += s.time
	}
	fmt.Fprintf(out, "== %.0f s in all, by target:\n", total.Seconds())
	for _, s := range stages {
		fmt.Fprintf(out, "%7.1f s  %s\n", s.time.Seconds(), s.stage)
	}
	if len(tests) == 0 {
		return
	}
	fmt.Fprintln(out, "== the slowest tests:")
	for _, t := range longest(tests, slowest) {
		fmt.Fprintf(out, "%7.1f s  %s: %s\n", t.time.Seconds(), t.stage, t.name)
	}
}

func sortLongest(all []took) {
	slices.SortStableFunc(all, func(a, b took) int { return cmp.Compare(b.time, a.time) })
}

// longest returns the n slowest tests. A test is left out where one of its own subtests is among them.
func longest(tests []took, n int) []took {
	all := slices.Clone(tests)
	sortLongest(all)
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
