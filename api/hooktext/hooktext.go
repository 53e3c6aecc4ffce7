// SPDX-License-Identifier: Apache-2.0

// Package hooktext says which links and directories the hook of a container can make. It stands apart from the API's types, which bring
// net/http along: the hook checks its arguments with it, too.
package hooktext

import (
	"errors"
	"path"
	"strings"
)

// LinkSeparator is between target and path in an argument of the hook.
const LinkSeparator = "::"

// CheckLoaderDirectory returns what is wrong with a clean path as a directory that a loader searches. Some characters mean something else
// in a loader's configuration.
func CheckLoaderDirectory(dir string) error {
	if strings.ContainsAny(dir, " #=:;,*?[]\\$") {
		return errors.New(`must have none of the characters that mean something to a loader: space # = : ; , * ? [ ] \ $`)
	}
	return nil
}

// CheckLinkTarget returns what is wrong with the target of a link. In an argument the target ends at the first separator.
func CheckLinkTarget(target string) error {
	switch {
	case target == "":
		return errors.New("must not be empty")
	case path.Clean(target) != target:
		return errors.New("must be clean: no //, no ./ at the start and no / at the end; use " + path.Clean(target))
	case strings.Contains(target, LinkSeparator) || strings.HasSuffix(target, ":"):
		return errors.New("must have no :: in it and no : at the end, which separate it from the link's path")
	}
	return nil
}
