// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// maxMatches bounds a glob at each level, so that a careless pattern costs an error instead of the node.
const maxMatches = 1024

// errTooMany ends a glob; other errors cost it one directory.
var errTooMany = fmt.Errorf("more than %d matches: name the directories more closely", maxMatches)

// Glob lists the names that match a pattern of path.Match, sorted. As in a shell, a wildcard skips names that begin with a dot.
// No match is no error. The error joins what stood in the way, such as a directory that cannot be listed or a link that leads
// outside; beside it are the matches that could be found. There are at most 1024.
func (t *Tree) Glob(pattern string) ([]string, error) {
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, fmt.Errorf("match %s: %w", HostPath(pattern), err)
	}
	found := []string{"."}
	var faults []error
	for element := range strings.SplitSeq(path.Clean(pattern), "/") {
		var err error
		found, err = t.globLevel(found, element)
		faults = append(faults, err)
	}
	slices.Sort(found)
	if err := errors.Join(faults...); err != nil {
		return found, fmt.Errorf("match %s: %w", HostPath(pattern), err)
	}
	return found, nil
}

// globLevel extends each of dirs by the names in it that match one element of a pattern.
func (t *Tree) globLevel(dirs []string, element string) ([]string, error) {
	var found []string
	var faults []error
	for _, dir := range dirs {
		names, err := t.matching(dir, element)
		faults = append(faults, err)
		for _, name := range names {
			found = append(found, path.Join(dir, name))
		}
		if len(found) > maxMatches {
			return nil, errTooMany
		}
	}
	return found, errors.Join(faults...)
}

func (t *Tree) matching(dir, element string) ([]string, error) {
	if !strings.ContainsAny(element, `*?[\`) {
		if _, err := t.root.lstat(path.Join(dir, element)); err != nil {
			return nil, ignoreAbsent(failed("look at", path.Join(dir, element), err))
		}
		return []string{element}, nil
	}
	info, err := t.root.stat(dir)
	if err != nil {
		return nil, ignoreAbsent(failed("look at", dir, err))
	}
	if !info.IsDir() {
		return nil, nil
	}
	names, err := t.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool {
		ok, _ := path.Match(element, name) // The pattern was checked as a whole.
		return !ok || name[0] == '.' && element[0] != '.'
	}), nil
}

// ignoreAbsent drops the errors that mean that nothing is there: no such file, or a plain file where a directory was looked for.
func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) || isNotDir(err) {
		return nil
	}
	return err
}
