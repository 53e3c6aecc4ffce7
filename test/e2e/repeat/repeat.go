// SPDX-License-Identifier: Apache-2.0

// Package repeat finds, in the report of a suite, the specs that failed and may run once more.
package repeat

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/fettle-dev/fettle/test/again"
)

// Specs are the specs of a suite that failed; none where something failed that a second run of them does not answer: what all specs share,
// a cleanup, a panic, or a suite that was cut off. Their files are told from root, and artifacts is where a spec's failure is explained.
func Specs(report types.Report, root string, artifacts func(types.SpecReport) string) []again.Spec {
	if len(report.SpecialSuiteFailureReasons) > 0 {
		return nil
	}
	var specs []again.Spec
	for _, spec := range report.SpecReports {
		if !spec.State.Is(types.SpecStateFailureStates) {
			continue
		}
		if !spec.LeafNodeType.Is(types.NodeTypeIt) || !answered(spec.State, spec.Failure) || slices.ContainsFunc(spec.AdditionalFailures,
			func(more types.AdditionalFailure) bool { return !answered(more.State, more.Failure) }) {
			return nil
		}
		specs = append(specs, again.Spec{
			Name: spec.FullText(), Where: where(spec, root), Why: again.Line(spec.FailureMessage()), Artifacts: artifacts(spec),
			Focus: focus(report.SuiteDescription, spec),
		})
	}
	return specs
}

// cleanups are the nodes that take away what a spec has made. A spec leaves nothing behind, whatever becomes of it.
const cleanups = types.NodeTypeAfterEach | types.NodeTypeAfterAll | types.NodeTypeCleanupAfterEach | types.NodeTypeCleanupAfterAll

// answered is whether a second run of a spec answers a failure.
func answered(state types.SpecState, failure types.Failure) bool {
	return state.Is(types.SpecStateFailed|types.SpecStateTimedout) && !failure.FailureNodeType.Is(cleanups)
}

func where(spec types.SpecReport, root string) string {
	at := spec.FailureLocation()
	// Built with -trimpath, a file has the name of its package.
	at.FileName = strings.Replace(at.FileName, "github.com/fettle-dev/fettle", root, 1)
	if relative, err := filepath.Rel(root, at.FileName); err == nil {
		at.FileName = relative
	}
	return at.String()
}

// focus selects a spec. One of an ordered container runs together with all others there: it may need what they did before it, and they may
// not have run because of it.
func focus(suite string, spec types.SpecReport) string {
	if !spec.IsInOrderedContainer {
		return "^" + again.Pattern(suite+" "+spec.FullText()) + `\z`
	}
	containers := spec.ContainerHierarchyTexts[:min(2, len(spec.ContainerHierarchyTexts))]
	return "^" + again.Pattern(suite+" "+strings.Join(containers, " ")+" ")
}
