// SPDX-License-Identifier: Apache-2.0

// Package step is the only way in which a claim changes the machine. A step is a kind, what it is about, and its parameters as plain
// data, so that it can be written down before it happens and undone by a process that did not do it. Undoing is also what rollback,
// recovery and garbage collection are made of; there is no other mechanism.
package step

import (
	"context"
	"encoding/json"
	"fmt"
)

// Step is one effect of a claim.
type Step struct {
	// Kind names the entry of the Kinds table that knows what to do.
	Kind string `json:"kind"`
	// Target is what the step is about, in the kind's own terms: a path, a device. A claim has one step of a kind a target.
	Target string `json:"target"`
	// Params are that kind's own type as JSON.
	Params json.RawMessage `json:"params"`
}

// Same says whether two steps are the same effect, whatever their parameters remember.
func (s Step) Same(other Step) bool { return s.Kind == other.Kind && s.Target == other.Target }

// String is for people.
func (s Step) String() string { return fmt.Sprintf("%s (%s)", s.Kind, s.Target) }

// State is how far one step is.
type State string

// The states. A step that was started is still intended until it is known to be done.
const (
	Intended State = "intended"
	Done     State = "done"
	Undone   State = "undone"
)

// Next says whether a step may go from one state to another. Nothing follows Undone.
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

// Kind does and undoes one sort of effect. Every function must be safe to call twice, and Undo must be safe to call on a step
// that was never, or only half, applied.
type Kind struct {
	Apply func(ctx context.Context, params json.RawMessage) error
	Undo  func(ctx context.Context, params json.RawMessage) error
	// Verify says whether an effect that was applied is still there, and brings it back where that takes no time. Nil: Apply does.
	Verify func(ctx context.Context, params json.RawMessage) error
	// Finish ends what Undo began, as by making it durable, and comes after it. A claim may be answered as given back before, once it is
	// durably noted that it is being given back: its devices are its own until then, so who gets them next waits. Nil: nothing is left.
	Finish func(ctx context.Context, params json.RawMessage) error
}

// Kinds is the table of what this process can do, by name.
type Kinds map[string]Kind

// Apply applies one step.
func (k Kinds) Apply(ctx context.Context, s Step) error {
	kind, err := k.lookup(s)
	if err == nil {
		err = kind.Apply(ctx, s.Params)
	}
	return wrap("apply", s, err)
}

// Undo undoes one step.
func (k Kinds) Undo(ctx context.Context, s Step) error {
	kind, err := k.lookup(s)
	if err == nil {
		err = kind.Undo(ctx, s.Params)
	}
	return wrap("undo", s, err)
}

// Verify verifies one step that was applied.
func (k Kinds) Verify(ctx context.Context, s Step) error {
	kind, err := k.lookup(s)
	switch {
	case err != nil:
	case kind.Verify != nil:
		err = kind.Verify(ctx, s.Params)
	default:
		err = kind.Apply(ctx, s.Params)
	}
	return wrap("verify", s, err)
}

// Finishes says whether undoing a step has a second part.
func (k Kinds) Finishes(s Step) bool { return k[s.Kind].Finish != nil }

// Finish ends what Undo of one step began.
func (k Kinds) Finish(ctx context.Context, s Step) error {
	kind, err := k.lookup(s)
	if err == nil && kind.Finish != nil {
		err = kind.Finish(ctx, s.Params)
	}
	return wrap("finish undoing", s, err)
}

func (k Kinds) lookup(s Step) (Kind, error) {
	kind, ok := k[s.Kind]
	if !ok {
		return Kind{}, fmt.Errorf("its kind is not known to this build: it was recorded by a newer Fettle, upgrade the node's plugin")
	}
	return kind, nil
}

func wrap(what string, s Step, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s step %s: %w", what, s, err)
}
