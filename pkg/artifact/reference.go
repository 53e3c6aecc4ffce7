// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/fettle-dev/fettle/api/registryname"
)

const longestReference = 1024

// tagForm is the grammar of the distribution specification, as that of registryname is; the library's own is wider, and lets ".." through
// into the path of a URL.
var tagForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// Reference names an artifact by tag or digest. It is comparable.
type Reference struct {
	registry   string
	repository string
	tag        string
	digest     Digest
}

// ParseReference reads a reference as a pod's image is read: the registry is docker.io and the tag latest where there is none, and of
// a tag and a digest the digest counts.
func ParseReference(s string) (Reference, error) {
	if len(s) > longestReference {
		return Reference{}, invalidReference(s, fmt.Sprintf("at most %d characters", longestReference))
	}
	parsed, err := name.ParseReference(s, name.WeakValidation)
	if err != nil {
		return Reference{}, invalidReference(s, "REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:DIGEST")
	}
	repository := parsed.Context()
	r := Reference{registry: registryname.Host(repository.RegistryStr()), repository: repository.RepositoryStr()}
	if err := registryname.Check(r.Repository()); err != nil {
		return Reference{}, invalidReference(s, strings.TrimPrefix(err.Error(), "expected "))
	}
	if tag, ok := parsed.(name.Tag); ok {
		if r.tag = tag.TagStr(); !tagForm.MatchString(r.tag) {
			return Reference{}, invalidReference(s, "a tag of letters, digits, _, . and - that begins with none of the last two")
		}
		return r, nil
	}
	if r.digest, err = ParseDigest(parsed.Identifier()); err != nil {
		return Reference{}, invalidReference(s, "a digest of sha256")
	}
	return r, nil
}

func invalidReference(s, expected string) error {
	return fmt.Errorf("reference %s is %w: expected %s", quote(s), ErrInvalid, expected)
}

// Registry is the host, with its port where there is one.
func (r Reference) Registry() string { return r.registry }

// Repository is the host and the path below it, without tag or digest.
func (r Reference) Repository() string { return r.registry + "/" + r.repository }

// Path is the repository without its registry.
func (r Reference) Path() string { return r.repository }

// Tag is empty where there is a digest.
func (r Reference) Tag() string { return r.tag }

// Digest is zero where there is a tag.
func (r Reference) Digest() Digest { return r.digest }

// WithDigest names one content of the same repository.
func (r Reference) WithDigest(d Digest) Reference {
	r.tag, r.digest = "", d
	return r
}

// WithTag names what a tag of the same repository names.
func (r Reference) WithTag(tag string) (Reference, error) {
	if !tagForm.MatchString(tag) {
		return Reference{}, fmt.Errorf("the tag %s is %w: expected letters, digits, _, . and -", quote(tag), ErrInvalid)
	}
	r.tag, r.digest = tag, Digest{}
	return r, nil
}

// In names the same tag or digest in another repository, given as REGISTRY/PATH.
func (r Reference) In(repository string) (Reference, error) {
	if err := registryname.Check(repository); err != nil {
		return Reference{}, invalidReference(repository, strings.TrimPrefix(err.Error(), "expected "))
	}
	r.registry, r.repository, _ = strings.Cut(repository, "/")
	r.registry = registryname.Host(r.registry)
	return r, nil
}

// String is the full form, which parses to the same reference.
func (r Reference) String() string {
	if r.tag != "" {
		return r.Repository() + ":" + r.tag
	}
	return r.Repository() + "@" + r.digest.String()
}

// Identifier is what stands for the reference in a URL: the tag, or the digest.
func (r Reference) Identifier() string {
	if r.tag != "" {
		return r.tag
	}
	return r.digest.String()
}

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
