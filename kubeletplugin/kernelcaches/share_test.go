// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
)

// TestShareHeldByOthers: a tree that was made for one namespace, and that only claims of another one still have, does not keep the first
// from its share of the store. Its own claims do.
func TestShareHeldByOthers(t *testing.T) {
	n := newNode(t)
	n.trusting()
	store, err := artifact.OpenStore(filepath.Join(n.root, "artifacts"), artifact.StoreConfig{
		InUse: func(s *artifact.Store, d artifact.Digest) bool { return n.Mounter.InUse(s, d) }, NamespaceBytes: 1 << 20,
	})
	check.Must(t, err)
	t.Cleanup(func() { check.Must(t, store.Close()) })
	n.host = store
	first, digest := n.push("team/first", "v1", triton(90, 32))
	next := triton(90, 32)
	next["another"] = "file"
	second, otherDigest := n.push("team/second", "v1", next)
	n.cache("team-a", "add", first, digest)
	n.cache("team-b", "add", first, digest)
	n.cache("team-a", "next", second, otherDigest)
	n.only(n.decide("team-a", "claim-a", named))
	others := n.only(n.decide("team-b", "claim-b", named))
	n.apply(others)

	own := named
	own.Name = "next"
	u := n.only(n.decide("team-a", "claim-a", own))
	n.apply(u)
	n.evict(others.Tree) // so that team-a needs room once more, with a claim of its own
	n.undo(others)
	if _, err := n.decide("team-a", "claim-c", named); !errors.Is(err, artifact.ErrNoSpace) {
		t.Errorf("got %v, want no room beside what its own claim has", err)
	}
	n.undo(u)
	if n.inUse(others.Tree) {
		t.Error("the first image is in use")
	}
	n.empty()
}

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
