// SPDX-License-Identifier: Apache-2.0

package repeat

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/ginkgo/v2/types"

	"github.com/fettle-dev/fettle/test/again"
)

// spec is one that failed in a node of a type.
func spec(text string, state types.SpecState, node types.NodeType) types.SpecReport {
	at := types.CodeLocation{FileName: "/root/test/e2e/a_test.go", LineNumber: 7}
	return types.SpecReport{
		ContainerHierarchyTexts: []string{"Fettle", "divides GPUs", "deep"}, LeafNodeText: text, LeafNodeType: types.NodeTypeIt, State: state,
		Failure: types.Failure{Message: "is\n  wrong", Location: at, FailureNodeType: node},
	}
}

func TestWhere(t *testing.T) {
	for _, file := range []string{"/root/test/e2e/a_test.go", "github.com/fettle-dev/fettle/test/e2e/a_test.go"} {
		s := types.SpecReport{Failure: types.Failure{Location: types.CodeLocation{FileName: file, LineNumber: 7}}}
		if got := where(s, "/root"); got != "test/e2e/a_test.go:7" {
			t.Errorf("%s is %s", file, got)
		}
	}
}

func specs(report types.Report) []again.Spec {
	report.SuiteDescription = "Suite"
	report.SpecReports = append(report.SpecReports, spec("passes", types.SpecStatePassed, types.NodeTypeInvalid))
	return Specs(report, "/root", func(s types.SpecReport) string { return "artifacts/" + s.LeafNodeText })
}

func TestSpecs(t *testing.T) {
	ordered := spec("in order", types.SpecStateTimedout, types.NodeTypeBeforeAll)
	ordered.IsInOrderedContainer = true
	got := specs(types.Report{SpecReports: types.SpecReports{spec("it's bad", types.SpecStateFailed, types.NodeTypeIt), ordered}})
	want := []again.Spec{
		{
			Name: "Fettle divides GPUs deep it's bad", Where: "test/e2e/a_test.go:7", Why: "is wrong", Artifacts: "artifacts/it's bad",
			Focus: `^Suite Fettle divides GPUs deep it.s bad\z`,
		},
		{
			Name: "Fettle divides GPUs deep in order", Where: "test/e2e/a_test.go:7", Why: "is wrong", Artifacts: "artifacts/in order",
			Focus: `^Suite Fettle divides GPUs `,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := specs(types.Report{}); len(got) > 0 {
		t.Errorf("where nothing failed: %+v", got)
	}
}

// TestNotAnswered: beside a spec that may run once more, something failed that may not.
func TestNotAnswered(t *testing.T) {
	bad := spec("bad", types.SpecStateFailed, types.NodeTypeIt)
	of := func(node types.NodeType) types.SpecReport {
		s := spec("", types.SpecStateFailed, node)
		s.LeafNodeType = node
		return s
	}
	cleanup := bad
	cleanup.AdditionalFailures = []types.AdditionalFailure{{
		State: types.SpecStateTimedout, Failure: types.Failure{FailureNodeType: types.NodeTypeCleanupAfterEach},
	}}
	dump := bad
	dump.AdditionalFailures = []types.AdditionalFailure{{
		State: types.SpecStateTimedout, Failure: types.Failure{FailureNodeType: types.NodeTypeJustAfterEach},
	}}
	for name, other := range map[string]types.SpecReport{
		"BeforeSuite":           of(types.NodeTypeSynchronizedBeforeSuite),
		"AfterSuite":            of(types.NodeTypeCleanupAfterSuite),
		"AfterEach":             spec("b", types.SpecStateFailed, types.NodeTypeAfterEach),
		"AfterAll":              spec("b", types.SpecStateFailed, types.NodeTypeAfterAll),
		"DeferCleanup":          spec("b", types.SpecStateFailed, types.NodeTypeCleanupAfterEach),
		"panic":                 spec("b", types.SpecStatePanicked, types.NodeTypeIt),
		"interrupt":             spec("b", types.SpecStateInterrupted, types.NodeTypeIt),
		"cleanup after failure": cleanup,
	} {
		if got := specs(types.Report{SpecReports: types.SpecReports{bad, other}}); len(got) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	cutOff := types.Report{SpecReports: types.SpecReports{bad}, SpecialSuiteFailureReasons: []string{"Suite Timeout Elapsed"}}
	if got := specs(cutOff); len(got) > 0 {
		t.Errorf("a suite that was cut off: %+v", got)
	}
	if got := specs(types.Report{SpecReports: types.SpecReports{dump}}); len(got) != 1 {
		t.Errorf("what explains a failure could not be had: %+v", got)
	}
}
