// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"errors"
	"testing"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// TestSmallQuota: an image that fits the store is not refused for the room that is added to what its label says, or that is assumed of an
// image without one. An image whose label says more than the store holds is.
func TestSmallQuota(t *testing.T) {
	n := newNode(t)
	n.trusting()
	n.limit(1 << 20)
	const label = "cache.triton.image/cache-size-bytes"
	for name, labels := range map[string]map[string]string{"unlabelled": {}, "fits": {label: "1048576"}, "large": {label: "1048577"}} {
		files := triton(90, 32)
		files[name], labels["cache.triton.image/summary"] = name, `{"targets":[]}`
		digest := n.registry.Files(t, "team/"+name, "v1", files, labels).String()
		n.cache("team-a", name, n.registry.Host+"/team/"+name+":v1", digest)
		source := named
		source.Name = name
		if _, err := n.decide("team-a", "claim-1", source); errors.Is(err, artifact.ErrTooLarge) != (name == "large") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
