// SPDX-License-Identifier: Apache-2.0

package restorepoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
		// Until a claim has it, it counts for nothing: nothing was changed.
		p, err = s.write(Point{Version: sharedVersion, BootID: s.bootID, Step: st, Setting: setting})
	case !p.shared():
		return Point{}, held(st.Target)
	case p.Setting != setting:
		return Point{}, disagrees(p, setting)
	case p.Version == listVersion:
		p, err = s.spread(p)
	}
	if err != nil || p.Has(claim) {
		return p, err
	}
	one := Sharer{Claim: claim, Step: st}
	p.Sharers = append(slices.Clone(p.Sharers), one)
	return p, s.writeSharer(one)
}

// spread gives each claim of a point of the version before a file of its own. The list counts until all files are there.
func (s *Store) spread(p Point) (Point, error) {
	for _, one := range p.Sharers {
		if err := s.writeSharer(one); err != nil {
			return Point{}, err
		}
	}
	p.Version = sharedVersion
	return s.write(p)
}

// writeSharer writes a claim's own file, which End removes: that needs no space on the disk.
func (s *Store) writeSharer(one Sharer) error {
	name, err := s.sharerPath(one.Claim, one.Step.Kind, one.Step.Target)
	if err != nil {
		return err
	}
	return s.writeFile(name, Point{Version: sharedVersion, Claim: one.Claim, BootID: s.bootID, Step: one.Step})
}

// sharers reads the files of the claims that have a shared point, sorted by their names. Those of an earlier boot count for nothing.
func (s *Store) sharers(kind, target, bootID string) ([]Sharer, error) {
	names, err := s.sharerFiles(kind, target)
	var out []Sharer
	for _, name := range names {
		one, bad := s.readFile(name)
		if bad != nil {
			err = errors.Join(err, bad)
		} else if one.BootID == bootID {
			out = append(out, Sharer{Claim: one.Claim, Step: one.Step})
		}
	}
	return out, err
}

// sharerFiles lists the files of the claims that have a point, of this boot and of earlier ones.
func (s *Store) sharerFiles(kind, target string) ([]string, error) {
	entries, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list the claims that have %s of %s: %w", kind, target, err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), kind+separator+target+separator) {
			out = append(out, filepath.Join(s.dir, e.Name()))
		}
	}
	return out, nil
}

// Agrees fails with ErrDisagrees if claims since this boot have another setting of a device than this one. Whoever plans a step of a shared
// device calls it first. A claim that has the point alone may not change its setting either: its step is undone first.
func (s *Store) Agrees(setting, kind, target string) error {
	p, ok, err := s.Find(kind, target)
	switch {
	case err != nil || !ok:
		return err
	case !p.shared():
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
	if !p.shared() {
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
	if !p.shared() {
		return p.Step, p.Claim == claim
	}
	for _, one := range p.Sharers {
		if one.Claim == claim {
			return one.Step, true
		}
	}
	return step.Step{}, false
}

// known says whether this release can use the file.
func (p Point) known() bool {
	return p.Version == version || p.Version == sharedVersion && p.Step.Kind != "" || p.Version == listVersion && len(p.Sharers) > 0
}

// shared says whether several claims may have the point.
func (p Point) shared() bool { return p.Version != version }

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

// UndoShared is Undo of a setting that several claims have, with the lock. A claim without the point needs no lock, so it can end where the
// disk has no space for the lock's file.
func UndoShared[Params any](
	ctx context.Context, s *Store, claim, kind, target string, restore func(lock *os.File, before *Params) error,
) (err error) {
	lock, err := s.Lock(ctx, kind, target)
	if err != nil {
		if _, mine, again := s.Mine(claim, kind, target); mine || again != nil {
			return errors.Join(err, again)
		}
		return nil
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	return Undo(s, claim, kind, target, func(before *Params) error { return restore(lock, before) })
}
