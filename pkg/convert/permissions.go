// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// permissionLine is a command that changes owner or mode of files, and nothing else.
var permissionLine = regexp.MustCompile(`^(?:chown|chmod)(?: -[A-Za-z]+)* [0-9A-Za-z:+=,-]+((?: /[A-Za-z0-9._/-]+)+)$`)

// dropPermissions removes the init containers that only make a volume readable: files of a cache are readable by anybody.
func (c *conversion) dropPermissions(w *workload, volumes map[string]*oldCache) {
	list := child(w.spec, "initContainers")
	var kept []*node
	for _, n := range items(list) {
		if !onlyPermissions(n, mountedAt(n, volumes)) {
			kept = append(kept, n)
			continue
		}
		c.notef("%s: init container %s is left out: it only set owner and mode of the cache's files, which anybody may read", w.title,
			clip(value(n, "name")))
	}
	if len(kept) == len(items(list)) {
		return
	}
	if list.Content = kept; len(kept) == 0 {
		removeKey(w.spec, "initContainers")
	}
}

// mountedAt are the paths at which a container has caches.
func mountedAt(n *node, volumes map[string]*oldCache) []string {
	var paths []string
	for _, m := range items(child(n, "volumeMounts")) {
		if volumes[value(m, "name")] != nil {
			paths = append(paths, path.Clean(value(m, "mountPath")))
		}
	}
	return paths
}

// onlyPermissions says that all that a container does is to change owner and mode of files below paths.
func onlyPermissions(n *node, below []string) bool {
	var words []string
	for _, key := range []string{"command", "args"} {
		for _, word := range items(child(n, key)) {
			words = append(words, word.Value)
		}
	}
	lines := []string{strings.Join(words, " ")}
	if len(words) == 3 && slices.Contains([]string{"sh", "/bin/sh", "bash", "/bin/bash"}, words[0]) && words[1] == "-c" {
		lines = strings.FieldsFunc(strings.ReplaceAll(words[2], "&&", "\n"), func(r rune) bool { return r == '\n' || r == ';' })
	}
	found := false
	for _, line := range lines {
		line = strings.Join(strings.Fields(line), " ")
		if line == "" || line == "set -e" || strings.HasPrefix(line, "#") {
			continue
		}
		m := permissionLine.FindStringSubmatch(line)
		if m == nil || !allBelow(strings.Fields(m[1]), below) {
			return false
		}
		found = true
	}
	return found
}

// allBelow says that each path is one of the directories or in it.
func allBelow(paths, directories []string) bool {
	return !slices.ContainsFunc(paths, func(p string) bool {
		p = path.Clean(p)
		return !slices.ContainsFunc(directories, func(d string) bool { return p == d || strings.HasPrefix(p, strings.TrimSuffix(d, "/")+"/") })
	})
}
