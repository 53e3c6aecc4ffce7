// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"sync"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/record"
)

// lent knows the paths of the host that containers write to by presets of the cluster, and by a configuration of the node that has changed.
// A preset or a configuration that is edited takes none of them from a container that runs.
type lent struct {
	records *record.Store
	// configured are the paths, or patterns of paths, that containers may write to by the configuration: the finder knows these.
	configured []string

	mu sync.Mutex
	// known are the paths of the last time.
	known map[string]bool
	// seen are the claims whose records were read: known has what they write to. Another process may add claims in a rolling update.
	seen map[string]bool
	// planned are the paths of claims that may not have a record yet, by UID.
	planned map[string][]string
}

// with notes that a claim is about to get some paths for writing. To the paths that presets give for writing now it adds those that other
// claims have by presets that do not any more, sorted. It reads the record of a claim again only while there may be such.
func (l *lent) with(claim string, own, now []string) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	given := map[string]bool{}
	for _, name := range append(now, l.beingPlanned(claim)...) {
		given[name] = true
	}
	uids, err := l.records.UIDs() // after the look at the claims that are being planned: one that is no more has its record
	if err != nil {
		return nil, err
	}
	unread := slices.DeleteFunc(slices.Clone(uids), func(uid string) bool { return l.seen[uid] })
	former := func(name string) bool { return !given[name] }
	if slices.ContainsFunc(slices.Collect(maps.Keys(l.known)), former) {
		unread = uids
	}
	held, failed := l.held(unread)
	if len(failed) > 0 || l.records.CheckDoubt() != nil { // such a record may have any of them
		maps.Copy(given, l.known)
	}
	maps.Copy(given, held)
	l.known, l.seen = given, map[string]bool{}
	for _, uid := range uids {
		l.seen[uid] = !failed[uid]
	}
	l.plan(claim, own)
	return slices.Sorted(maps.Keys(given)), nil
}

// plan notes what a claim gets for writing if it is prepared.
func (l *lent) plan(claim string, paths []string) {
	paths = slices.DeleteFunc(paths, l.isConfigured)
	if len(paths) == 0 {
		return
	}
	if l.planned == nil {
		l.planned = map[string][]string{}
	}
	l.planned[claim] = paths
}

// beingPlanned returns the paths of the claims, but one, whose Prepare may still write a record, and forgets those of all others. A claim
// is locked from before its plan until after that.
func (l *lent) beingPlanned(but string) (paths []string) {
	for claim, own := range l.planned {
		hold, _ := l.records.TryLockClaim(claim)
		switch {
		case hold != nil:
			hold.Release()
			delete(l.planned, claim)
		case claim != but: // also where that cannot be told
			paths = append(paths, own...)
		}
	}
	return paths
}

// held returns the paths that claims have for writing, by their records, and the claims of which that cannot be told.
func (l *lent) held(uids []string) (paths, failed map[string]bool) {
	paths, failed = map[string]bool{}, map[string]bool{}
	for _, uid := range uids {
		r, err := l.records.Load(uid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			failed[uid] = true
			continue
		}
		decided, err := decodeDecision(r.Decisions[featureName])
		if err != nil {
			failed[uid] = true
		}
		for _, name := range append(writes(slices.Collect(maps.Values(decided))), hostDirectories(r)...) {
			if !l.isConfigured(name) {
				paths[name] = true
			}
		}
	}
	return paths, failed
}

// isConfigured reports whether a path is one that containers may write to by the configuration, or lies below one.
func (l *lent) isConfigured(name string) bool {
	for ; name != "/" && name != "."; name = path.Dir(name) {
		if slices.ContainsFunc(l.configured, func(tree string) bool {
			matches, err := path.Match(tree, name)
			return tree == name || err == nil && matches
		}) {
			return true
		}
	}
	return false
}

// writes lists what a claim has for writing by presets.
func writes(decided []preset.Request) (paths []string) {
	for i := range decided {
		for j := range decided[i].Mounts {
			if m := &decided[i].Mounts[j]; isForWriting(&m.PresetMount) {
				paths = append(paths, m.HostPath)
			}
		}
	}
	return paths
}

// hostDirectories lists what a claim has for writing of host devices.
func hostDirectories(r *record.Record) (paths []string) {
	for i := range r.Devices {
		if r.Devices[i].Kind() != device.KindHost {
			continue
		}
		for _, m := range r.Devices[i].Edits.Mounts {
			if !m.ReadOnly {
				paths = append(paths, m.HostPath)
			}
		}
	}
	return paths
}

func isForWriting(m *v1alpha1.PresetMount) bool {
	return m.ReadOnly != nil && !*m.ReadOnly && m.HostPath != ""
}

// writable lists the paths of the host that containers write to by presets of the cluster, for a claim that gets what some requests say. A
// preset that cannot be read gives none: no claim gets what it says.
func (f *Feature) writable(claim string, requests []preset.Request, ofCluster func() ([]any, error)) ([]string, error) {
	objects, err := ofCluster()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnread, err)
	}
	var paths []string
	for _, object := range objects {
		known, ok := object.(*readPreset)
		if !ok {
			continue
		}
		for i := range known.preset.Rules.Mounts {
			if m := &known.preset.Rules.Mounts[i]; isForWriting(m) {
				paths = append(paths, m.HostPath)
			}
		}
	}
	return f.lent.with(claim, writes(requests), paths)
}
