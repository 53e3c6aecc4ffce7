// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// hashDigits is how much of a hash is in names.
	hashDigits = 12
	// maxJobName is how long a Job's name may be, which is a label of its pods.
	maxJobName = validation.LabelValueMaxLength
)

// ClaimName is the claim of a cache: the cache's own name, or CACHE-NODE for a node's. Pods name it, and the admission policy of the chart
// makes it of the same two, so it is that simple; two caches can meet in one name, and then only the first one has the claim. Where it
// would be longer than 253 characters, its end is a hash of both.
func ClaimName(cache, node string) string {
	if node == "" {
		return cache
	}
	return shortened(cache+"-"+node, cache+"\x00"+node, validation.DNS1123SubdomainMaxLength)
}

// JobName is the Job that puts a digest into a claim, for a path if there is one. Its end is the digest's begin, or a hash of both, so
// that a Job is not taken for one of another digest or path.
func JobName(claim, digest, path string) string {
	_, digits, _ := strings.Cut(digest, ":")
	if path != "" {
		sum := sha256.Sum256([]byte(digest + "\x00" + path))
		digits = hex.EncodeToString(sum[:])
	}
	digits = digits[:min(len(digits), hashDigits)]
	return shortened(claim, claim, maxJobName-1-len(digits)) + "-" + digits
}

// shortened is a name, or its begin and a hash of what it is made from.
func shortened(name, from string, longest int) string {
	if len(name) <= longest {
		return name
	}
	sum := sha256.Sum256([]byte(from))
	return strings.TrimRight(name[:longest-hashDigits-1], "-.") + "-" + hex.EncodeToString(sum[:])[:hashDigits]
}
