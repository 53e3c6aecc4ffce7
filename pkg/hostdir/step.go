// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
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
	// Marks are restored with it. Versions that did not note them leave what claims marked the directory with.
	Marks *Marks `json:"marks,omitempty"`
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
	if err := d.checkEmptied(path); err != nil {
		return step.Step{}, err
	}
	owner, err := d.Owner()
	if err != nil {
		return step.Step{}, err
	}
	marks, err := d.marks()
	if err != nil {
		return step.Step{}, err
	}
	return plan(d, owner, &marks, path, claim)
}

// CheckEmptied fails with ErrDirty while a claim's content is not deleted yet, which nobody else may see.
func CheckEmptied(hostRoot, path string) error {
	d, err := Open(filepath.Join(hostRoot, path))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.checkEmptied(path)
}

func (d *Dir) checkEmptied(path string) error {
	dirty, err := d.Dirty()
	if err == nil && dirty {
		err = fmt.Errorf("host directory %s %w", path, ErrDirty)
	}
	return err
}

// ErrLeft is about a directory that was away when its last claim ended without its record. Only a person knows what to do with its content.
var ErrLeft = errors.New("holds what a claim left whose record is lost: delete it, and take the attribute " + scratchMark +
	" off the directory")

// CheckLeft fails with ErrLeft if a directory is marked as scratch space of a claim of which there is no record.
func CheckLeft(hostRoot, path string, recorded func(claim string) bool) error {
	d, err := Open(filepath.Join(hostRoot, path))
	if err != nil {
		return err
	}
	defer d.Close()
	claim, err := d.scratchOf()
	if err == nil && claim != "" && !recorded(claim) {
		err = fmt.Errorf("host directory %s %w", path, ErrLeft)
	}
	return err
}

// ErrNotScratch says that no claim has a directory as scratch space: its content is kept.
var ErrNotScratch = errors.New("is not scratch space of a claim")

// PlanUndo returns the step of a claim whose record is lost, for its Undo: it empties the directory, dirty or not. The former mode is not
// known, so Undo lets only its owner write. Marks may all be the claim's, so none stays. PlanUndo fails with ErrNotScratch for a directory
// that the claim had without the step.
func PlanUndo(hostRoot, path, claim string) (step.Step, error) {
	d, err := Open(filepath.Join(hostRoot, path))
	if err != nil {
		return step.Step{}, err
	}
	defer d.Close()
	scratch, err := d.isScratch()
	if err == nil && !scratch {
		err = fmt.Errorf("host directory %s %w", path, ErrNotScratch)
	}
	if err != nil {
		return step.Step{}, err
	}
	owner, err := d.Owner()
	if err != nil {
		return step.Step{}, err
	}
	owner.Mode = uint32(os.ModeDir | os.FileMode(owner.Mode).Perm()&^0o022)
	return plan(d, owner, &Marks{XFS: &XFlags{}}, path, claim)
}

func plan(d *Dir, owner Owner, marks *Marks, path, claim string) (step.Step, error) {
	place, err := d.place()
	if err != nil {
		return step.Step{}, err
	}
	return step.New(StepKind, path, Params{Path: path, Claim: claim, Before: owner, Marks: marks, Place: &place})
}

// purgeAtOnce limits how long Finish deletes before it leaves the rest to the background. Only claims of the same directory wait meanwhile.
const purgeAtOnce = 500 * time.Millisecond

// Kind returns the step kind for a host root. open is OpenRoot, or the fake of a test.
func Kind(hostRoot string, open func(path string) (Root, error)) step.Kind {
	return kind{hostRoot: hostRoot, open: open, reads: sysfs.NewReads(clock.RealClock{}, patience)}.step()
}

func (k kind) step() step.Kind {
	return step.Kind{
		Apply: step.Do(func(ctx context.Context, p *Params) error {
			return k.inTime(ctx, p, func(d *Dir) error {
				if err := d.markScratch(p.Claim); err != nil {
					return err
				}
				return d.OpenUp()
			})
		}),
		// The pod may have changed the mode itself.
		Verify: step.Do(func(ctx context.Context, p *Params) error {
			return k.inTime(ctx, p, func(*Dir) error { return nil })
		}),
		Undo: step.Do(func(ctx context.Context, p *Params) error {
			return k.ifThere(ctx, p, func(d *Dir) error { return d.giveBack(ctx, p) })
		}),
		Finish: step.Do(func(ctx context.Context, p *Params) error {
			return k.ifThere(ctx, p, func(d *Dir) error {
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

// patience is how long a step may take. Claims of the devices that its claim has, too, wait meanwhile. What a step that took longer has
// moved aside stays there, so the next try has less to do.
const patience = time.Minute

type kind struct {
	hostRoot string
	open     func(path string) (Root, error)
	// reads does what a disk or a server may not answer.
	reads *sysfs.Reads
}

// inTime does something with the directory that the claim got, and refuses any other one. It gives up on a disk or a server that does not
// answer, and does nothing in the directory from then on. Until the last answer has come nothing else is done there for the claim.
func (k kind) inTime(ctx context.Context, p *Params, do func(*Dir) error) error {
	return k.call(ctx, p, func(over *atomic.Bool) error {
		d, err := k.openDir(p, over)
		if err != nil {
			return err
		}
		defer d.Close()
		return do(d)
	})
}

// ifThere is inTime, except that it does nothing if the directory was deleted: its content is gone, too.
func (k kind) ifThere(ctx context.Context, p *Params, do func(*Dir) error) error {
	return k.call(ctx, p, func(over *atomic.Bool) error {
		d, err := k.openDir(p, over)
		if errors.Is(err, fs.ErrNotExist) {
			return p.checkGone(filepath.Join(k.hostRoot, p.Path))
		}
		if err != nil {
			return err
		}
		defer d.Close()
		return do(d)
	})
}

// call calls do, and waits for it in time. Over says from then on that nobody waits. A step of a call that has ended still does what is
// answered.
func (k kind) call(ctx context.Context, p *Params, do func(over *atomic.Bool) error) error {
	var over atomic.Bool
	_, err := sysfs.Call(context.WithoutCancel(ctx), k.reads, p.Path+" of claim "+p.Claim, func() (struct{}, error) {
		return struct{}{}, do(&over)
	}, nil)
	over.Store(true)
	return err
}

func (k kind) openDir(p *Params, over *atomic.Bool) (*Dir, error) {
	open := func(path string) (Root, error) {
		root, err := k.open(path)
		if err != nil {
			return nil, err
		}
		return awaited{root, over}, nil
	}
	d, err := openWith(open, filepath.Join(k.hostRoot, p.Path))
	if err != nil {
		return nil, err
	}
	if err := p.check(d); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// giveBack empties the directory and makes it what it was. Access control lists change the mode, so they go first. The mark of scratch
// space ends once all is done.
func (d *Dir) giveBack(ctx context.Context, p *Params) error {
	_ = allowRemoval(d.root, ".") // else nothing can be moved, and that is told
	err := d.SetAside(ctx, p.Claim)
	if p.Marks != nil {
		err = errors.Join(err, d.clean(ctx, p.Marks))
	}
	if err = errors.Join(err, d.Restore(ctx, p.Before)); err != nil {
		return err
	}
	return d.unmarkScratch()
}
