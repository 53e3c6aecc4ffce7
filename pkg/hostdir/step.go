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
	// Place is the directory that the claim got. Versions that did not note it ignore it.
	Place *Place `json:"place,omitempty"`
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
	return plan(d, owner, path, claim)
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
	return plan(d, owner, path, claim)
}

func plan(d *Dir, owner Owner, path, claim string) (step.Step, error) {
	place, err := d.place()
	if err != nil {
		return step.Step{}, err
	}
	return step.New(StepKind, path, Params{Path: path, Claim: claim, Before: owner, Place: &place})
}

// purgeAtOnce limits how long Finish deletes before it leaves the rest to the background. Only claims of the same directory wait meanwhile.
const purgeAtOnce = 500 * time.Millisecond

// Kind returns the step kind for a host root. open is OpenRoot, or the fake of a test.
func Kind(hostRoot string, open func(path string) (Root, error)) step.Kind {
	k := kind{hostRoot: hostRoot, open: open}
	return step.Kind{
		Apply: step.Do(func(_ context.Context, p *Params) error {
			d, err := k.dir(p)
			if err != nil {
				return err
			}
			defer d.Close()
			return d.OpenUp()
		}),
		// The pod may have changed the mode itself.
		Verify: step.Do(func(_ context.Context, p *Params) error {
			d, err := k.dir(p)
			if err != nil {
				return err
			}
			return d.Close()
		}),
		Undo: step.Do(func(ctx context.Context, p *Params) error {
			return k.ifThere(p, func(d *Dir) error { return errors.Join(d.SetAside(ctx, p.Claim), d.Restore(ctx, p.Before)) })
		}),
		Finish: step.Do(func(ctx context.Context, p *Params) error {
			return k.ifThere(p, func(d *Dir) error {
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

type kind struct {
	hostRoot string
	open     func(path string) (Root, error)
}

// dir opens the directory that the claim got. It refuses any other one.
func (k kind) dir(p *Params) (*Dir, error) {
	d, err := openWith(k.open, filepath.Join(k.hostRoot, p.Path))
	if err != nil {
		return nil, err
	}
	if err := p.check(d); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// ifThere calls do with the directory that the claim got. If the directory was deleted, its content is gone, too, and ifThere does nothing.
func (k kind) ifThere(p *Params, do func(*Dir) error) error {
	d, err := k.dir(p)
	if errors.Is(err, fs.ErrNotExist) {
		return p.checkGone(filepath.Join(k.hostRoot, p.Path))
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return do(d)
}
