// SPDX-License-Identifier: Apache-2.0

package container

import (
	"fmt"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The device cgroup's limits (include/linux/kdev_t.h): 12 bits of major, 20 of minor.
const (
	maxMajor = 1<<12 - 1
	maxMinor = 1<<20 - 1
)

// Validate lists everything that a container runtime cannot do.
func (e Edits) Validate() []error {
	var faults []error
	seen := map[string]bool{}
	at := func(what, containerPath string) {
		if !path.IsAbs(containerPath) || path.Clean(containerPath) != containerPath || containerPath == "/" {
			faults = append(faults, fmt.Errorf("%s %q: want a clean absolute path", what, containerPath))
		}
		if seen[containerPath] {
			faults = append(faults, fmt.Errorf("%s %q appears twice", what, containerPath))
		}
		seen[containerPath] = true
	}
	for _, node := range e.Nodes {
		at("node", node.Path)
		if node.Major < 1 || node.Major > maxMajor || node.Minor < 0 || node.Minor > maxMinor {
			faults = append(faults, fmt.Errorf("node %q: numbers %d:%d, want 1-%d:0-%d",
				node.Path, node.Major, node.Minor, maxMajor, maxMinor))
		}
		if node.Permissions == "" || strings.Trim(node.Permissions, "rwm") != "" {
			faults = append(faults, fmt.Errorf("node %q: permissions %q, want letters of rwm", node.Path, node.Permissions))
		}
	}
	for _, mount := range e.Mounts {
		at("mount", mount.ContainerPath)
		if !path.IsAbs(mount.HostPath) || path.Clean(mount.HostPath) != mount.HostPath {
			faults = append(faults, fmt.Errorf("mount of %q: want a clean absolute path", mount.HostPath))
		}
	}
	return faults
}

// CheckVariable refuses a variable, NAME=VALUE, that no CDI spec can hold. The runtime reads the spec's JSON as YAML, which has no control
// characters, and encoding/json replaces bytes that are not UTF-8.
func CheckVariable(text string) error {
	name, value, ok := strings.Cut(text, "=")
	value = strings.NewReplacer("\n", "", "\t", "").Replace(value)
	if !ok || name == "" || strings.ContainsFunc(name, Unprintable) || strings.ContainsFunc(value, Unprintable) {
		return fmt.Errorf("variable %q: want NAME=VALUE of printable characters, tabs and line feeds", text)
	}
	return nil
}

// Unprintable reports whether a character must not be in a CDI spec.
func Unprintable(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }
