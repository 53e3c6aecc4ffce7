// SPDX-License-Identifier: Apache-2.0

package restorepoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Sharer is one of several claims that have a point.
type Sharer struct {
	Claim string `json:"claim"`
	// Step is the claim's own, to undo where the claim's record is lost.
	Step step.Step `json:"step"`
}

// ErrDisagrees refuses a claim that wants another setting of a shared device than the claims that have it.
var ErrDisagrees = errors.New("is shared by claims with another setting")

// Join adds a claim durably to the restore point of a device that several claims change in the same way, or writes the point for the first
// of them with the former values in the step's parameters. It returns the point that holds. It fails with ErrDisagrees if claims since this
// boot have another setting. The caller holds Lock.
func (s *Store) Join(claim, setting string, st step.Step) (Point, error) {
	p, ok, err := s.Find(st.Kind, st.Target)
	switch {
	case err != nil:
		return Point{}, err
	case !ok:
		p = Point{Version: sharedVersion, BootID: s.bootID, Step: st, Setting: setting}
	case p.Version != sharedVersion:
		return Point{}, held(st.Target)
	case p.Setting != setting:
		return Point{}, disagrees(p, setting)
	case p.Has(claim):
		return p, nil
	}
	p.Sharers = append(slices.Clone(p.Sharers), Sharer{Claim: claim, Step: st})
	return s.write(p)
}

// Agrees fails with ErrDisagrees if claims since this boot have another setting of a device than this one. Whoever plans a step of a shared
// device calls it first. A claim that has the point alone may not change its setting either: its step is undone first.
func (s *Store) Agrees(setting, kind, target string) error {
	p, ok, err := s.Find(kind, target)
	switch {
	case err != nil || !ok:
		return err
	case p.Version != sharedVersion:
		return held(target)
	case p.Setting != setting:
		return disagrees(p, setting)
	}
	return nil
}

// disagrees names both settings, and no claim, as held does.
func disagrees(p Point, setting string) error {
	return fmt.Errorf("%s %w: they have %s, and this claim wants %s", p.Step.Target, ErrDisagrees, p.Setting, setting)
}

// Claims lists the claims that have the point.
func (p Point) Claims() []string {
	if p.Version != sharedVersion {
		return []string{p.Claim}
	}
	var out []string
	for _, one := range p.Sharers {
		out = append(out, one.Claim)
	}
	return out
}

// Has says whether a claim has the point.
func (p Point) Has(claim string) bool { return slices.Contains(p.Claims(), claim) }

// Of returns the step to undo for a claim whose record is lost, false if the claim does not have the point.
func (p Point) Of(claim string) (step.Step, bool) {
	if p.Version != sharedVersion {
		return p.Step, p.Claim == claim
	}
	for _, one := range p.Sharers {
		if one.Claim == claim {
			return one.Step, true
		}
	}
	return step.Step{}, false
}

// known says whether this release can use the point.
func (p Point) known() bool {
	return p.Version == version || p.Version == sharedVersion && len(p.Sharers) > 0
}

// without is the point after one of several claims ended.
func (p Point) without(claim string) Point {
	p.Sharers = slices.DeleteFunc(slices.Clone(p.Sharers), func(one Sharer) bool { return one.Claim == claim })
	return p
}

// lockPrefix begins the names of lock files, which are in the directory of the points.
const lockPrefix = ".lock_"

// Lock waits until no other process, and no child of one, acts on a shared device by steps of this kind. The caller gives the file to the
// programs that change the device and closes it afterwards: a program that outlives the plugin that started it holds the lock to its end,
// so that the next plugin never looks too early. Make was called before.
func (s *Store) Lock(ctx context.Context, kind, target string) (*os.File, error) {
	name, err := s.path(kind, target)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, lockPrefix+filepath.Base(name)), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = filelock.WaitFlock(ctx, f, filelock.Exclusive)
	}
	if err != nil {
		return nil, fmt.Errorf("wait for the lock of %s of %s: %w", kind, target, err)
	}
	return f, nil
}
