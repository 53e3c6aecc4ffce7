// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fettle-dev/fettle/test/again"
)

// module is what the packages of the repository begin with.
const module = "github.com/fettle-dev/fettle/"

// event is a line of "go test -json" (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// reader shows what a target prints as "go test" would have shown it, and keeps how long tests took.
type reader struct {
	out   io.Writer
	stage string
	tests []took
	// failed are the lines that say why tests failed.
	failed []string
	// rest is a line whose end has not come yet.
	rest []byte
	// output is what a test that runs has printed, by package and test.
	output map[string][]string
	// started are the packages whose tests run, broken the tests that failed, by package, and passed the names of specs that passed.
	started map[string]bool
	broken  map[string][]failedTest
	passed  map[string]bool
	// specs are those that failed and may run once more, unless final is set: something else failed too.
	specs []again.Spec
	final bool
}

func newReader(stage string, out io.Writer) *reader {
	return &reader{
		out: out, stage: stage, output: map[string][]string{}, started: map[string]bool{}, broken: map[string][]failedTest{},
		passed: map[string]bool{},
	}
}

// repeatable are the specs that run once more: all that failed, or none.
func (r *reader) repeatable() []again.Spec {
	if r.final {
		return nil
	}
	return r.specs
}

// Write implements io.Writer.
func (r *reader) Write(data []byte) (int, error) {
	r.rest = append(r.rest, data...)
	for {
		line, rest, whole := bytes.Cut(r.rest, []byte("\n"))
		if !whole {
			return len(data), nil
		}
		r.line(string(line))
		r.rest = rest
	}
}

// flush takes what has no end of line, and shows the output of tests that never ended. Where there are such tests, the target was cut off.
func (r *reader) flush() {
	if len(r.rest) > 0 {
		r.line(string(r.rest))
		r.rest = nil
	}
	r.final = r.final || len(r.started) > 0
	for key := range r.output {
		r.show(key)
	}
}

func (r *reader) line(line string) {
	var e event
	if s, ok := again.Read(line); ok {
		// Ginkgo may repeat what a report printed.
		if !slices.Contains(r.specs, s) {
			r.specs = append(r.specs, s)
		}
		return
	}
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		fmt.Fprintln(r.out, line)
		r.text(line)
		return
	}
	key := e.Package + " " + e.Test
	switch e.Action {
	case "start":
		r.started[e.Package] = true
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		if e.Test != "" {
			r.output[key] = append(r.output[key], e.Output)
		} else if e.Output != "PASS\n" {
			fmt.Fprint(r.out, e.Output)
			r.final = r.final || crash.MatchString(e.Output)
		}
	case "fail":
		shown := r.show(key)
		r.failed = append(r.failed, cut(shown)...)
		if e.Test != "" {
			r.broken[e.Package] = append(r.broken[e.Package], failedTest{name: e.Test, lines: shown})
		}
		r.end(e)
	case "pass", "skip":
		delete(r.output, key)
		r.end(e)
	}
}

// end keeps what became of a test, or of a package.
func (r *reader) end(e event) {
	r.add(e)
	r.passed[strings.TrimPrefix(e.Package, module)+"."+e.Test] = e.Action == "pass"
	if e.Test != "" {
		return
	}
	delete(r.started, e.Package)
	if e.Action == "fail" {
		r.packageFailed(e.Package)
	}
}

// show prints what a test printed, and returns it.
func (r *reader) show(key string) []string {
	var shown []string
	for _, text := range r.output[key] {
		if !strings.HasPrefix(text, "=== ") {
			fmt.Fprint(r.out, text)
			shown = append(shown, strings.TrimSuffix(text, "\n"))
		}
	}
	delete(r.output, key)
	return shown
}

// cut returns the first and the last lines of what a test printed: the reason may be at either end.
func cut(lines []string) []string {
	const first, last = 10, 20
	left := len(lines) - first - last
	if left <= 0 {
		return lines
	}
	return slices.Concat(lines[:first], []string{fmt.Sprintf("[%d lines more]", left)}, lines[first+left:])
}

// add keeps a test or a subtest. What is deeper counts as its parent's.
func (r *reader) add(e event) {
	if e.Test != "" && strings.Count(e.Test, "/") <= 1 {
		r.keep(e.Package+"."+e.Test, e.Elapsed)
	}
}

func (r *reader) keep(name string, seconds float64) {
	name = strings.TrimPrefix(name, module)
	r.tests = append(r.tests, took{stage: r.stage, name: name, time: time.Duration(seconds * float64(time.Second))})
}

var (
	// verbose is a test's end in the output of "go test -v".
	verbose = regexp.MustCompile(`^\s*--- [A-Z]+: (\S+) \(([0-9.]+)s\)$`)
	// spec is a line that the end-to-end suite prints for each of its specs.
	spec = regexp.MustCompile(`^[^0-9]*[0-9:]{8} (passed|failed|timedout|panicked) +([0-9.]+) s  (.+)$`)
	// why is a line that the end-to-end suite prints for a spec that failed.
	why = regexp.MustCompile(`^\W*(?:S\W*)?FAILED: (.+)$`)
	// scenario is a line that the demo prints for each of its scenarios.
	scenario = regexp.MustCompile(`^(PASS|FAIL) (\S+) \(([0-9.]+) s\)$`)
)

// text keeps what a line says of a test that is not run with -json.
func (r *reader) text(line string) {
	if m := why.FindStringSubmatch(line); m != nil {
		r.failed = append(r.failed, m[1])
	}
	name, seconds := "", ""
	if m := verbose.FindStringSubmatch(line); m != nil {
		name, seconds = m[1], m[2]
	} else if m := spec.FindStringSubmatch(line); m != nil {
		name, seconds = "TestE2E/"+m[3], m[2]
		r.passed[m[3]] = m[1] == "passed"
	} else if m := scenario.FindStringSubmatch(line); m != nil {
		name, seconds = m[2], m[3]
		r.passed[name] = m[1] == "PASS"
	}
	if s, err := strconv.ParseFloat(seconds, 64); err == nil {
		r.keep(name, s)
	}
}
