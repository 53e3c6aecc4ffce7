// SPDX-License-Identifier: Apache-2.0

// Command stages makes targets of the Makefile one after the other: go run ./tools/stages -report FILE MAKE TARGET...
//
// It says when each target begins and how long it took, so that a run that is cut off shows where its time went, and lists at its end what
// took longest: the targets, and the slowest tests among all that they ran; and why tests failed, where only the end of a log is kept.
//
// A spec of the API tests, of the demo or of the end-to-end tests that failed runs once more, alone, at the end of its target. If it
// passes, the run goes on, and its last lines and its report name the spec. No other test runs twice.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/test/again"
)

func main() {
	r := run{out: os.Stdout}
	flag.StringVar(&r.file, "report", "", "`file` for the results as JSON")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: stages [-report FILE] MAKE TARGET...")
		os.Exit(2)
	}
	r.program = flag.Arg(0)
	r.report.Commit = commit()
	if err := r.all(flag.Args()[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "stages:", err)
		os.Exit(1)
	}
}

// commit is what is tested, with "-dirty" where files differ from it; empty outside a repository.
func commit() string {
	name, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// run makes targets by a program. It tells a person on out what becomes of them, and other programs in a file.
type run struct {
	program, file string
	out           io.Writer
	report        report
	tests         []took
}

// mostFlaky is how many specs of a run may fail at first. More are no chance.
const mostFlaky = 2

func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.out, "== %s %s\n", time.Now().UTC().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// all makes the targets until one fails, and says in either case what took longest, what failed and what failed at first.
func (r *run) all(targets []string) (err error) {
	r.report.Begin = time.Now().UTC().Truncate(time.Second)
	for _, target := range targets {
		if err = r.target(target); err != nil {
			break
		}
	}
	r.report.Passed = err == nil
	err = errors.Join(err, r.report.write(r.file))
	list(r.out, r.report.Stages, r.tests)
	if len(r.report.Failed) > 0 {
		fmt.Fprintln(r.out, "== what failed:\n"+strings.Join(r.report.Failed, "\n"))
	}
	for _, f := range r.report.Flaky {
		fmt.Fprintln(r.out, f)
	}
	return err
}

// target makes one target, and once more for each spec that may.
func (r *run) target(target string) error {
	r.say("%s begins", target)
	begin := time.Now()
	printed, err := r.make(target, target)
	r.tests = append(r.tests, printed.tests...)
	if err != nil {
		err = r.repeat(target, printed, err)
	}
	seconds := time.Since(begin).Seconds()
	r.report.Stages = append(r.report.Stages, stage{Name: target, Seconds: seconds, Passed: err == nil})
	if err != nil {
		r.say("%s failed after %.0f s", target, seconds)
		return fmt.Errorf("make %s: %w", target, err)
	}
	r.say("%s took %.0f s", target, seconds)
	return nil
}

// repeat makes a target that failed once more for each of its specs that failed, alone. It returns why the target failed all the same.
func (r *run) repeat(target string, first *reader, err error) error {
	specs := first.repeatable()
	if len(specs) > 0 && len(r.report.Flaky)+len(specs) > mostFlaky {
		err = fmt.Errorf("%w; none runs once more, as more than %d specs failed in this run", err, mostFlaky)
		specs = nil
	}
	if len(specs) == 0 {
		r.report.Failed = first.failed
		return err
	}
	for _, s := range specs {
		r.say("%s runs once more, alone: %s", target, s.Name)
		second, err := r.make(target, target+again.Suffix, "PROCS=1", "AGAIN="+s.Focus, "PACKAGE="+s.Package)
		if err == nil && !second.passed[s.Name] {
			err = fmt.Errorf("%s did not run once more", s.Name)
		}
		if err != nil {
			r.report.Failed = slices.Concat(first.failed, second.failed)
			return err
		}
		r.report.Flaky = append(r.report.Flaky, flaky{Stage: target, Spec: s})
	}
	return nil
}

// jsonFlag is the variable of the Makefile that has "go test" print events, which tell how long each test took.
const jsonFlag = "GOTEST_JSON=-json"

// make makes a target, shows what it prints, and returns the reader of it, which knows the tests that ran.
func (r *run) make(target, stage string, variables ...string) (*reader, error) {
	printed := newReader(target, r.out)
	command := exec.Command(r.program, append([]string{target}, variables...)...) //nolint:gosec // the Makefile names both
	command.Env = append(os.Environ(), jsonFlag, again.Stage+"="+stage)
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
