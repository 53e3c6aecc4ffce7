// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fettle-dev/fettle/pkg/step"
)

// StepKind is the step that gives a directory to a claim as scratch space and empties it on release.
const StepKind = "host.scratch"

// Params are the parameters of the step.
type Params struct {
	// Path is the absolute path of the directory on the host.
	Path string `json:"path"`
	// Claim is the UID of the claim that gets the directory.
	Claim string `json:"claim"`
	// Before is restored by Undo.
	Before Owner `json:"before"`
}

// ErrDirty is returned while the last claim's content is not deleted yet. A later try succeeds.
var ErrDirty = errors.New("is still being emptied after its last claim: retried until that is done")

// Plan reads what the step must restore and returns the step. It changes nothing.
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

// PlanUndo returns the step of a claim whose record is lost, for its Undo: it empties the directory, dirty or not. The former mode is not
// known. If the directory still has the mode for claims, Undo lets only its owner write.
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
	return step.New(StepKind, path, Params{Path: path, Claim: claim, Before: owner})
}

// purgeAtOnce limits how long Finish deletes before it leaves the rest to the background. Only claims of the same directory wait meanwhile.
const purgeAtOnce = 500 * time.Millisecond

// Kind returns the step kind for a host root. open is OpenRoot, or the fake of a test.
func Kind(hostRoot string, open func(path string) (Root, error)) step.Kind {
	dir := func(p *Params) (*Dir, error) { return openWith(open, filepath.Join(hostRoot, p.Path)) }
	return step.Kind{
		Apply: step.Do(func(_ context.Context, p *Params) error {
			d, err := dir(p)
			if err != nil {
				return err
			}
			defer d.Close()
			return d.OpenUp()
		}),
		// The pod may have changed the mode itself.
		Verify: step.Do(func(_ context.Context, p *Params) error {
			d, err := dir(p)
			if err != nil {
				return err
			}
			return d.Close()
		}),
		Undo: step.Do(func(_ context.Context, p *Params) error {
			d, err := dir(p)
			return ifThere(d, err, func() error { return errors.Join(d.SetAside(p.Claim), d.Restore(p.Before)) })
		}),
		Finish: step.Do(func(ctx context.Context, p *Params) error {
			d, err := dir(p)
			return ifThere(d, err, func() error {
				if err := d.Sync(); err != nil {
					return err
				}
				// What is deleted at once never takes the device out of the scheduler's sight. The step does not wait for the rest.
				brief, cancel := context.WithTimeout(ctx, purgeAtOnce)
				defer cancel()
				_ = d.Purge(brief)
				return nil
			})
		}),
	}
}

// ifThere calls do and closes the directory of a step; err is the error of opening it. If the directory left with its disk, its content
// left, too, and ifThere does nothing.
func ifThere(d *Dir, err error, do func() error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return do()
}
