// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/test/again"
)

// apiStage is the target whose Go tests may run once more, each subtest of a test function being a spec.
const apiStage = "test-api"

// failedTest is a test or a subtest of any depth that failed, and what it printed.
type failedTest struct {
	name  string
	lines []string
}

var (
	// message is the first line of what a test logs.
	message = regexp.MustCompile(`^\s*(\S+\.go:\d+): (.*)`)
	// crash is a line after which no test of its process proves anything.
	crash = regexp.MustCompile(`^\s*(panic: |fatal error: |WARNING: DATA RACE)`)
)

// packageFailed keeps the specs of a package that failed, or that the failure is none of specs.
func (r *reader) packageFailed(pkg string) {
	tests := r.broken[pkg]
	crashed := slices.ContainsFunc(tests, func(t failedTest) bool { return slices.ContainsFunc(t.lines, crash.MatchString) })
	ended := true
	for key := range r.output {
		ended = ended && !strings.HasPrefix(key, pkg+" ")
	}
	if r.stage != apiStage || len(tests) == 0 || crashed || !ended {
		r.final = true // it is none of the API tests, was not compiled, crashed, or was cut off
		return
	}
	r.specs = append(r.specs, specsOf(strings.TrimPrefix(pkg, module), tests)...)
}

// specsOf are the specs of a package among the tests that failed. A test comes after its subtests, which have failed it.
func specsOf(dir string, tests []failedTest) []again.Spec {
	failed := map[string]bool{}
	for _, t := range tests {
		failed[t.name] = true
	}
	var specs []again.Spec
	whole := map[string]bool{}
	for _, t := range tests {
		function, _, isPart := strings.Cut(t.name, "/")
		parts := slices.ContainsFunc(tests, func(sub failedTest) bool { return strings.HasPrefix(sub.name, function+"/") })
		if !isPart && parts {
			// What the function itself did may have failed as well.
			whole[function] = slices.ContainsFunc(t.lines, message.MatchString)
			continue
		}
		name := dir + "." + highest(t.name, failed)
		if slices.ContainsFunc(specs, func(s again.Spec) bool { return s.Name == name }) {
			continue
		}
		s := again.Spec{Name: name, Package: "./" + dir}
		s.Where, s.Why = reason(dir, t.lines)
		specs = append(specs, s)
	}
	for i, s := range specs {
		test := strings.TrimPrefix(s.Name, dir+".")
		if function, _, _ := strings.Cut(test, "/"); whole[function] {
			test = function
		}
		var focus []string
		for part := range strings.SplitSeq(test, "/") {
			focus = append(focus, "^"+again.Pattern(part)+`\z`)
		}
		specs[i].Focus = strings.Join(focus, "/")
	}
	return specs
}

// highest is the test below its function that a subtest of any depth has failed. A name may have a slash of its own.
func highest(name string, failed map[string]bool) string {
	parts := strings.Split(name, "/")
	for n := 2; n < len(parts); n++ {
		if above := strings.Join(parts[:n], "/"); failed[above] {
			return above
		}
	}
	return name
}

// reason is where and why a test failed. What it logs and why it failed look alike, so that its first message is the place.
func reason(dir string, lines []string) (where, why string) {
	lines = slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return verbose.MatchString(line) })
	for i, line := range lines {
		if m := message.FindStringSubmatch(line); m != nil {
			return dir + "/" + m[1], again.Line(m[2] + "\n" + strings.Join(lines[i+1:], "\n"))
		}
	}
	return dir, again.Line(strings.Join(lines, "\n"))
}
