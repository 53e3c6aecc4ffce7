// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"strings"
	"unicode/utf8"
)

const (
	maxPart  = 255
	maxDepth = 32
	maxPath  = 4096
)

// checkName checks the name of an entry and returns it without the slash at the end of a directory's.
func checkName(name string, dir bool) (string, *Error) {
	if dir {
		name = strings.TrimSuffix(name, "/")
	}
	switch {
	case name == "":
		return "", violation(RuleName, "it is empty: expected a relative path")
	case len(name) > maxPath:
		return "", violation(RuleName, "it has %d bytes, expected at most %d", len(name), maxPath)
	case !utf8.ValidString(name):
		return "", violation(RuleName, "it is not UTF-8")
	case strings.ContainsRune(name, 0):
		return "", violation(RuleName, "it has a NUL")
	case name[0] == '/':
		return "", violation(RuleName, "it is absolute, expected a relative path")
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		depth++
		switch {
		case part == "" || part == "." || part == "..":
			return "", violation(RuleName, "it has a part %q, expected none that is empty, . or ..", part)
		case len(part) > maxPart:
			return "", violation(RuleName, "it has a part of %d bytes, expected at most %d", len(part), maxPart)
		case depth > maxDepth:
			return "", violation(RuleName, "it has more than %d parts", maxDepth)
		}
	}
	return name, nil
}

// allowed reports whether a name is one of the paths, lies below one that ends in a slash, or is a directory on the way to one.
func allowed(paths []string, name string, dir bool) bool {
	for _, p := range paths {
		switch below := strings.HasSuffix(p, "/"); {
		case below && strings.HasPrefix(name, p):
			return true
		case !below && !dir && name == p:
			return true
		case dir && strings.HasPrefix(p, name+"/"):
			return true
		}
	}
	return false
}
