// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fettle-dev/fettle/pkg/step"
)

// StepKind is the step that lends a directory as scratch space and empties it on release.
const StepKind = "host.scratch"

// Params are the step's parameters.
type Params struct {
	// Path is the directory on the host, absolute.
	Path string `json:"path"`
	// Claim is the UID of the claim that borrows it.
	Claim string `json:"claim"`
	// Before is what Undo restores.
	Before Owner `json:"before"`
}

// ErrDirty is returned where a directory is asked for before the last claim's content is deleted. It passes with time.
var ErrDirty = errors.New("is still being emptied after its last claim: retried until that is done")

// Plan reads what the step must remember and returns the step. It changes nothing.
func Plan(hostRoot, path, claim string) (step.Step, error) {
	d, err := Open(filepath.Join(hostRoot, path))
	if err != nil {
		return step.Step{}, err
	}
	defer d.Close()
	dirty, err := d.Dirty()
	if err != nil {
		return step.Step{}, err
	}
	if dirty {
		return step.Step{}, fmt.Errorf("host directory %s %w", path, ErrDirty)
	}
	owner, err := d.Owner()
	if err != nil {
		return step.Step{}, err
	}
	return plan(owner, path, claim)
}

// PlanUndo returns the step of a claim whose own record of it is lost, so that it can be undone: the directory is emptied, dirty or
// not. What its mode was before is not known any more: one that is still lent is closed to all but its owner's writing.
func PlanUndo(hostRoot, path, claim string) (step.Step, error) {
	d, err := Open(filepath.Join(hostRoot, path))
	if err != nil {
		return step.Step{}, err
	}
	defer d.Close()
	owner, err := d.Owner()
	if err != nil {
		return step.Step{}, err
	}
	if os.FileMode(owner.Mode)&^os.ModeDir == scratchMode {
		owner.Mode = closedMode
	}
	return plan(owner, path, claim)
}

func plan(owner Owner, path, claim string) (step.Step, error) {
	params, err := json.Marshal(Params{Path: path, Claim: claim, Before: owner})
	if err != nil {
		return step.Step{}, fmt.Errorf("encode the step for %s: %w", path, err)
	}
	return step.Step{Kind: StepKind, Target: path, Params: params}, nil
}

// purgeAtOnce is how long Finish deletes before it leaves the rest to the background. Only the directory's own claims wait meanwhile.
const purgeAtOnce = 500 * time.Millisecond

// Kind does and undoes the step under a host root. open is OpenRoot, or what a test puts in its place.
func Kind(hostRoot string, open func(path string) (Root, error)) step.Kind {
	return step.Kind{
		Apply: func(_ context.Context, raw json.RawMessage) error {
			d, _, err := openStep(hostRoot, open, raw)
			if err != nil {
				return err
			}
			defer d.Close()
			return d.OpenUp()
		},
		// What became of the mode since is the pod's own doing.
		Verify: func(_ context.Context, raw json.RawMessage) error {
			d, _, err := openStep(hostRoot, open, raw)
			if err != nil {
				return err
			}
			return d.Close()
		},
		Undo: func(_ context.Context, raw json.RawMessage) error {
			return ifThere(hostRoot, open, raw, func(d *Dir, p Params) error {
				return errors.Join(d.SetAside(p.Claim), d.Restore(p.Before))
			})
		},
		Finish: func(ctx context.Context, raw json.RawMessage) error {
			return ifThere(hostRoot, open, raw, func(d *Dir, _ Params) error {
				if err := d.Sync(); err != nil {
					return err
				}
				// What is deleted at once never makes the device leave the scheduler's sight; the rest is not this step's to wait for.
				brief, cancel := context.WithTimeout(ctx, purgeAtOnce)
				defer cancel()
				_ = d.Purge(brief)
				return nil
			})
		},
	}
}

// ifThere does something to a step's directory, unless that left with its disk, and the content with it.
func ifThere(hostRoot string, open func(string) (Root, error), raw json.RawMessage, do func(*Dir, Params) error) error {
	d, p, err := openStep(hostRoot, open, raw)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return do(d, p)
}

func openStep(hostRoot string, open func(string) (Root, error), raw json.RawMessage) (*Dir, Params, error) {
	var p Params
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, p, fmt.Errorf("decode the parameters: %w", err)
	}
	d, err := openWith(open, filepath.Join(hostRoot, p.Path))
	return d, p, err
}
