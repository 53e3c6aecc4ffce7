// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func someResults() []Result {
	return []Result{
		{Check: Check{Name: "slices/present"}, Status: Passed, Duration: 12 * time.Millisecond},
		{Check: Check{Name: "prepare/idempotent"}, Status: Failed, Message: "it was <this>\nand that", Duration: 3 * time.Second},
		{Check: Check{Name: "reboot/prepare"}, Status: Skipped, Message: "no command"},
		{Check: Check{Name: "use/double"}, Status: Failed, Message: "was accepted", Causes: []Cause{CauseHeldGiven}},
		{Check: Check{Name: "use/other"}, Status: Failed, Message: "was too", Causes: []Cause{CauseHeldGiven, CauseNotFreed}},
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var checks []Check
	for _, r := range someResults() {
		checks = append(checks, r.Check)
	}
	text := NewText(&out, checks)
	for _, r := range someResults() {
		must(t, text.Add(r))
	}
	must(t, text.Summary(3012*time.Millisecond))
	const want = `PASS  slices/present         0.0s
FAIL  prepare/idempotent     3.0s  it was <this>
                                   and that
SKIP  reboot/prepare         0.0s  no command
FAIL  use/double             0.0s  was accepted
FAIL  use/other              0.0s  was too

Findings, by cause:
* prepare/idempotent: it was <this>
* a device that a claim holds is given to another claim: use/double, use/other
* a device is not given to the next claim after its claim was unprepared: use/other

1 passed, 3 failed, 1 skipped in 3s
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

// brokenWriter is a pipe that nobody reads.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestTextIntoAClosedPipe wants the caller told, who then ends the run.
func TestTextIntoAClosedPipe(t *testing.T) {
	t.Parallel()
	text := NewText(brokenWriter{}, nil)
	if err := text.Add(someResults()[0]); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Add: %v, want the writer's error", err)
	}
	if err := text.Summary(0); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Summary: %v, want the writer's error", err)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	passed, failed, skipped := Result{Status: Passed}, Result{Status: Failed}, Result{Status: Skipped}
	for name, test := range map[string]struct {
		results []Result
		want    error
		text    string
	}{
		"all passed":       {results: []Result{passed, passed}},
		"half skipped":     {results: []Result{passed, skipped}},
		"nothing":          {want: ErrInconclusive, text: "inconclusive: no check ran on driver a.example.com"},
		"mostly skipped":   {results: []Result{passed, skipped, skipped}, want: ErrInconclusive, text: "2 of 3 checks of driver a.example.com"},
		"all skipped":      {results: []Result{skipped}, want: ErrInconclusive, text: "1 of 1 checks"},
		"failed":           {results: []Result{passed, failed, failed}, want: ErrFailed, text: "it failed 2 of 3 checks, with 2 findings"},
		"failed, few were": {results: []Result{failed, skipped, skipped}, want: ErrFailed, text: "it failed 1 of 3 checks"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Judge("a.example.com", test.results)
			if !errors.Is(err, test.want) || err != nil && !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %v, want %v with %q", err, test.want, test.text)
			}
		})
	}
}

// TestCauses follows errors down to their causes, each of which is named once.
func TestCauses(t *testing.T) {
	t.Parallel()
	held, lost := caused(CauseHeldGiven, errors.New("a")), caused(CauseNotFreed, errors.New("b"))
	err := errors.Join(fmt.Errorf("in between: %w", held), errors.New("c"), errors.Join(lost, held), caused(CauseSilent, nil))
	if diff := cmp.Diff([]Cause{CauseHeldGiven, CauseNotFreed}, causesOf(err)); diff != "" {
		t.Errorf("causes (-want +got):\n%s", diff)
	}
	if got := causesOf(errors.New("none")); got != nil {
		t.Errorf("causes %q of an error without one", got)
	}
}

func TestJUnit(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	begin := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	must(t, WriteJUnit(&out, "example.com", begin, someResults(), errors.New("cut")))
	const want = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites>
  <testsuite name="fettle-conformance example.com" tests="5" failures="3" skipped="1" errors="1" time="3.012" ` +
		`timestamp="2026-11-21T08:00:00">
    <testcase classname="example.com.slices" name="slices/present" time="0.012"></testcase>
    <testcase classname="example.com.prepare" name="prepare/idempotent" time="3.000">
      <failure message="it was &lt;this&gt;">it was &lt;this&gt;&#xA;and that</failure>
    </testcase>
    <testcase classname="example.com.reboot" name="reboot/prepare" time="0.000">
      <skipped message="no command">no command</skipped>
    </testcase>
    <testcase classname="example.com.use" name="use/double" time="0.000">
      <failure message="was accepted" type="a device that a claim holds is given to another claim">was accepted</failure>
    </testcase>
    <testcase classname="example.com.use" name="use/other" time="0.000">
      <failure message="was too" type="a device that a claim holds is given to another claim">was too</failure>
    </testcase>
    <system-err>cut</system-err>
  </testsuite>
</testsuites>
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}
