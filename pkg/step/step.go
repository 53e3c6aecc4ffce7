// SPDX-License-Identifier: Apache-2.0

// Package step is the only way in which a claim changes the machine. A step has a kind, a target, and parameters that are plain data. So it
// can be written down before it happens, and a process that did not apply it can undo it. Rollback, recovery and garbage collection undo
// steps; there is no other mechanism.
package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fettle-dev/fettle/pkg/budget"
)

// Step is one effect of a claim.
type Step struct {
	// Kind is the key of the Kinds table.
	Kind string `json:"kind"`
	// Target is what the step changes, in the terms of its kind: a path, a device. A claim has one step for each kind and target.
	Target string `json:"target"`
	// Params are the parameters, as JSON of the kind's own type.
	Params json.RawMessage `json:"params"`
}

// New makes a step of the parameters of its kind.
func New(kind, target string, params any) (Step, error) {
	raw, err := json.Marshal(params)
	if err != nil {
		return Step{}, fmt.Errorf("encode step %s of %s: %w", kind, target, err)
	}
	return Step{Kind: kind, Target: target, Params: raw}, nil
}

// Decode reads the parameters of a step.
func Decode[T any](params json.RawMessage) (*T, error) {
	out := new(T)
	if err := json.Unmarshal(params, out); err != nil {
		return nil, fmt.Errorf("decode the parameters: %w", err)
	}
	return out, nil
}

// Do makes a function of a Kind from one that takes decoded parameters.
func Do[T any](do func(ctx context.Context, params *T) error) func(context.Context, json.RawMessage) error {
	return func(ctx context.Context, raw json.RawMessage) error {
		params, err := Decode[T](raw)
		if err != nil {
			return err
		}
		return do(ctx, params)
	}
}

// Same reports whether two steps are the same effect, whatever former values their parameters hold.
func (s Step) Same(other Step) bool { return s.Kind == other.Kind && s.Target == other.Target }

// String describes the step for people.
func (s Step) String() string { return fmt.Sprintf("%s (%s)", s.Kind, s.Target) }

// State is the progress of one step.
type State string

// The states. A step that was started stays intended until it is known to be done.
const (
	Intended State = "intended"
	Done     State = "done"
	Undone   State = "undone"
)

// Next reports whether a step may go from one state to another. Nothing follows Undone.
func (s State) Next(to State) bool {
	switch s {
	case Intended:
		return to == Done || to == Undone
	case Done:
		return to == Undone
	case Undone:
	}
	return false
}

// Kind applies and undoes one kind of effect. It must be safe to call every function twice, and to call Undo on a step that was never
// applied, or only half.
type Kind struct {
	Apply func(ctx context.Context, params json.RawMessage) error
	Undo  func(ctx context.Context, params json.RawMessage) error
	// Verify fails if an applied effect is gone. It restores the effect if that takes no time. If it is nil, Apply is used.
	Verify func(ctx context.Context, params json.RawMessage) error
	// Finish completes what Undo began, for example by making it durable. The plugin may answer Unprepare before Finish, once it has noted
	// durably that the claim is being released. Until then the claim keeps its devices, so the next claim waits for them. It is nil if Undo
	// leaves nothing to do.
	Finish func(ctx context.Context, params json.RawMessage) error
	// Needs returns what the effect makes the node hold for as long as it lasts. It changes nothing and looks at nothing. Nil: nothing that
	// is limited.
	Needs func(params json.RawMessage) ([]budget.Need, error)
}

// Kinds is the table of the step kinds that this process knows, by name.
type Kinds map[string]Kind

// Apply applies one step.
func (k Kinds) Apply(ctx context.Context, s Step) error {
	return k.call(ctx, "apply", s, func(kind Kind) effect { return kind.Apply })
}

// Undo undoes one step.
func (k Kinds) Undo(ctx context.Context, s Step) error {
	return k.call(ctx, "undo", s, func(kind Kind) effect { return kind.Undo })
}

// Verify verifies one step that was applied.
func (k Kinds) Verify(ctx context.Context, s Step) error {
	return k.call(ctx, "verify", s, func(kind Kind) effect {
		if kind.Verify != nil {
			return kind.Verify
		}
		return kind.Apply
	})
}

// Finishes reports whether the kind of a step has a Finish.
func (k Kinds) Finishes(s Step) bool { return k[s.Kind].Finish != nil }

// Finish completes what Undo of one step began.
func (k Kinds) Finish(ctx context.Context, s Step) error {
	return k.call(ctx, "finish undoing", s, func(kind Kind) effect {
		if kind.Finish != nil {
			return kind.Finish
		}
		return func(context.Context, json.RawMessage) error { return nil }
	})
}

// Needs returns what the effect of one step makes the node hold.
func (k Kinds) Needs(s Step) ([]budget.Need, error) {
	kind := k[s.Kind]
	if kind.Needs == nil {
		return nil, nil
	}
	needs, err := kind.Needs(s.Params)
	if err != nil {
		return nil, fmt.Errorf("what step %s needs: %w", s, err)
	}
	return needs, nil
}

// effect is one of the functions of a Kind.
type effect func(ctx context.Context, params json.RawMessage) error

// call calls the function of the step's kind that pick chooses.
func (k Kinds) call(ctx context.Context, what string, s Step, pick func(Kind) effect) error {
	err := errUnknown
	if kind, ok := k[s.Kind]; ok {
		err = pick(kind)(ctx, s.Params)
	}
	if err != nil {
		return fmt.Errorf("%s step %s: %w", what, s, err)
	}
	return nil
}

// ErrReplaced is in errors about what a step changed: it is not there any more, and something else may be. Undo must not touch that, and
// what the claim left may come back. Only a person knows if it never will.
var ErrReplaced = errors.New("is not what the claim got")

// errUnknown is about a step of which this build has no kind.
var errUnknown = errors.New("its kind is not known to this build: it was recorded by a newer Fettle, upgrade the node's plugin")
