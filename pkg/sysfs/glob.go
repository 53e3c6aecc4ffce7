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

// Glob lists the names that match a pattern of path.Match, sorted. As in a shell, a wildcard skips names that begin with a dot. No
// match is no error; a directory on the way that is there but cannot be listed is, and so are more than 1024 matches.
func (t *Tree) Glob(pattern string) ([]string, error) {
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, fmt.Errorf("match %s: %w", HostPath(pattern), err)
	}
	found := []string{"."}
	for element := range strings.SplitSeq(path.Clean(pattern), "/") {
		next, err := t.globLevel(found, element)
		if err != nil {
			return nil, fmt.Errorf("match %s: %w", HostPath(pattern), err)
		}
		found = next
	}
	slices.Sort(found)
	return found, nil
}

// globLevel extends each of dirs by the names in it that match one element of a pattern.
func (t *Tree) globLevel(dirs []string, element string) ([]string, error) {
	var found []string
	for _, dir := range dirs {
		names, err := t.matching(dir, element)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			found = append(found, path.Join(dir, name))
		}
		if len(found) > maxMatches {
			return nil, fmt.Errorf("more than %d matches; name the directories more closely", maxMatches)
		}
	}
	return found, nil
}

func (t *Tree) matching(dir, element string) ([]string, error) {
	if !strings.ContainsAny(element, `*?[\`) {
		if _, err := t.root.Lstat(path.Join(dir, element)); err != nil {
			return nil, ignoreAbsent(failed("look at", path.Join(dir, element), err))
		}
		return []string{element}, nil
	}
	if info, err := t.root.Stat(dir); err != nil || !info.IsDir() {
		return nil, ignoreAbsent(err)
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
