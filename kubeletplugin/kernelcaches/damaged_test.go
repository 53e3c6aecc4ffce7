// SPDX-License-Identifier: Apache-2.0

package kernelcaches

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/kernelcache/cachemount"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/signed"
)

// ofAnotherVersion makes a tree one that a version after this one made, which this one cannot read.
func (n *node) ofAnotherVersion(tree artifact.Digest) {
	n.Helper()
	metadata := filepath.Join(n.root, "artifacts/trees/sha256", tree.Hex(), "metadata.json")
	data, err := os.ReadFile(metadata)
	n.must(err, os.WriteFile(metadata, []byte(strings.Replace(string(data), `"version": 2`, `"version": 3`, 1)), 0o600))
	if _, err := n.host.PeekTree(tree); err == nil {
		n.Error("the tree can still be read")
	}
}

// TestTreeOfAnotherVersion: a tree that cannot be read, as after a downgrade or on a bad disk, is made again, for a new claim and for one
// that was prepared in an earlier boot. What the node verified of its image still holds.
func TestTreeOfAnotherVersion(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	u := n.only(n.decide("team-a", "claim-1", named))
	before, err := json.Marshal(map[string][]cachemount.Use{"gpu": {*u}})
	check.Must(t, err)

	n.ofAnotherVersion(u.Tree)
	n.restart()
	at := n.apply(n.only(n.decide("team-a", "claim-1", named)))
	n.reads(filepath.Join(at, kernel), signed.TritonText)
	n.undo(u)

	n.ofAnotherVersion(u.Tree)
	n.restart()
	_, err = n.again(before)
	check.Must(t, err)
	n.reads(filepath.Join(n.apply(u), kernel), signed.TritonText)
	n.undo(u)
	n.empty()
}

// TestPinWithoutRecord: a tree that is kept for a claim is found by the claim, whatever the objects say by then, and let go.
func TestPinWithoutRecord(t *testing.T) {
	n := newNode(t)
	n.trusting()
	image, digest := n.push("team/add", "v1", triton(90, 32))
	n.cache("team-a", "add", image, digest)
	n.apply(n.only(n.decide("team-a", "claim-1", named)))
	claims, err := n.Claims()
	if check.Must(t, err); !slices.Equal(claims, []string{"claim-1"}) {
		t.Errorf("claims %v", claims)
	}
	left, err := n.Leftovers(t.Context(), "claim-1", device.Device{})
	check.Must(t, err)
	for _, s := range left {
		check.Must(t, n.Kinds().Undo(t.Context(), s))
	}
	if claims, err := n.Claims(); err != nil || len(claims) > 0 {
		t.Errorf("claims %v, %v, want none", claims, err)
	}
}

// TestWrongLabels: an image with labels that cannot be read is refused. No retry would change them.
func TestWrongLabels(t *testing.T) {
	n := newNode(t)
	n.trusting()
	labels := map[string]string{"cache.triton.image/summary": `{"targets":[]}`, "cache.triton.image/cache-size-bytes": "large"}
	digest := n.registry.Files(t, "team/add", "v1", triton(90, 32), labels).String()
	n.cache("team-a", "add", n.registry.Host+"/team/add:v1", digest)
	_, err := n.decide("team-a", "claim-1", named)
	if !IsRefused(err) || IsNotReady(err) || !strings.Contains(err.Error(), "cache-size-bytes") {
		t.Errorf("got %v, want a refusal", err)
	}
	n.registry.Reads.Store(0)
	_, err = n.decide("team-a", "claim-1", named)
	if reads := n.registry.Reads.Load(); !IsRefused(err) || reads > 0 {
		t.Errorf("asked again at once: %v, %d blobs were read", err, reads)
	}
}
