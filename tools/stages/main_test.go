// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
)

// script is a program that takes the name of a target, as make does.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "make")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// noTimes replaces what differs from run to run.
func noTimes(text string) string {
	text = regexp.MustCompile(`\d\d:\d\d:\d\d`).ReplaceAllString(text, "TIME")
	return regexp.MustCompile(` +[0-9.]+ s\b`).ReplaceAllString(text, " N s")
}

func TestRun(t *testing.T) {
	program := script(t, `case $1 in
	two) echo "FAILED: wrong" >&2; exit 3;;
	three) echo "three is not to run";;
	*) echo "made $1 with $GOTEST_JSON";;
	esac`)
	var out bytes.Buffer
	err := (&run{program: program, out: &out}).all([]string{"one", "two", "three"})
	check.WantErr(t, err, nil, "make two: exit status 3")
	lines := strings.Split(noTimes(out.String()), "\n")
	want := []string{
		"== TIME one begins", "made one with -json", "== TIME one took N s",
		"== TIME two begins", "FAILED: wrong", "== TIME two failed after N s", "== N s in all, by target:",
	}
	if diff := cmp.Diff(want, lines[:len(want)]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	rest := strings.Join(lines[len(want):], "\n")
	if !strings.Contains(rest, "one") || !strings.Contains(rest, "two") || !strings.HasSuffix(rest, "\n== what failed:\nwrong\n") {
		t.Errorf("the list of targets is %q", rest)
	}
}

// TestRunLeavesBehind: what a target started and left does not hold the next one up.
func TestRunLeavesBehind(t *testing.T) {
	program := script(t, `sleep 300 & echo $! > "$(dirname "$0")/pid"`)
	if err := (&run{program: program, out: &bytes.Buffer{}}).all([]string{"one"}); err != nil {
		t.Error(err)
	}
	pid, err := os.ReadFile(filepath.Join(filepath.Dir(program), "pid"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join("/proc", strings.TrimSpace(string(pid)))); err != nil {
		t.Errorf("the run ended after what the target left behind: %v", err)
	}
	kill := run{program: script(t, "kill "+strings.TrimSpace(string(pid))), out: &bytes.Buffer{}}
	if err := kill.all([]string{"end"}); err != nil {
		t.Error(err)
	}
}

func TestReader(t *testing.T) {
	const pkg = "github.com/fettle-dev/fettle/pkg/one"
	text := strings.Join([]string{
		"go test ./...",
		`{"ImportPath":"x","Action":"build-output","Output":"x.go:1: undefined\n"}`,
		`{"Action":"start","Package":"` + pkg + `"}`,
		`{"Action":"run","Package":"` + pkg + `","Test":"TestGood"}`,
		`{"Action":"output","Package":"` + pkg + `","Test":"TestGood","Output":"=== RUN   TestGood\n"}`,
		`{"Action":"output","Package":"` + pkg + `","Test":"TestGood","Output":"a log that nobody reads\n"}`,
		`{"Action":"pass","Package":"` + pkg + `","Test":"TestGood","Elapsed":1.5}`,
		`{"Action":"output","Package":"` + pkg + `","Test":"TestBad/one/deep","Output":"=== RUN   TestBad/one/deep\n"}`,
		`{"Action":"output","Package":"` + pkg + `","Test":"TestBad/one/deep","Output":"    bad_test.go:7: is wrong\n"}`,
		`{"Action":"output","Package":"` + pkg + `","Test":"TestBad/one/deep","Output":"        --- FAIL: TestBad/one/deep (2.00s)\n"}`,
		`{"Action":"fail","Package":"` + pkg + `","Test":"TestBad/one/deep","Elapsed":2}`,
		`{"Action":"fail","Package":"` + pkg + `","Test":"TestBad/one","Elapsed":2.5}`,
		`{"Action":"fail","Package":"` + pkg + `","Test":"TestBad","Elapsed":3}`,
		`{"Action":"output","Package":"` + pkg + `","Output":"PASS\n"}`,
		`{"Action":"output","Package":"` + pkg + `","Output":"FAIL\tpkg/one\t9.0s\n"}`,
		`{"Action":"fail","Package":"` + pkg + `","Elapsed":9}`,
		`{"not": "an event"}`,
		"--- PASS: TestCrashPoints (33.20s)",
		"S04:26:10 passed    7.5 s  Fettle gives devices to pods",
		"PASS 01-one-gpu (3.4 s)",
		"  FAILED: Fettle gives devices: all claims are right: none (a_test.go:3)",
		`{"Action":"output","Package":"` + pkg + `","Test":"TestCut","Output":"goroutine 1 [running]\n"}`,
		"the end",
	}, "\n")
	var out bytes.Buffer
	r := newReader("test", &out)
	for len(text) > 0 { // in pieces, as from a pipe
		n := min(7, len(text))
		if _, err := r.Write([]byte(text[:n])); err != nil {
			t.Fatal(err)
		}
		text = text[n:]
	}
	r.flush()
	want := `go test ./...
x.go:1: undefined
    bad_test.go:7: is wrong
        --- FAIL: TestBad/one/deep (2.00s)
FAIL	pkg/one	9.0s
{"not": "an event"}
--- PASS: TestCrashPoints (33.20s)
S04:26:10 passed    7.5 s  Fettle gives devices to pods
PASS 01-one-gpu (3.4 s)
  FAILED: Fettle gives devices: all claims are right: none (a_test.go:3)
the end
goroutine 1 [running]
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
	r.output["p T"] = slices.Repeat([]string{"x\n"}, 40)
	if got := cut(r.show("p T")); len(got) != 31 || got[10] != "[10 lines more]" {
		t.Errorf("of 40 lines: %q", got)
	}
	if diff := cmp.Diff([]string{
		"    bad_test.go:7: is wrong", "        --- FAIL: TestBad/one/deep (2.00s)",
		"Fettle gives devices: all claims are right: none (a_test.go:3)",
	}, r.failed); diff != "" {
		t.Errorf("why tests failed (-want +got):\n%s", diff)
	}
	var tests []string
	for _, one := range r.tests {
		tests = append(tests, one.stage+" "+one.name+" "+one.time.String())
	}
	if diff := cmp.Diff([]string{
		"test pkg/one.TestGood 1.5s", "test pkg/one.TestBad/one 2.5s", "test pkg/one.TestBad 3s", "test TestCrashPoints 33.2s",
		"test TestE2E/Fettle gives devices to pods 7.5s", "test 01-one-gpu 3.4s",
	}, tests); diff != "" {
		t.Errorf("tests (-want +got):\n%s", diff)
	}
}

func TestLongest(t *testing.T) {
	of := func(stage, name string, seconds int) took {
		return took{stage: stage, name: name, time: time.Duration(seconds) * time.Second}
	}
	all := []took{
		of("unit", "p.TestFrame/a", 20), of("unit", "p.TestFrame/b", 1), of("unit", "p.TestFrame", 21), of("unit", "p.TestTable/a", 1),
		of("unit", "p.TestTable", 15), of("api", "p.TestFrame", 18), of("unit", "p.TestFrames", 16), of("unit", "p.TestShort", 2),
	}
	want := []took{
		of("unit", "p.TestFrame/a", 20), of("api", "p.TestFrame", 18), of("unit", "p.TestFrames", 16), of("unit", "p.TestTable", 15),
	}
	if diff := cmp.Diff(want, longest(all, 4), cmp.AllowUnexported(took{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := longest(nil, 4); len(got) != 0 {
		t.Errorf("the longest of nothing are %v", got)
	}
}
