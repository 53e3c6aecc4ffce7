// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"encoding/hex"
	"strings"
)

// ValidID accepts interface and image ids as Fettle writes them, 32 hexadecimal digits in lower case, apart from those that mean none:
// all 0 and all f.
func ValidID(id string) bool {
	const digits = 32
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == digits/2 && id == strings.ToLower(id) && strings.Trim(id, "0") != "" && strings.Trim(id, "f") != ""
}

// CanonicalID makes Fettle's form of a uuid as drivers print it, with dashes or in upper case; empty if it is none.
func CanonicalID(text string) string {
	id := strings.ToLower(strings.ReplaceAll(strings.TrimSpace(text), "-", ""))
	if !ValidID(id) {
		return ""
	}
	return id
}
