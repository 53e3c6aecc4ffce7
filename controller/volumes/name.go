// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// hashDigits is how many digits of a hash are in names.
	hashDigits = 12
	// maxJobName is the longest name of a Job, which is also a label of its pods.
	maxJobName = validation.LabelValueMaxLength
)

// ClaimName returns the name of a cache's claim: the cache's own name, or CACHE-NODE for the claim of a node. It is simple because pods
// name it and the admission policy of the chart builds it too. Two caches can have one name, and then only the first has the claim. A
// name longer than 253 characters ends in a hash of both parts.
func ClaimName(cache, node string) string {
	if node == "" {
		return cache
	}
	return shorten(cache+"-"+node, cache+"\x00"+node, validation.DNS1123SubdomainMaxLength)
}

// JobName returns the name of the Job that writes a digest into a claim, for a path if there is one. It ends in the first digits of the
// digest, or of a hash of digest and path, so that a Job is not mistaken for one of another digest or path.
func JobName(claim, digest, path string) string {
	_, digits, _ := strings.Cut(digest, ":")
	if path != "" {
		sum := sha256.Sum256([]byte(digest + "\x00" + path))
		digits = hex.EncodeToString(sum[:])
	}
	digits = digits[:min(len(digits), hashDigits)]
	return shorten(claim, claim, maxJobName-1-len(digits)) + "-" + digits
}

// shorten returns the name, or its start and a hash of its parts if it is too long.
func shorten(name, from string, longest int) string {
	if len(name) <= longest {
		return name
	}
	sum := sha256.Sum256([]byte(from))
	return strings.TrimRight(name[:longest-hashDigits-1], "-.") + "-" + hex.EncodeToString(sum[:])[:hashDigits]
}
