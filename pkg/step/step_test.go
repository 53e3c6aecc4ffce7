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

// TestStates tries every change of state.
func TestStates(t *testing.T) {
	legal := map[[2]State]bool{
		{"intended", "done"}:   true,
		{"intended", "undone"}: true,
		{"done", "undone"}:     true,
	}
	all := []State{"", "intended", "done", "undone", "elsewhere"}
	for _, from := range all {
		for _, to := range all {
			if got, want := from.Next(to), legal[[2]State{from, to}]; got != want {
				t.Errorf("%q to %q: %v, want %v", from, to, got, want)
			}
		}
	}
}

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
	return Kind{Apply: do("apply"), Undo: do("undo"), Verify: do("verify")}
}

// verbs are what can be done with a step.
func verbs(k Kinds) map[string]func(context.Context, Step) error {
	return map[string]func(context.Context, Step) error{"apply": k.Apply, "undo": k.Undo, "verify": k.Verify}
}

func TestKinds(t *testing.T) {
	var log, other []string
	for verb, do := range verbs(Kinds{"test": logged(&log), "other": logged(&other)}) {
		log = nil
		if err := do(t.Context(), Step{Kind: "test", Target: "x", Params: json.RawMessage(`1`)}); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
		err := do(t.Context(), Step{Kind: "test", Target: "/mnt/x", Params: json.RawMessage(verb)})
		if !errors.Is(err, errStuck) || !strings.Contains(err.Error(), verb+" step test (/mnt/x)") {
			t.Errorf("%s: error %v, want the kind's with the step's name", verb, err)
		}
		if diff := cmp.Diff([]string{verb + "1", verb + verb}, log); diff != "" {
			t.Errorf("%s (-want +got):\n%s", verb, diff)
		}
	}
	if len(other) > 0 {
		t.Errorf("another kind was asked: %v", other)
	}
}

// TestVerifyByApplying: a kind that cannot tell whether its effect is there applies it again.
func TestVerifyByApplying(t *testing.T) {
	var log []string
	kind := logged(&log)
	kind.Verify = nil
	if err := (Kinds{"test": kind}).Verify(t.Context(), Step{Kind: "test", Params: json.RawMessage(`1`)}); err != nil {
		t.Error(err)
	}
	err := (Kinds{"test": kind}).Verify(t.Context(), Step{Kind: "test", Params: json.RawMessage(`apply`)})
	if !errors.Is(err, errStuck) || !strings.Contains(err.Error(), "verify step test") {
		t.Errorf("error %v, want one that says what it was for", err)
	}
	if diff := cmp.Diff([]string{"apply1", "applyapply"}, log); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestUnknownKind: what a newer version recorded is left alone, and people are told what helps.
func TestUnknownKind(t *testing.T) {
	var log []string
	for verb, do := range verbs(Kinds{"test": logged(&log)}) {
		err := do(t.Context(), Step{Kind: "newer", Target: "x"})
		for _, part := range []string{verb + " step newer (x)", "not known", "upgrade"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: error %v, want it to say %q", verb, err, part)
			}
		}
	}
	if len(log) > 0 {
		t.Errorf("another kind was asked: %v", log)
	}
}

// TestContext: a step can be cut off.
func TestContext(t *testing.T) {
	wait := func(ctx context.Context, _ json.RawMessage) error { return context.Cause(ctx) }
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStuck)
	for verb, do := range verbs(Kinds{"test": {Apply: wait, Undo: wait, Verify: wait}}) {
		if err := do(ctx, Step{Kind: "test"}); !errors.Is(err, errStuck) {
			t.Errorf("%s: %v, want the context's cause", verb, err)
		}
	}
}

// TestSame: a step is the same as another whatever its parameters remember.
func TestSame(t *testing.T) {
	s := Step{Kind: "k", Target: "t", Params: json.RawMessage(`1`)}
	for other, want := range map[*Step]bool{
		{Kind: "k", Target: "t"}:                               true,
		{Kind: "k", Target: "t", Params: json.RawMessage(`2`)}: true,
		{Kind: "k", Target: "u", Params: json.RawMessage(`1`)}: false,
		{Kind: "l", Target: "t", Params: json.RawMessage(`1`)}: false,
	} {
		if got := s.Same(*other); got != want {
			t.Errorf("%+v: %v, want %v", other, got, want)
		}
	}
}
