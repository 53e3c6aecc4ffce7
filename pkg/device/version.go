// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/message"
)

// NormalizeVersion makes a semantic version (semver.org 2.0.0) of at most 64 bytes, as the API wants it, from what drivers print: numbers
// with dots and an optional suffix. Missing numbers become 0, leading zeros go ("550.144.03" is 550.144.3), and what a suffix may not
// contain becomes a dash ("5.14.0-570.el9_6" is 5.14.0-570.el9-6). What a semantic version has no place for stands behind a plus, where
// comparisons ignore it: numbers beyond three ("6.19.14.31400000" is 6.19.14+31400000), the epoch of a package ("1:25.3" is
// 25.3.0+epoch-1), and a hash of what does not fit into 64 bytes. Different texts may compare as equal then: see HidesText.
func NormalizeVersion(raw string) (string, error) {
	raw = strings.TrimSpace(raw)
	parts := rawVersion.FindStringSubmatch(raw)
	if parts == nil {
		return "", notVersion(raw)
	}
	epoch, dotted, more, suffix := parts[1], parts[2], parts[3], parts[4]
	version, ok := numbers(dotted)
	if !ok {
		return "", notVersion(raw)
	}
	pre, build, _ := strings.Cut(suffix, "+")
	switch {
	case pre == "":
	case pre[0] == '-', pre[0] == '~':
		pre = pre[1:]
	default: // "1.2.3a", "1.2.3_4": whether that is earlier or later the text does not tell
		pre, build = "", suffix
	}
	if epoch != "" {
		epoch = "epoch-" + strings.TrimSuffix(epoch, ":")
	}
	build = strings.Join([]string{strings.TrimPrefix(more, "."), epoch, build}, ".")
	return fitted(version, identifiers(pre, true), identifiers(build, false), raw), nil
}

// HidesText reports whether comparisons of a version ignore a part of the text that it was made from.
func HidesText(version string) bool { return strings.Contains(version, "+") }

// VersionText returns what a driver prints as a text of at most 64 bytes. Of one that is longer, what fits is kept with a hash of it.
func VersionText(raw string) string {
	raw = strings.TrimSpace(raw)
	if len(raw) <= resourceapi.DeviceAttributeMaxValueLength {
		return raw
	}
	room := resourceapi.DeviceAttributeMaxValueLength - 1 - hashDigits
	return strings.ToValidUTF8(raw[:room], "") + "+" + hash(raw)
}

// rawVersion splits an epoch, up to three numbers, further numbers, and a suffix that begins with something else.
var rawVersion = regexp.MustCompile(`^([0-9]+:)?v?([0-9]+(?:\.[0-9]+){0,2})((?:\.[0-9]+)*)([^0-9.][ -~]*)?$`)

func notVersion(raw string) error {
	return fmt.Errorf("version %q: want numbers with dots and an optional suffix, such as 550.54.15",
		message.Clip(raw, resourceapi.DeviceAttributeMaxValueLength))
}

// fitted joins the parts of a version. Of one that is too long, what fits is kept with a hash of the whole text.
func fitted(version, pre, build, raw string) string {
	const limit = resourceapi.DeviceAttributeMaxValueLength
	if pre != "" {
		version += "-" + pre
	}
	if build == "" && len(version) <= limit || build != "" && len(version)+1+len(build) <= limit {
		return strings.TrimSuffix(version+"+"+build, "+")
	}
	if room := limit - 1 - hashDigits; len(version) > room {
		version = strings.TrimRight(version[:room], ".-")
	}
	return version + "+" + hash(raw)
}

// hashDigits is the length of a hash.
const hashDigits = 8

// hash tells texts apart that begin alike.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:hashDigits]
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
