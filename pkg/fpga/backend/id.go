// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"encoding/hex"
	"strings"
)

// ValidID reports whether an interface or image id has the form that Fettle writes, 32 hexadecimal digits in lower case. All 0 and all f
// mean "none" and are not valid.
func ValidID(id string) bool {
	const digits = 32
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == digits/2 && id == strings.ToLower(id) && strings.Trim(id, "0") != "" && strings.Trim(id, "f") != ""
}

// CanonicalID converts a uuid as drivers print it, with dashes or in upper case, to the form that Fettle writes. It returns "" for other
// text.
func CanonicalID(text string) string {
	id := strings.ToLower(strings.ReplaceAll(strings.TrimSpace(text), "-", ""))
	if !ValidID(id) {
		return ""
	}
	return id
}
