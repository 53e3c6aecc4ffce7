// SPDX-License-Identifier: Apache-2.0

// Package step is the only way in which a claim changes the machine. A step is a kind and its parameters as plain data, so that
// it can be written down before it happens and undone by a process that did not do it. Undoing is also what rollback,
// recovery and garbage collection are made of; there is no other mechanism.
package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Step is one effect of a claim.
type Step struct {
	// Kind names the entry of the Kinds table that knows what to do.
	Kind string `json:"kind"`
	// Params are that kind's own type as JSON.
	Params json.RawMessage `json:"params"`
}

// Kind does and undoes one sort of effect. Both functions must be safe to call twice, and Undo must be safe to call on a step
// that was never, or only half, applied.
type Kind struct {
	Apply func(ctx context.Context, params json.RawMessage) error
	Undo  func(ctx context.Context, params json.RawMessage) error
}

// Kinds is the table of what this process can do, by name.
type Kinds map[string]Kind

// Apply runs the steps in order and stops at the first that fails. The caller undoes them all: a failed step may be half done.
func (k Kinds) Apply(ctx context.Context, steps []Step) error {
	for _, s := range steps {
		kind, err := k.lookup(s)
		if err != nil {
			return err
		}
		if err := kind.Apply(ctx, s.Params); err != nil {
			return fmt.Errorf("apply step %s: %w", s.Kind, err)
		}
	}
	return nil
}

// Undo runs the steps in reverse. It goes on after a failure, so that one stuck effect does not keep the others, and returns
// all that failed; the caller keeps the record and tries again.
func (k Kinds) Undo(ctx context.Context, steps []Step) error {
	var errs []error
	for i := len(steps) - 1; i >= 0; i-- {
		kind, err := k.lookup(steps[i])
		if err == nil {
			err = kind.Undo(ctx, steps[i].Params)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("undo step %s: %w", steps[i].Kind, err))
		}
	}
	return errors.Join(errs...)
}

func (k Kinds) lookup(s Step) (Kind, error) {
	kind, ok := k[s.Kind]
	if !ok {
		return Kind{}, fmt.Errorf("step kind %q is not known to this build: it was recorded by a newer Fettle, upgrade the node's plugin", s.Kind)
	}
	return kind, nil
}
