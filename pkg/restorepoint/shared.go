// SPDX-License-Identifier: Apache-2.0

package restorepoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/disk"
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
		err = s.removeMarks(p) // of claims that the release before gave back
	case !p.shared():
		return Point{}, held(st.Target)
	case p.Setting != setting:
		return Point{}, disagrees(p, setting)
	case p.Has(claim):
		return p, nil
	}
	if err != nil {
		return Point{}, err
	}
	p.Sharers = append(slices.Clone(p.Sharers), Sharer{Claim: claim, Step: st})
	return s.mark(p)
}

// mark writes a shared point, and a mark for each of its claims first: without its mark a claim does not count.
func (s *Store) mark(p Point) (Point, error) {
	for _, one := range p.Sharers {
		name, err := s.markPath(p, one.Claim)
		if err != nil {
			return Point{}, err
		}
		if _, err := s.fs.Lstat(name); err == nil {
			continue
		}
		if err := disk.ReplaceDurably(s.fs, name, nil, 0o600); err != nil {
			return Point{}, fmt.Errorf("note that a claim has %s of %s: %w", p.Step.Kind, p.Step.Target, err)
		}
	}
	p.Marked = true
	return s.write(p)
}

// marked returns the claims of a point that have their marks.
func (s *Store) marked(p Point) (out []Sharer, err error) {
	for _, one := range p.Sharers {
		name, bad := s.markPath(p, one.Claim)
		if bad == nil {
			_, bad = s.fs.Lstat(name)
		}
		switch {
		case bad == nil:
			out = append(out, one)
		case !errors.Is(bad, fs.ErrNotExist):
			err = errors.Join(err, fmt.Errorf("look whether a claim has %s of %s: %w", p.Step.Kind, p.Step.Target, bad))
		}
	}
	return out, err
}

// leave takes a claim off a shared point, by its mark, and then off the file for the release before, unless the disk is full: this release
// does not need that. With the last claim it removes all marks, those of an earlier boot too.
func (s *Store) leave(p Point, claim string) (rest Point, err error) {
	rest = p.without(claim)
	own, err := s.markPath(p, claim)
	if err != nil {
		return rest, err
	}
	if err := s.remove(own); err != nil {
		return rest, err
	}
	if len(rest.Sharers) > 0 && p.BootID == s.bootID {
		if p.Has(claim) {
			_, err = s.mark(rest)
		}
		if p.Marked && disk.NoRoom(err) {
			err = nil
		}
		return rest, err
	}
	return rest, s.removeMarks(p)
}

func (s *Store) removeMarks(p Point) error {
	entries, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("list the claims that have %s of %s: %w", p.Step.Kind, p.Step.Target, err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), markPrefix(p)) {
			err = errors.Join(err, disk.RemoveIfThere(s.fs, filepath.Join(s.dir, e.Name())))
		}
	}
	return err
}

// markPath is the file that says that a claim has a shared point.
func (s *Store) markPath(p Point, claim string) (string, error) {
	if !nameParts.MatchString(claim) {
		return "", fmt.Errorf("claim %q of the restore point of %q: want letters, digits, dots, colons and dashes", claim, p.Step.Target)
	}
	return filepath.Join(s.dir, markPrefix(p)+claim), nil
}

func markPrefix(p Point) string {
	return hiddenPrefix + p.Step.Kind + separator + p.Step.Target + separator
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

// known says whether this release can use the point.
func (p Point) known() bool {
	return p.Version == version || p.Version == sharedVersion && len(p.Sharers) > 0
}

// shared says whether several claims may have the point.
func (p Point) shared() bool { return p.Version != version }

// without is the point after one of several claims ended.
func (p Point) without(claim string) Point {
	p.Sharers = slices.DeleteFunc(slices.Clone(p.Sharers), func(one Sharer) bool { return one.Claim == claim })
	return p
}

// hiddenPrefix begins the names of locks and marks, which are in the directory of the points. The release before passes them over, too.
const hiddenPrefix = ".lock_"

// Lock waits until no other process, and no child of one, acts on a shared device by steps of this kind. The caller gives the file to the
// programs that change the device and closes it afterwards: a program that outlives the plugin that started it holds the lock to its end,
// so that the next plugin never looks too early. Make was called before.
func (s *Store) Lock(ctx context.Context, kind, target string) (*os.File, error) {
	name, err := s.path(kind, target)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, hiddenPrefix+filepath.Base(name)), os.O_CREATE|os.O_RDWR, 0o600)
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
func UndoShared[Params any](ctx context.Context, s *Store, c Change, restore func(lock *os.File, before *Params) error) (err error) {
	lock, err := s.Lock(ctx, c.Kind, c.Target)
	if err != nil {
		if _, mine, again := s.Mine(c.Claim, c.Kind, c.Target); mine || again != nil {
			return errors.Join(err, again)
		}
		return nil
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	return Undo(s, c, func(before *Params) error { return restore(lock, before) })
}
