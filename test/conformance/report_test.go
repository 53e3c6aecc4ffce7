// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func someResults() []Result {
	return []Result{
		{Check: Check{Name: "slices/present"}, Status: Passed, Duration: 12 * time.Millisecond},
		{Check: Check{Name: "prepare/idempotent"}, Status: Failed, Message: "it was <this>\nand that", Duration: 3 * time.Second},
		{Check: Check{Name: "reboot/prepare"}, Status: Skipped, Message: "no command"},
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
		text.Add(r)
	}
	text.Summary(3012 * time.Millisecond)
	const want = `PASS  slices/present         0.0s
FAIL  prepare/idempotent     3.0s  it was <this>
                                   and that
SKIP  reboot/prepare         0.0s  no command

1 passed, 1 failed, 1 skipped in 3s
`
	if diff := cmp.Diff(want, out.String()); diff != "" || text.Failed() != 1 {
		t.Errorf("%d failed; text (-want +got):\n%s", text.Failed(), diff)
	}
}

func TestJUnit(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	begin := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	must(t, WriteJUnit(&out, "example.com", begin, someResults(), errors.New("cut")))
	const want = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites>
  <testsuite name="fettle-conformance example.com" tests="3" failures="1" skipped="1" errors="1" time="3.012" ` +
		`timestamp="2026-11-21T08:00:00">
    <testcase classname="example.com.slices" name="slices/present" time="0.012"></testcase>
    <testcase classname="example.com.prepare" name="prepare/idempotent" time="3.000">
      <failure message="it was &lt;this&gt;">it was &lt;this&gt;&#xA;and that</failure>
    </testcase>
    <testcase classname="example.com.reboot" name="reboot/prepare" time="0.000">
      <skipped message="no command">no command</skipped>
    </testcase>
    <system-err>cut</system-err>
  </testsuite>
</testsuites>
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}
