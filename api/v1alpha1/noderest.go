// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
)

// MaxNodeStatus is how many bytes of JSON a plugin writes to the status of its AcceleratorNode.
const MaxNodeStatus = 8192

// NodeRest has in short what the lists of a status have no room for. A status of at most 8192 bytes with all in its lists has none.
//
// Each entry of KernelCaches and of Presets has 12 characters of base64url: six bytes of the SHA-256 of the node's boot, the namespace and
// the name, and three of data. The boot keeps tenants from choosing a name that looks like another's here.
type NodeRest struct {
	// KernelCaches has 12 characters for a cache that kernelCaches does not list. Its data are the first two bytes of its digest and one of
	// its phase, which GPUs it fits, and the number of claims that have it, at most 15.
	// +kubebuilder:validation:MaxLength=3072
	// +optional
	KernelCaches string `json:"kernelCaches,omitempty"`
	// KernelCacheCount is how many caches kernelCaches does not list, and FailedKernelCacheCount how many of these the node could not get.
	// +kubebuilder:validation:Minimum=0
	// +optional
	KernelCacheCount int32 `json:"kernelCacheCount,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	FailedKernelCacheCount int32 `json:"failedKernelCacheCount,omitempty"`
	// Bitstreams has 6 characters for a file that bitstreams does not list: the first 36 bits of its digest, in base64url.
	// +kubebuilder:validation:MaxLength=1536
	// +optional
	Bitstreams string `json:"bitstreams,omitempty"`
	// BitstreamCount is how many files bitstreams does not list.
	// +kubebuilder:validation:Minimum=0
	// +optional
	BitstreamCount int32 `json:"bitstreamCount,omitempty"`
	// Presets has 12 characters for a preset that presets does not list. Its data is the number of claims.
	// +kubebuilder:validation:MaxLength=3072
	// +optional
	Presets string `json:"presets,omitempty"`
	// PresetCount is how many presets the list leaves out.
	// +kubebuilder:validation:Minimum=0
	// +optional
	PresetCount int32 `json:"presetCount,omitempty"`
	// PartitionPolicyCount is how many policies that select the node partitionPolicies does not list.
	// +kubebuilder:validation:Minimum=0
	// +optional
	PartitionPolicyCount int32 `json:"partitionPolicyCount,omitempty"`
}

// The lengths of entries, in characters.
const (
	restKey    = 8
	restEntry  = restKey + 4
	restDigest = 6
)

// The bits of the last byte of a cache's entry.
const (
	restPhase       = 0x03 // an index of restPhases
	restCompatible  = 0x04
	restUnfit       = 0x08 // it fits none of the node's GPUs
	restClaims      = 0xf0
	restClaimsShift = 4
)

// restPhases are the phases by their numbers.
func restPhases() []NodeCachePhase {
	return []NodeCachePhase{NodeCacheDownloading, NodeCacheExtracted, NodeCacheError}
}

// keyOf returns the key of an object in the entries of a node.
func (s *AcceleratorNodeStatus) keyOf(namespace, name string) string {
	boot := ""
	if s.Facts != nil {
		boot = s.Facts.BootID
	}
	sum := sha256.Sum256([]byte(boot + "\x00" + namespace + "/" + name))
	return base64.RawURLEncoding.EncodeToString(sum[:6])
}

// AddRestCache adds the entry of a cache to a text. The status has its facts.
func (s *AcceleratorNodeStatus) AddRestCache(to string, c *NodeCache) string {
	data := [3]byte{}
	digest, err := hex.DecodeString(strings.TrimPrefix(c.Digest, "sha256:"))
	if err == nil {
		copy(data[:2], digest)
	}
	for i, phase := range restPhases() {
		if phase == c.Phase {
			data[2] = byte(i)
		}
	}
	if c.CompatibleDevices > 0 {
		data[2] |= restCompatible
	} else if c.IncompatibleDevices > 0 {
		data[2] |= restUnfit
	}
	data[2] |= byte(min(max(c.Claims, 0), 15)) << restClaimsShift
	return to + s.keyOf(c.Namespace, c.Name) + base64.RawURLEncoding.EncodeToString(data[:])
}

// AddRestPreset adds the entry of a preset to a text.
func (s *AcceleratorNodeStatus) AddRestPreset(to string, p *NodePreset) string {
	claims := min(max(p.Claims, 0), 1<<24-1)
	data := []byte{byte(claims >> 16), byte(claims >> 8), byte(claims)}
	return to + s.keyOf(p.Namespace, p.Name) + base64.RawURLEncoding.EncodeToString(data)
}

// AddRestBitstream adds the entry of a file to a text.
func AddRestBitstream(to, digest string) string { return to + shortDigest(digest) }

func shortDigest(digest string) string {
	sum, err := hex.DecodeString(strings.TrimPrefix(digest, "sha256:"))
	if err != nil || len(sum) < restDigest {
		return strings.Repeat("-", restDigest)
	}
	return base64.RawURLEncoding.EncodeToString(sum[:restDigest])[:restDigest]
}

// find returns the data of the entries of an object.
func (s *AcceleratorNodeStatus) find(entries, namespace, name string) (data [][3]byte) {
	if entries == "" {
		return nil
	}
	key := s.keyOf(namespace, name)
	for ; len(entries) >= restEntry; entries = entries[restEntry:] {
		if entries[:restKey] != key {
			continue
		}
		var one [3]byte
		if n, err := base64.RawURLEncoding.Decode(one[:], []byte(entries[restKey:restEntry])); err == nil && n == len(one) {
			data = append(data, one)
		}
	}
	return data
}

// CachesOf returns what the node reports of a cache, listed or in short. An entry in short has the one of the digests whose first bytes it
// has, or none, no text, and 1 for any number of devices.
func (s *AcceleratorNodeStatus) CachesOf(namespace, name string, digests ...string) (out []NodeCache) {
	for i := range s.KernelCaches {
		if c := &s.KernelCaches[i]; c.Namespace == namespace && c.Name == name {
			out = append(out, *c)
		}
	}
	if s.Rest == nil {
		return out
	}
	for _, data := range s.find(s.Rest.KernelCaches, namespace, name) {
		c := NodeCache{Namespace: namespace, Name: name, Claims: int32(data[2] & restClaims >> restClaimsShift)}
		if phases := restPhases(); int(data[2]&restPhase) < len(phases) {
			c.Phase = phases[data[2]&restPhase]
		}
		if data[2]&restCompatible != 0 {
			c.CompatibleDevices = 1
		}
		if data[2]&restUnfit != 0 {
			c.IncompatibleDevices = 1
		}
		for _, digest := range digests {
			if strings.HasPrefix(digest, "sha256:"+hex.EncodeToString(data[:2])) {
				c.Digest = digest
			}
		}
		out = append(out, c)
	}
	return out
}

// PresetClaims returns how many claims have something from a preset, and whether the node reports the preset.
func (s *AcceleratorNodeStatus) PresetClaims(namespace, name string) (claims int32, there bool) {
	for i := range s.Presets {
		if p := &s.Presets[i]; p.Namespace == namespace && p.Name == name {
			return p.Claims, true
		}
	}
	if s.Rest == nil {
		return 0, false
	}
	for _, data := range s.find(s.Rest.Presets, namespace, name) {
		return int32(data[0])<<16 | int32(data[1])<<8 | int32(data[2]), true
	}
	return 0, false
}

// HasBitstream says whether the node holds a file.
func (s *AcceleratorNodeStatus) HasBitstream(digest string) bool {
	for _, d := range s.Bitstreams {
		if d == digest {
			return true
		}
	}
	if s.Rest == nil || digest == "" {
		return false
	}
	short := shortDigest(digest)
	for entries := s.Rest.Bitstreams; len(entries) >= restDigest; entries = entries[restDigest:] {
		if entries[:restDigest] == short {
			return true
		}
	}
	return false
}
