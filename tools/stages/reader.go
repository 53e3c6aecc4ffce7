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
)

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

// flush takes what has no end of line, and shows the output of tests that never ended.
func (r *reader) flush() {
	if len(r.rest) > 0 {
		r.line(string(r.rest))
		r.rest = nil
	}
	for key := range r.output {
		r.show(key)
	}
}

func (r *reader) line(line string) {
	var e event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		fmt.Fprintln(r.out, line)
		r.text(line)
		return
	}
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		if e.Test != "" {
			r.output[key] = append(r.output[key], e.Output)
		} else if e.Output != "PASS\n" {
			fmt.Fprint(r.out, e.Output)
		}
	case "fail":
		r.failed = append(r.failed, r.show(key)...)
		r.add(e)
	case "pass", "skip":
		delete(r.output, key)
		r.add(e)
	}
}

// show prints what a test printed, and returns the first and the last lines of it: the reason may be at either end.
func (r *reader) show(key string) []string {
	var shown []string
	for _, text := range r.output[key] {
		if !strings.HasPrefix(text, "=== ") {
			fmt.Fprint(r.out, text)
			shown = append(shown, strings.TrimSuffix(text, "\n"))
		}
	}
	delete(r.output, key)
	const first, last = 10, 20
	if left := len(shown) - first - last; left > 0 {
		cut := fmt.Sprintf("[%d lines more]", left)
		shown = slices.Concat(shown[:first], []string{cut}, shown[first+left:])
	}
	return shown
}

// add keeps a test or a subtest. What is deeper counts as its parent's.
func (r *reader) add(e event) {
	if e.Test != "" && strings.Count(e.Test, "/") <= 1 {
		r.keep(e.Package+"."+e.Test, e.Elapsed)
	}
}

func (r *reader) keep(name string, seconds float64) {
	name = strings.TrimPrefix(name, "github.com/fettle-dev/fettle/")
	r.tests = append(r.tests, took{stage: r.stage, name: name, time: time.Duration(seconds * float64(time.Second))})
}

var (
	// verbose is a test's end in the output of "go test -v".
	verbose = regexp.MustCompile(`^\s*--- [A-Z]+: (\S+) \(([0-9.]+)s\)$`)
	// spec is a line that the end-to-end suite prints for each of its specs.
	spec = regexp.MustCompile(`^[^0-9]*[0-9:]{8} (?:passed|failed|timedout|panicked) +([0-9.]+) s  (.+)$`)
	// why is a line that the end-to-end suite prints for a spec that failed.
	why = regexp.MustCompile(`^\W*(?:S\W*)?FAILED: (.+)$`)
	// scenario is a line that the demo prints for each of its scenarios.
	scenario = regexp.MustCompile(`^(?:PASS|FAIL) (\S+) \(([0-9.]+) s\)$`)
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
		name, seconds = "TestE2E/"+m[2], m[1]
	} else if m := scenario.FindStringSubmatch(line); m != nil {
		name, seconds = m[1], m[2]
	}
	if s, err := strconv.ParseFloat(seconds, 64); err == nil {
		r.keep(name, s)
	}
}
