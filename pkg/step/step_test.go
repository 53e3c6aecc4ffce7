// SPDX-License-Identifier: Apache-2.0

package step

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var errStuck = errors.New("stuck")

// logged is a kind that writes down what is asked of it and fails where its parameters say so.
func logged(log *[]string) Kind {
	do := func(verb string) func(context.Context, json.RawMessage) error {
		return func(_ context.Context, params json.RawMessage) error {
			*log = append(*log, verb+string(params))
			if strings.Contains(string(params), verb) {
				return errStuck
			}
			return nil
		}
	}
	return Kind{Apply: do("apply"), Undo: do("undo")}
}

func steps(params ...string) []Step {
	var out []Step
	for _, p := range params {
		out = append(out, Step{Kind: "test", Params: json.RawMessage(p)})
	}
	return out
}

func TestApplyStopsAtTheFirstFailure(t *testing.T) {
	var log []string
	err := Kinds{"test": logged(&log)}.Apply(t.Context(), steps(`1`, `"apply"`, `3`))
	if !errors.Is(err, errStuck) || !strings.Contains(err.Error(), "apply step test") {
		t.Errorf("error %v, want one that names the step", err)
	}
	if diff := cmp.Diff([]string{"apply1", `apply"apply"`}, log); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestUndoGoesBackwardsAndOn(t *testing.T) {
	var log []string
	kinds := Kinds{"test": logged(&log)}
	list := append(steps(`1`, `"undo"`), Step{Kind: "newer"}, steps(`4`)[0])
	err := kinds.Undo(t.Context(), list)
	if !errors.Is(err, errStuck) {
		t.Errorf("error %v, want the stuck step's", err)
	}
	if !strings.Contains(err.Error(), `step kind "newer" is not known`) || !strings.Contains(err.Error(), "upgrade") {
		t.Errorf("error %v, want it to say what to do about the unknown kind", err)
	}
	if diff := cmp.Diff([]string{"undo4", `undo"undo"`, "undo1"}, log); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestUnknownKindIsNotApplied(t *testing.T) {
	if err := (Kinds{}).Apply(t.Context(), steps(`1`)); err == nil {
		t.Error("a step of an unknown kind was applied")
	}
}
