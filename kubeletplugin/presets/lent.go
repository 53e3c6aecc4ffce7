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
	// known are the paths of the last time. complete: they include those of all claims of earlier processes, each of which could be read.
	known    map[string]bool
	complete bool
}

// with adds to the paths that presets give for writing now those that claims have by presets that do not any more, sorted. It reads the
// claims' records only while there may be such.
func (l *lent) with(now []string) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	given := map[string]bool{}
	for _, name := range now {
		given[name] = true
	}
	former := func(name string) bool { return !given[name] }
	if !l.complete || slices.ContainsFunc(slices.Collect(maps.Keys(l.known)), former) {
		held, all, err := l.held()
		if err != nil {
			return nil, err
		}
		if !all { // such a record may have any of them
			maps.Copy(given, l.known)
		}
		maps.Copy(given, held)
		l.complete = all
	}
	l.known = given
	return slices.Sorted(maps.Keys(given)), nil
}

// held returns the paths that claims have for writing, by their records, and whether all of these could be read.
func (l *lent) held() (paths map[string]bool, all bool, err error) {
	uids, err := l.records.UIDs()
	if err != nil {
		return nil, false, err
	}
	paths, all = map[string]bool{}, l.records.CheckDoubt() == nil
	for _, uid := range uids {
		r, err := l.records.Load(uid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			all = false
			continue
		}
		decided, err := decodeDecision(r.Decisions[featureName])
		all = all && err == nil
		for _, name := range append(writes(decided), hostDirectories(r)...) {
			if !l.isConfigured(name) {
				paths[name] = true
			}
		}
	}
	return paths, all, nil
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
func writes(decided map[string]preset.Request) (paths []string) {
	for _, request := range decided {
		for i := range request.Mounts {
			if m := &request.Mounts[i]; isForWriting(&m.PresetMount) {
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

// writable lists the paths of the host that containers write to by presets of the cluster. A preset that cannot be read gives none: no
// claim gets what it says.
func (f *Feature) writable(ofCluster func() ([]any, error)) ([]string, error) {
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
	return f.lent.with(paths)
}
