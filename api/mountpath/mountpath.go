// SPDX-License-Identifier: Apache-2.0

// Package mountpath says which directories of a container something may be mounted at. It stands apart from the API's types, which bring
// net/http along: packages whose code mounts check paths, too.
package mountpath

import (
	"path"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxLength is how many bytes a directory of a container may have.
const MaxLength = 256

// FettleDir is the directory of a container that is Fettle's: what links in other places lead to is mounted below it.
const FettleDir = "/.fettle"

// ReservedTrees are the directories of a container that the runtime, the dynamic loader, Kubernetes or Fettle relies on. Whoever could
// mount over one of them, or over a parent, could feed a hook that runs with the host's rights, or have the runtime make the places for our
// own mounts in a directory of the host.
func ReservedTrees() []string {
	return []string{
		"/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run/secrets", "/sbin", "/sys",
		"/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/local/fettle", "/usr/sbin", "/var/run",
		FettleDir,
	}
}

// ClosedTrees are the directories that no object may mount over.
func ClosedTrees() []string { return []string{"/proc", "/sys", FettleDir} }

// Validate returns what is wrong with a directory of a container that something is to be mounted at.
func Validate(dir string, at *field.Path) field.ErrorList {
	switch {
	case len(dir) > MaxLength:
		return field.ErrorList{field.TooLong(at, "", MaxLength)}
	case !strings.HasPrefix(dir, "/"):
		return field.ErrorList{field.Invalid(at, dir, "must be absolute: start it with /")}
	case path.Clean(dir) != dir:
		return field.ErrorList{field.Invalid(at, dir, "must be clean: no //, no . or .. and no / at the end; use "+path.Clean(dir))}
	case strings.ContainsFunc(dir, Unprintable):
		return field.ErrorList{field.Invalid(at, dir, "must have printable characters only")}
	}
	for _, tree := range ReservedTrees() {
		if Overlap(dir, tree) {
			return field.ErrorList{field.Invalid(at, dir, "must not cover or lie in "+tree+": use a directory such as /mnt/data")}
		}
	}
	return nil
}

// Within reports whether the clean absolute path dir is tree or lies below it.
func Within(dir, tree string) bool {
	return dir == tree || tree == "/" || strings.HasPrefix(dir, tree+"/")
}

// Overlap reports whether two clean absolute paths are one path or one lies below the other. Of mounts at such paths one hides the other,
// or has no place for it.
func Overlap(a, b string) bool { return Within(a, b) || Within(b, a) }

// Check is Validate for a directory that no object names: one that the content of an image asks for.
func Check(dir string) error { return Validate(dir, field.NewPath("path")).ToAggregate() }

// Unprintable says whether a character must not be in a path.
func Unprintable(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }
