// SPDX-License-Identifier: Apache-2.0

// Package pin is the step that keeps a file in the node's store for as long as a claim needs it. The file is fetched before: a step has no
// network.
package pin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/step"
)

// StepKind is the step's name in records. It is from a time when the step fetched the file, too.
const StepKind = "artifact.fetch"

// ErrEvicted is about a file that was in the store when the claim was planned.
var ErrEvicted = errors.New("is not in the node's store any more: kubelet asks again, and it is fetched again")

// Params are the step's parameters.
type Params struct {
	// Reference is where the file is: REGISTRY/REPOSITORY@DIGEST of its manifest.
	Reference string `json:"reference"`
	// Digest and Size are the file's own.
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	// Optional: the claim can do without the file.
	Optional bool `json:"optional,omitempty"`
	// Owner is what the file is kept for: the claim's UID.
	Owner string `json:"owner"`
	// Secrets are names of pull secrets in the namespace SecretsIn.
	SecretsIn string   `json:"secretsIn,omitempty"`
	Secrets   []string `json:"secrets,omitempty"`
}

// Step makes the step that keeps the file for an owner.
func (p *Params) Step(owner string) (step.Step, error) {
	own := *p
	own.Owner = owner
	raw, err := json.Marshal(own)
	if err != nil {
		return step.Step{}, fmt.Errorf("encode step %s: %w", StepKind, err)
	}
	return step.Step{Kind: StepKind, Target: p.Digest, Params: raw}, nil
}

// Kind does and undoes the step. open opens the node's store, which most nodes do not have before they need it.
func Kind(open func() (*artifact.Store, error)) step.Kind {
	with := func(
		do func(ctx context.Context, store *artifact.Store, p Params, d artifact.Digest) error,
	) func(context.Context, json.RawMessage) error {
		return func(ctx context.Context, raw json.RawMessage) error {
			p, d, err := decode(raw)
			if err != nil {
				return err
			}
			store, err := open()
			if err != nil {
				return err
			}
			return do(ctx, store, p, d)
		}
	}
	return step.Kind{
		// The pin comes first: from then on the file stays.
		Apply: with(func(ctx context.Context, store *artifact.Store, p Params, d artifact.Digest) error {
			if err := store.Pin(ctx, d, p.Owner); err != nil {
				return err
			}
			return present(store, p, d)
		}),
		Undo: unlessNoStore(with(func(ctx context.Context, store *artifact.Store, p Params, d artifact.Digest) error {
			return store.Unpin(ctx, d, p.Owner)
		})),
		Needs: func(raw json.RawMessage) ([]budget.Need, error) {
			p, err := Decode(raw)
			return []budget.Need{
				{Resource: budget.Pins, Amount: 1}, {Resource: budget.PinnedBytes, Amount: p.Size, Once: p.Digest},
			}, err
		},
		Verify: with(func(_ context.Context, store *artifact.Store, p Params, d artifact.Digest) error {
			return present(store, p, d)
		}),
	}
}

// unlessNoStore has a claim end that was refused because the disk has no space for a store.
func unlessNoStore(undo func(context.Context, json.RawMessage) error) func(context.Context, json.RawMessage) error {
	return func(ctx context.Context, raw json.RawMessage) error {
		err := undo(ctx, raw)
		if errors.Is(err, artifact.ErrNoStore) {
			return nil
		}
		return err
	}
}

// Decode reads the parameters of a step.
func Decode(raw json.RawMessage) (Params, error) {
	var p Params
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, fmt.Errorf("decode the parameters: %w", err)
	}
	return p, nil
}

func decode(raw json.RawMessage) (Params, artifact.Digest, error) {
	p, err := Decode(raw)
	if err != nil {
		return p, artifact.Digest{}, err
	}
	d, err := artifact.ParseDigest(p.Digest)
	return p, d, err
}

// present says why a file that the claim needs is not there.
func present(store *artifact.Store, p Params, d artifact.Digest) error {
	blob, err := store.Open(d)
	switch {
	case err == nil:
		return blob.Close()
	case p.Optional:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s %w", p.Reference, ErrEvicted)
	}
	return err
}
