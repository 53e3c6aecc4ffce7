// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

const algorithm = "sha256:"

// Digest is a sha256 digest. Any value is a valid one, so it can be made into a file name; the zero value stands for none.
type Digest [sha256.Size]byte

// DigestOf is the digest of data.
func DigestOf(data []byte) Digest { return sha256.Sum256(data) }

// ParseDigest reads "sha256:" and 64 lower-case hexadecimal digits, the one form that OCI has for it.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	digits, ok := strings.CutPrefix(s, algorithm)
	if !ok || !parseHex(&d, digits) {
		return Digest{}, fmt.Errorf("digest %s is %w: expected sha256: and 64 hexadecimal digits in lower case", quote(s), ErrInvalid)
	}
	return d, nil
}

func parseHex(d *Digest, digits string) bool {
	if len(digits) != hex.EncodedLen(len(d)) || strings.ToLower(digits) != digits {
		return false
	}
	_, err := hex.Decode(d[:], []byte(digits))
	return err == nil && !d.IsZero()
}

// IsZero says that there is no digest.
func (d Digest) IsZero() bool { return d == Digest{} }

// Hex is the 64 hexadecimal digits.
func (d Digest) Hex() string { return hex.EncodeToString(d[:]) }

// String is the OCI form, and empty where there is no digest.
func (d Digest) String() string {
	if d.IsZero() {
		return ""
	}
	return algorithm + d.Hex()
}

// MarshalText is String.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is ParseDigest, with no text for no digest.
func (d *Digest) UnmarshalText(text []byte) (err error) {
	*d = Digest{}
	if len(text) > 0 {
		*d, err = ParseDigest(string(text))
	}
	return err
}
