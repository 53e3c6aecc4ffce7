// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/message"
)

// NormalizeVersion makes a semantic version (semver.org 2.0.0) of at most 64 bytes, as the API wants it, from what drivers
// print: one to three numbers and an optional suffix. Missing numbers become 0, leading zeros go ("550.144.03" is 550.144.3),
// and what a suffix may not contain becomes a dash ("5.14.0-570.el9_6" is 5.14.0-570.el9-6). Four numbers or more are no
// version: dropping some would make different versions equal.
func NormalizeVersion(raw string) (string, error) {
	parts := rawVersion.FindStringSubmatch(strings.TrimSpace(raw))
	if parts == nil {
		return "", notVersion(raw)
	}
	version, ok := numbers(parts[1])
	if !ok {
		return "", notVersion(raw)
	}
	pre, build, _ := strings.Cut(parts[2], "+")
	if ids := identifiers(strings.TrimPrefix(pre, "-"), true); ids != "" {
		version += "-" + ids
	}
	if ids := identifiers(build, false); ids != "" {
		version += "+" + ids
	}
	if len(version) > resourceapi.DeviceAttributeMaxValueLength {
		return "", fmt.Errorf("version %q... has %d bytes, want at most %d", version[:16], len(version),
			resourceapi.DeviceAttributeMaxValueLength)
	}
	return version, nil
}

// rawVersion splits the numbers from a suffix that begins with a dash or a plus.
var rawVersion = regexp.MustCompile(`^v?([0-9]+(?:\.[0-9]+){0,2})([-+][ -~]*)?$`)

func notVersion(raw string) error {
	return fmt.Errorf("version %q: want one to three numbers with dots and an optional suffix, such as 550.54.15",
		message.Clip(raw, resourceapi.DeviceAttributeMaxValueLength))
}

// numbers gives three numbers without leading zeros, each within the 64 bits that comparing code reads.
func numbers(dotted string) (string, bool) {
	parts := strings.Split(dotted, ".")
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 64)
		if err != nil {
			return "", false
		}
		parts[i] = strconv.FormatUint(n, 10)
	}
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	return strings.Join(parts, "."), true
}

// identifiers cleans the dot-separated words of a suffix. Empty ones go; those that are numbers lose leading zeros where the
// standard forbids them, which is in pre-release suffixes only.
func identifiers(dotted string, preRelease bool) string {
	var words []string
	for word := range strings.SplitSeq(dotted, ".") {
		word = strings.Map(identifierRune, word)
		if trimmed := strings.TrimLeft(word, "0"); preRelease && trimmed != word && isDigits(word) {
			word = trimmed
			word = cmp.Or(word, "0")
		}
		if word != "" {
			words = append(words, word)
		}
	}
	return strings.Join(words, ".")
}

func identifierRune(r rune) rune {
	switch {
	case r >= '0' && r <= '9', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r == '-':
		return r
	}
	return '-'
}

func isDigits(word string) bool { return strings.Trim(word, "0123456789") == "" }
