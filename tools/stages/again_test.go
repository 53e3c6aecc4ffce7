// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/again"
)

// played is what became of a run of targets whose output is made up.
type played struct {
	err error
	out string
	// calls are the stage and the arguments of each call of make.
	calls  []string
	report report
}

// play makes targets that print texts: outputs has them by stage. A target whose text has "fail" in it fails.
func play(t *testing.T, targets []string, outputs map[string][]string) played {
	t.Helper()
	program := script(t, `cd "$(dirname "$0")"
	printf '%s\n' "$FETTLE_STAGE: $*" >> calls
	name=$(printf '%s\n' "$FETTLE_STAGE $3" | tr -c 'a-z0-9\n' _)
	cat "$name" || exit 2
	! grep -iq fail "$name"`)
	dir := filepath.Dir(program)
	for stage, lines := range outputs {
		name := strings.Map(func(r rune) rune {
			if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789", r) {
				return r
			}
			return '_'
		}, stage)
		if !strings.Contains(stage, " ") {
			name += "_"
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	r := run{program: program, out: &out, file: filepath.Join(dir, "dist", "run.json"), report: report{Commit: "0123"}}
	p := played{err: r.all(targets)}
	p.out = noTimes(out.String())
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	p.calls = strings.Split(strings.TrimSpace(string(calls)), "\n")
	data, err := os.ReadFile(r.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &p.report); err != nil {
		t.Fatal(err)
	}
	return p
}

// suite is the line by which a suite names a spec that may run once more.
func suite(name string) string {
	var out bytes.Buffer
	if err := again.Write(&out, "s", []again.Spec{{Name: name, Where: name + ":1", Why: "saw that", Focus: name + `\z`}}); err != nil {
		panic(err)
	}
	return "SS" + strings.TrimSpace(out.String())
}

// goEvent is a line of "go test -json" of a package.
func goEvent(action, test, output string) string {
	data, err := json.Marshal(event{Action: action, Package: module + "controller", Test: test, Output: output})
	if err != nil {
		panic(err)
	}
	return string(data)
}

// goFails is a test that logs a line and fails.
func goFails(test, line string) []string {
	return []string{goEvent("output", test, "=== RUN   "+test+"\n"), goEvent("output", test, line+"\n"), goEvent("fail", test, "")}
}

func TestOneMore(t *testing.T) {
	api := append(goFails("TestAPI/nodes/deep", "    a_test.go:7: saw that"), goEvent("fail", "TestAPI/nodes", ""),
		goEvent("output", "TestAPI", "--- FAIL: TestAPI (0.1s)\n"), goEvent("fail", "TestAPI", ""), goEvent("fail", "", ""))
	p := play(t, []string{"test-api", "test-demo", "test-e2e"}, map[string][]string{
		"test-api": api,
		`test-api/again AGAIN=^TestAPI\z/^nodes\z`: {goEvent("pass", "TestAPI/nodes", ""), goEvent("pass", "TestAPI", "")},
		"test-demo":                           {"PASS 01-one (3.0 s)"},
		"test-e2e":                            {"04:26:10 failed   7.5 s  Fettle lends", suite("Fettle lends"), "  " + suite("Fettle lends")},
		`test-e2e/again AGAIN=Fettle lends\z`: {"S04:26:10 passed   7.5 s  Fettle lends"},
	})
	if p.err != nil {
		t.Error(p.err)
	}
	want := []string{
		"test-api: test-api", `test-api/again: test-api PROCS=1 AGAIN=^TestAPI\z/^nodes\z PACKAGE=./controller`, "test-demo: test-demo",
		"test-e2e: test-e2e", `test-e2e/again: test-e2e PROCS=1 AGAIN=Fettle lends\z PACKAGE=`,
	}
	if diff := cmp.Diff(want, p.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	const end = "\nFLAKY controller.TestAPI/nodes: test-api: controller/a_test.go:7: saw that\n" +
		"FLAKY Fettle lends: test-e2e: Fettle lends:1: saw that\n"
	if !strings.HasSuffix(p.out, end) || strings.Contains(p.out, "what failed") {
		t.Errorf("want the last lines%s\ngot\n%s", end, p.out)
	}
	r := p.report
	if !r.Passed || r.Failed == nil || len(r.Failed) != 0 || r.Commit != "0123" || r.Begin.IsZero() || len(r.Stages) != 3 {
		t.Errorf("the report is %+v", r)
	}
	wantFlaky := []flaky{
		{Stage: "test-api", Spec: again.Spec{
			Name: "controller.TestAPI/nodes", Where: "controller/a_test.go:7", Why: "saw that", Focus: `^TestAPI\z/^nodes\z`,
			Package: "./controller",
		}},
		{Stage: "test-e2e", Spec: again.Spec{Name: "Fettle lends", Where: "Fettle lends:1", Why: "saw that", Focus: `Fettle lends\z`}},
	}
	if diff := cmp.Diff(wantFlaky, r.Flaky); diff != "" {
		t.Errorf("flaky specs of the report (-want +got):\n%s", diff)
	}
}

// TestStillFails: what fails again, or does not run again, fails the run.
func TestStillFails(t *testing.T) {
	for name, second := range map[string][]string{
		"fails":               {"FAIL 01-one (3.0 s)"},
		"is skipped":          {"nothing"},
		"is another":          {"PASS 01-one-more (3.0 s)"},
		"passes, others fail": {"PASS 01-one (3.0 s)", "FAIL 02-two (3.0 s)"},
	} {
		t.Run(name, func(t *testing.T) {
			p := play(t, []string{"test-demo", "test-e2e"}, map[string][]string{
				"test-demo": {"FAILED: the first", suite("01-one")}, `test-demo/again AGAIN=01-one\z`: second,
			})
			if p.err == nil || len(p.calls) != 2 || p.report.Passed || len(p.report.Flaky) > 0 || strings.Contains(p.out, "FLAKY") {
				t.Errorf("error %v after %q, report %+v", p.err, p.calls, p.report)
			}
			if len(p.report.Failed) == 0 || p.report.Failed[0] != "the first" || !strings.Contains(p.out, "== what failed:\nthe first\n") {
				t.Errorf("what failed: %q", p.report.Failed)
			}
		})
	}
}

// TestTooMany: three specs of a run are no chance, whatever the targets.
func TestTooMany(t *testing.T) {
	p := play(t, []string{"test-demo"}, map[string][]string{"test-demo": {suite("1"), suite("2"), suite("3"), "3 failed"}})
	if p.err == nil || !strings.Contains(p.err.Error(), "more than 2 specs failed in this run") || len(p.calls) != 1 {
		t.Errorf("three in a target: error %v after %q", p.err, p.calls)
	}
	p = play(t, []string{"test-demo", "test-e2e"}, map[string][]string{
		"test-demo": {suite("1"), suite("2"), "2 failed"}, `test-demo/again AGAIN=1\z`: {"PASS 1 (1.0 s)"},
		`test-demo/again AGAIN=2\z`: {"PASS 2 (1.0 s)"}, "test-e2e": {suite("3"), "1 failed"},
	})
	if p.err == nil || !strings.Contains(p.err.Error(), "more than 2 specs failed in this run") || len(p.calls) != 4 {
		t.Errorf("three in two targets: error %v after %q", p.err, p.calls)
	}
	if len(p.report.Flaky) != 2 || !strings.HasSuffix(p.out, "FLAKY 1: test-demo: 1:1: saw that\nFLAKY 2: test-demo: 2:1: saw that\n") {
		t.Errorf("the two of the first are not told: %s", p.out)
	}
}

// TestNotOnceMore: failures that a second run does not answer, each beside a spec that it would.
func TestNotOnceMore(t *testing.T) {
	spec := goFails("TestAPI/nodes", "    a_test.go:7: saw that")
	spec = append(spec, goEvent("fail", "TestAPI", ""))
	end := goEvent("fail", "", "")
	with := func(lines ...string) []string { return append(append(append([]string{}, lines...), spec...), end) }
	other := func(lines ...string) []string {
		return strings.Split(strings.ReplaceAll(strings.Join(lines, "\n"), module+"controller", module+"other"), "\n")
	}
	for name, tc := range map[string]struct {
		target string
		lines  []string
	}{
		"chaos":                 {"test-alone", with()},
		"a unit test":           {"test-unit", with()},
		"a crash test":          {"test-crash", []string{"--- FAIL: TestCrashPoints (33.20s)", "FAIL"}},
		"a kernel test":         {"test-vm", []string{"--- FAIL: TestKernel (33.20s)", "FAIL"}},
		"the suite's beginning": {"test-e2e", []string{"[FAILED] in [SynchronizedBeforeSuite]"}},
		"a package that does not compile": {
			"test-api", append(with(), other(goEvent("output", "", "FAIL other [build failed]\n"), end)...),
		},
		"a panic":             {"test-api", with(goFails("TestAPI/early", "panic: index out of range")...)},
		"a panic between":     {"test-api", with(goEvent("output", "", "panic: index out of range\n"))},
		"a race":              {"test-api", with(goFails("TestAPI/early", "WARNING: DATA RACE")...)},
		"the limit of time":   {"test-api", with(goFails("TestAPI/early", "panic: test timed out after 20m0s")...)},
		"a test without end":  {"test-api", with(goEvent("output", "TestOlderAPI/x", "=== RUN   TestOlderAPI/x\n"))},
		"go is killed":        {"test-api", append(with(), other(goEvent("start", "", ""), goEvent("pass", "TestAPI/x", ""))...)},
		"an exit of TestMain": {"test-api", append(with(), other(goEvent("pass", "TestAPI", ""), end)...)},
		"the cluster's own tests before the specs": {
			"test-e2e", append(append(goFails("TestCluster", "    a_test.go:1: bad"), end), suite("Fettle lends")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := play(t, []string{tc.target}, map[string][]string{tc.target: tc.lines})
			if p.err == nil || len(p.calls) != 1 {
				t.Errorf("error %v after %q", p.err, p.calls)
			}
		})
	}
	p := play(t, []string{"test-api"}, map[string][]string{
		"test-api": with(), `test-api/again AGAIN=^TestAPI\z/^nodes\z`: {goEvent("pass", "TestAPI/nodes", "")},
	})
	if p.err != nil || len(p.calls) != 2 {
		t.Errorf("the spec itself: error %v after %q", p.err, p.calls)
	}
}

func TestSpecsOf(t *testing.T) {
	fails := func(name string, lines ...string) failedTest { return failedTest{name: name, lines: lines} }
	frame := "--- FAIL: TestAPI (0.1s)"
	for name, tc := range map[string]struct {
		tests []failedTest
		want  []string
	}{
		"the function alone": {
			[]failedTest{fails("TestOlderAPI", "    a_test.go:1: x")},
			[]string{`p.TestOlderAPI ^TestOlderAPI\z p/a_test.go:1 x`},
		},
		"deep": {
			[]failedTest{
				fails("TestAPI/a/b/c", "    a_test.go:1: x", "more", "        --- FAIL: TestAPI/a/b/c (0.10s)"),
				fails("TestAPI/a/b", frame), fails("TestAPI/a/d", "    a_test.go:2: y"),
				fails("TestAPI/a"), fails("TestAPI", frame),
			},
			[]string{`p.TestAPI/a ^TestAPI\z/^a\z p/a_test.go:1 x more`},
		},
		"a name with a slash": {
			[]failedTest{fails("TestAPI/Kind/no_name", "    a_test.go:1: x"), fails("TestAPI", frame)},
			[]string{`p.TestAPI/Kind/no_name ^TestAPI\z/^Kind\z/^no_name\z p/a_test.go:1 x`},
		},
		"two functions": {
			[]failedTest{fails("TestAPI/a", "out of nowhere"), fails("TestAPI", frame), fails("TestOlderAPI/a"), fails("TestOlderAPI", frame)},
			[]string{`p.TestAPI/a ^TestAPI\z/^a\z p out of nowhere`, `p.TestOlderAPI/a ^TestOlderAPI\z/^a\z p `},
		},
		"the function failed too": {
			[]failedTest{
				fails("TestAPI/a", "    a_test.go:1: x"), fails("TestAPI/b", "    a_test.go:2: y"), fails("TestAPI", "    a_test.go:3: z", frame),
			},
			[]string{`p.TestAPI/a ^TestAPI\z p/a_test.go:1 x`, `p.TestAPI/b ^TestAPI\z p/a_test.go:2 y`},
		},
	} {
		var got []string
		for _, s := range specsOf("p", tc.tests) {
			got = append(got, fmt.Sprintf("%s %s %s %s", s.Name, s.Focus, s.Where, s.Why))
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestFlakyLineEnds(t *testing.T) {
	line := flaky{Stage: "s", Spec: again.Spec{Name: "n", Where: "w", Why: strings.Repeat("é", 1000)}}.String()
	if got := []rune(line); len(got) != len("FLAKY n: s: w: ")+401 || got[len(got)-1] != '…' {
		t.Errorf("%d characters: %s", len(got), line)
	}
}
