// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fettle-dev/fettle/test/check"
)

// TestDefaultTable holds the shipped table as a text: a change of it changes which devices every cluster uses.
func TestDefaultTable(t *testing.T) {
	var b strings.Builder
	for _, r := range DefaultTable() {
		if err := r.Validate(); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
		after := ""
		if r.RecoverAfter.Duration > 0 {
			after = " for " + r.RecoverAfter.Duration.String()
		}
		fmt.Fprintf(&b, "%-9s %-28s %s%s\n", r.Source, r.Code, r.Severity, after)
		if r.Severity == Fatal && r.Message == "" {
			t.Errorf("%s %s is fatal and does not say what to do", r.Source, r.Code)
		}
	}
	check.Golden(t, "testdata/table.txt", b.String())
}

// TestEveryXid says what becomes of each number of the catalogue, so that a pattern that takes one too many shows.
func TestEveryXid(t *testing.T) {
	table := DefaultTable()
	bySeverity := map[Severity][]string{}
	for code := 1; code <= 175; code++ {
		r := table.Find(SourceXid, fmt.Sprint(code))
		severity := r.Severity
		if r.Code == "" {
			severity = "unnamed"
		}
		bySeverity[severity] = append(bySeverity[severity], fmt.Sprint(code))
	}
	var b strings.Builder
	for _, severity := range []Severity{Fatal, Degraded, Ignored, "unnamed"} {
		fmt.Fprintf(&b, "%s: %s\n", severity, strings.Join(bySeverity[severity], " "))
	}
	check.Golden(t, "testdata/xids.txt", b.String())
}

func TestFind(t *testing.T) {
	table := append(Table{
		{Source: SourceXid, Code: "79", Severity: Ignored}, {Source: SourceAER, Code: "correctable.*", Severity: Degraded},
	}, DefaultTable()...)
	for _, tc := range []struct {
		source, code string
		want         Severity
	}{
		{SourceXid, "79", Ignored},
		{SourceXid, "95", Fatal},
		{SourceXid, "13", Ignored},
		{SourceXid, "130", Ignored},
		{SourceXid, "131313", Degraded},
		{SourceAER, "correctable.RxErr", Degraded},
		{SourceAER, "nonfatal.UnsupReq", Ignored},
		{SourceAER, "nonfatal.CmpltTO", Degraded},
		{SourceAER, "fatal.DLP", Fatal},
		{SourceRAS, "umc.ue", Fatal},
		{SourceRAS, "umc.ce", Ignored},
		{SourceNVML, "recovery-gpu-reset", Fatal},
		{SourceNVML, "recovery-unknown-9", Degraded},
		{SourceFPGA, "temperature-trip", Fatal},
		{SourceFPGA, "nonfatal-pcie", Degraded},
		{GoneSource, GoneCode, Fatal},
		{"elsewhere", "x", Degraded},
	} {
		if got := table.Find(tc.source, tc.code).Severity; got != tc.want {
			t.Errorf("%s %s is %s, want %s", tc.source, tc.code, got, tc.want)
		}
	}
}

func TestRuleValidate(t *testing.T) {
	for _, tc := range []struct {
		rule Rule
		want string // empty: valid
	}{
		{Rule{Source: SourceXid, Code: "7?", Severity: Fatal}, ""},
		{Rule{Source: SourceRAS, Severity: Ignored, RecoverAfter: metav1.Duration{Duration: time.Hour}}, ""},
		{Rule{Source: "xids", Severity: Fatal}, `source: "xids", want one of aer, discovery, fpga, mps, nvml, ras, rival, xid`},
		{Rule{Source: SourceXid, Severity: "critical"}, `severity: "critical", want fatal, degraded or ignored`},
		{Rule{Source: SourceXid}, `severity: ""`},
		{Rule{Source: SourceXid, Code: "[", Severity: Fatal}, `code: "[": syntax error`},
		{Rule{Source: SourceXid, Severity: Fatal, RecoverAfter: metav1.Duration{Duration: -1}}, "is negative"},
	} {
		err := tc.rule.Validate()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%+v: got %v, want %q", tc.rule, err, tc.want)
		}
	}
}

func TestReason(t *testing.T) {
	for _, tc := range []struct{ source, code, want string }{
		{"xid", "79", "Xid79"},
		{"nvml", "remap-failure", "NvmlRemapFailure"},
		{"aer", "fatal.DLP", "AerFatalDLP"},
		{"ras", "umc.ue", "RasUmcUe"},
		{"fpga", "température", "FpgaTempRature"},
		{"x", strings.Repeat("y", 100), "XY" + strings.Repeat("y", 61)},
	} {
		if got := Reason(tc.source, tc.code); got != tc.want {
			t.Errorf("%s %s is %q, want %q", tc.source, tc.code, got, tc.want)
		}
	}
}
