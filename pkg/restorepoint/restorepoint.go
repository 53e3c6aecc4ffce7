// SPDX-License-Identifier: Apache-2.0

// Package restorepoint keeps what a device was like before a claim changed it: a step of which the parameters hold the former values, in a
// durable file of its own. A step writes it before its first change and removes it after its last restoration, so the file tells two things
// that a claim's record may not: whether anything was changed, and by whom. It also tells what to restore when the record is lost.
//
// It is for effects that end with the boot, such as the driver of a device: a restore point of an earlier boot means nothing any more.
//
// A point is one claim's (Begin), or that of all claims with the same setting of a shared device (Join): the first notes the former values,
// and the last to end has them restored.
package restorepoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/step"
)

// Point is one restore point.
type Point struct {
	// Version is the version of the file's format.
	Version int `json:"version"`
	// Claim is the UID of the claim that changes the device, empty where several may. BootID is the boot in which it does.
	Claim  string `json:"claim,omitempty"`
	BootID string `json:"bootID"`
	// Step is the step with its parameters. To undo it is to restore the device. In a shared point it is the first claim's, which may have
	// ended; its parameters have the former values.
	Step step.Step `json:"step"`
	// Setting is what the claims of a shared point want of the device, in words. Sharers are those claims, in the order in which they came.
	Setting string   `json:"setting,omitempty"`
	Sharers []Sharer `json:"sharers,omitempty"`
	// Marked says that each of Sharers has a mark, a file of its own: without it the claim has ended, which needs no space on the disk. The
	// release before writes the point without this member, and without the claims that end.
	Marked bool `json:"marked,omitempty"`
}

// version is that of points of one claim, sharedVersion that of shared points. The release before reads and writes both.
const (
	version       = 1
	sharedVersion = 2
)

// ErrHeld refuses a device that another claim changed and has not given back.
var ErrHeld = errors.New("is changed by another claim that has not given it back")

// Store is the directory of a node's restore points.
type Store struct {
	fs     disk.FS
	dir    string
	bootID string
}

// Open uses a directory, which Make creates, in the boot with this id.
func Open(fsys disk.FS, dir, bootID string) *Store { return &Store{fs: fsys, dir: dir, bootID: bootID} }

// BootID is the boot that the store is of.
func (s *Store) BootID() string { return s.bootID }

// Make creates the directory durably if it is missing. Callers call it before the first step.
func (s *Store) Make() error {
	err := disk.MkdirAll(s.fs, s.dir, 0o700)
	if err == nil {
		err = s.fs.SyncDir(filepath.Dir(s.dir))
	}
	if err != nil {
		return fmt.Errorf("make the directory of restore points: %w", err)
	}
	return nil
}

// Begin writes the restore point of a step durably, unless the claim has one since this boot. It returns the one that holds: a step that is
// applied again keeps the values that it found at first. It fails with ErrHeld if another claim has one since this boot.
func (s *Store) Begin(claim string, st step.Step) (Point, error) {
	found, ok, err := s.read(st.Kind, st.Target)
	if err != nil {
		return Point{}, err
	}
	if ok && found.BootID == s.bootID {
		if !found.Has(claim) || found.Version != version {
			return Point{}, held(st.Target)
		}
		return found, nil
	}
	return s.write(Point{Version: version, Claim: claim, BootID: s.bootID, Step: st})
}

func (s *Store) write(p Point) (Point, error) {
	name, err := s.path(p.Step.Kind, p.Step.Target)
	if err != nil {
		return Point{}, err
	}
	data, err := json.Marshal(p)
	if err == nil {
		err = disk.ReplaceDurably(s.fs, name, append(data, '\n'), 0o600)
	}
	if err != nil {
		return Point{}, fmt.Errorf("note what %s was before: %w", p.Step.Target, err)
	}
	return p, nil
}

// Find returns the restore point of a device, whoever's it is, if it was written since this boot. A shared point that no claim has is none:
// no claim has changed anything yet, or the last one has restored it.
func (s *Store) Find(kind, target string) (Point, bool, error) {
	p, ok, err := s.read(kind, target)
	return p, ok && p.BootID == s.bootID && len(p.Claims()) > 0, err
}

// Check fails with ErrHeld if a claim other than this one has a restore point of the device since this boot.
func (s *Store) Check(claim, kind, target string) error {
	_, _, err := s.Own(claim, kind, target)
	return err
}

// Own returns what Mine does, and fails as Check does. Whoever plans a step calls it first: a restore point of the claim means that the
// claim's record was lost, and that the device is no longer what it was.
func (s *Store) Own(claim, kind, target string) (Point, bool, error) {
	p, ok, err := s.Find(kind, target)
	if ok && !p.Has(claim) {
		return Point{}, false, held(target)
	}
	return p, ok, err
}

// Change identifies what one claim changes of one device.
type Change struct {
	// Claim is the claim's UID.
	Claim string
	// Kind and Target are those of the step.
	Kind, Target string
}

// Undo undoes a step: it has the values restored that the claim found, if the claim changed any since this boot, and forgets them. The
// restore point tells them even where the record's step was planned later. If other claims have the point too, nothing is restored, and the
// claim is taken off it.
func Undo[Params any](s *Store, c Change, restore func(before *Params) error) error {
	p, mine, err := s.Mine(c.Claim, c.Kind, c.Target)
	if err != nil {
		return err
	}
	if mine && len(p.Claims()) == 1 {
		before, err := step.Decode[Params](p.Step.Params)
		if err != nil {
			return err
		}
		if err := restore(before); err != nil {
			return err
		}
	}
	return s.End(c.Claim, c.Kind, c.Target)
}

// held does not say which claim it is: whoever reads an error of one claim may not know the other. The file in the directory says it.
func held(target string) error { return fmt.Errorf("%s %w", target, ErrHeld) }

// Mine returns the restore point that a claim wrote since this boot. Without one the claim changed nothing, or has restored everything, or
// the reboot has.
func (s *Store) Mine(claim, kind, target string) (Point, bool, error) {
	p, ok, err := s.Find(kind, target)
	return p, ok && p.Has(claim), err
}

// End removes the restore point of a claim durably, or takes the claim off one that others have too. It leaves alone that of another claim.
// It needs no space on the disk, unless the release before wrote the point.
func (s *Store) End(claim, kind, target string) error {
	p, ok, err := s.read(kind, target)
	if err != nil || !ok || !p.shared() && p.Claim != claim && p.BootID == s.bootID {
		return err
	}
	if p.shared() {
		rest, err := s.leave(p, claim)
		if err != nil || len(rest.Sharers) > 0 && p.BootID == s.bootID {
			return forgot(target, err)
		}
	}
	name, err := s.path(kind, target)
	if err == nil {
		err = s.remove(name)
	}
	return forgot(target, err)
}

func (s *Store) remove(name string) error {
	err := disk.RemoveIfThere(s.fs, name)
	if err == nil {
		err = s.fs.SyncDir(s.dir)
	}
	return err
}

func forgot(target string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("forget what %s was before: %w", target, err)
}

// Unreadable is the error of List for files that cannot be read. The points of all other files are listed.
type Unreadable struct {
	targets []string
	errs    []error
}

// Error says what is wrong with each file.
func (u *Unreadable) Error() string { return errors.Join(u.errs...).Error() }

// Unwrap returns the errors of all files.
func (u *Unreadable) Unwrap() []error { return u.errs }

// About returns what an error of List says of the targets that is selects. What is said of the whole directory is said of each target.
func About(err error, is func(target string) bool) error {
	u, ok := errors.AsType[*Unreadable](err)
	if !ok {
		return err
	}
	var about []error
	for i, target := range u.targets {
		if is(target) {
			about = append(about, u.errs[i])
		}
	}
	return errors.Join(about...)
}

// List returns all restore points since this boot, sorted by their files' names. Those of earlier boots are left out.
func (s *Store) List() ([]Point, error) {
	entries, err := s.fs.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the restore points: %w", err)
	}
	var points []Point
	var faults Unreadable
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), disk.TemporaryPrefix) || strings.HasPrefix(e.Name(), hiddenPrefix) {
			continue
		}
		p, err := s.readPoint(filepath.Join(s.dir, e.Name()))
		if err != nil {
			_, target, _ := strings.Cut(strings.TrimSuffix(e.Name(), suffix), separator)
			faults.targets, faults.errs = append(faults.targets, target), append(faults.errs, err)
		}
		if err == nil && p.BootID == s.bootID && len(p.Claims()) > 0 {
			points = append(points, p)
		}
	}
	if len(faults.errs) > 0 {
		return slices.Clip(points), &faults
	}
	return slices.Clip(points), nil
}

func (s *Store) read(kind, target string) (Point, bool, error) {
	name, err := s.path(kind, target)
	if err != nil {
		return Point{}, false, err
	}
	p, err := s.readPoint(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Point{}, false, nil
	}
	if err != nil {
		return Point{}, false, err
	}
	return p, true, nil
}

// readPoint reads a point with the claims that have it.
func (s *Store) readPoint(name string) (Point, error) {
	p, err := s.readFile(name)
	if err == nil && p.Marked {
		p.Sharers, err = s.marked(p)
	}
	return p, err
}

func (s *Store) readFile(name string) (Point, error) {
	var p Point
	data, err := s.fs.ReadFile(name)
	if err != nil {
		return Point{}, fmt.Errorf("read a restore point: %w", err)
	}
	if err := json.Unmarshal(data, &p); err != nil || !p.known() {
		return Point{}, fmt.Errorf("restore point %s is of version %d, want %d or %d (%w): set the device back by hand and remove the file",
			name, p.Version, version, sharedVersion, errors.Join(err, errMalformed))
	}
	return p, nil
}

var errMalformed = errors.New("it cannot be used")

// nameParts keep file names plain. The kind comes first, since a device may have a restore point for each.
//
//nolint:gochecknoglobals // a constant that Go cannot express as one
var nameParts = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.:-]*$`)

func (s *Store) path(kind, target string) (string, error) {
	if !nameParts.MatchString(kind) || !nameParts.MatchString(target) {
		return "", fmt.Errorf("restore point of %q for %q: want letters, digits, dots, colons and dashes", target, kind)
	}
	return filepath.Join(s.dir, kind+separator+target+suffix), nil
}

// separator is between the parts of a file's name, in none of which it may be.
const separator, suffix = "_", ".json"
