// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/demo/internal/play"
	"github.com/fettle-dev/fettle/demo/internal/script"
	"github.com/fettle-dev/fettle/test/again"
	"github.com/fettle-dev/fettle/test/harness"
)

func TestReport(t *testing.T) {
	var out bytes.Buffer
	report(&out, []result{
		{Scenario: play.Scenario{Name: "01-good", Title: "Good"}, Took: 1500 * time.Millisecond},
		{Scenario: play.Scenario{Name: "02-bad", Title: "Bad"}, Took: time.Second, Err: errors.New("saw\n  this")},
		{Scenario: play.Scenario{Name: "03-old", Title: "Old"}, Skipped: "needs Kubernetes 1.36: it is new"},
	}, times{up: 5 * time.Second, install: 4 * time.Second, scenarios: 3 * time.Second})
	want := `
PASS  01-good  Good  1.5 s
FAIL  02-bad   Bad   1.0 s  saw this
SKIP  03-old   Old   0.0 s  needs Kubernetes 1.36: it is new

1 passed, 1 failed, 1 skipped. Cluster 5.0 s, chart 4.0 s, scenarios 3.0 s.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestRepeatable(t *testing.T) {
	bad := result{
		Scenario: play.Scenario{Name: "02-bad"},
		Err:      &play.StepError{Step: script.Step{Verb: "running", Line: 7}, Err: errors.New("saw\n  this")},
	}
	early := result{Scenario: play.Scenario{Name: "04-early"}, Err: errors.New("no namespace")}
	config := harness.Config{Cache: "cache", Stage: "test-demo"}
	got := repeatable(config, []result{{Scenario: play.Scenario{Name: "01-good"}}, bad, {Skipped: "too old"}, early})
	want := []again.Spec{
		{
			Name: "02-bad", Where: "demo/02-bad/expect:7", Why: bad.Err.Error(), Artifacts: "cache/demo-failed/test-demo/02-bad",
			Focus: `^02-bad\z`,
		},
		{Name: "04-early", Where: "demo/04-early", Why: "no namespace", Artifacts: "cache/demo-failed/test-demo/04-early", Focus: `^04-early\z`},
	}
	want[0].Why = again.Line(want[0].Why)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	left := result{Scenario: play.Scenario{Name: "03-left"}, Err: fmt.Errorf("%w: busy", play.ErrClear)}
	if got := repeatable(config, []result{bad, left}); len(got) > 0 {
		t.Errorf("beside a scenario that left something behind, %+v run once more", got)
	}
}

func TestTooOld(t *testing.T) {
	needs := play.Scenario{Script: script.Script{Since: "1.36", Because: "it is new"}}
	for emulate, want := range map[string]bool{"": false, "1.34": true, "1.35": true, "1.36": false, "1.37": false} {
		if got := tooOld(needs, emulate) != ""; got != want {
			t.Errorf("a scenario of 1.36 on %q: skipped %v, want %v", emulate, got, want)
		}
	}
	if why := tooOld(play.Scenario{}, "1.34"); why != "" {
		t.Errorf("a scenario of every version is skipped: %s", why)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-run", "("}, {"-unknown"}, {"word"}, {"-parallel", "0"}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, nil, &stdout, &stderr); code != exitUsage || stderr.Len() == 0 {
			t.Errorf("%v: status %d, message %q, want %d and one", args, code, stderr.String(), exitUsage)
		}
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"-run", "no-such-scenario"}, nil, &stdout, &stderr); code != exitFailed ||
		!strings.Contains(stderr.String(), "no scenario that matches") {
		t.Errorf("status %d, message %q", code, stderr.String())
	}
}
