// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"fmt"
	"os"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/test/check"
)

// TestNamespaceShare: who fetches image after image evicts its own, also with images that say to be of another namespace, and others' only
// for what its share has room for.
func TestNamespaceShare(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	s := newStore(t, StoreConfig{MaxBytes: 4 << 20, NamespaceBytes: 2 << 20, Clock: fake})
	add := func(namespace, seed string, size int) (Digest, error) {
		fake.Step(time.Minute)
		i := imageOf(t, seed, TreeImage, size, int64(size)+20_000)
		i.Namespace, i.Labels = namespace, map[string]string{namespaceLabel: "alice"}
		_, err := s.Unpack(t.Context(), i.TreeSpec, i.open)
		return i.Digest, err
	}
	here := func(d Digest) bool {
		_, err := os.Stat(s.path(treeName(d)))
		return err == nil
	}
	old, err := add("", "of the cluster", 1<<20)
	check.Must(t, err)
	alice, err := add("alice", "alice", 800<<10)
	check.Must(t, err)
	var mallory []Digest
	for i := range 6 {
		d, err := add("mallory", fmt.Sprint("mallory ", i), 900<<10)
		check.Must(t, err)
		mallory = append(mallory, d)
	}
	if !here(old) || !here(alice) || here(mallory[3]) || !here(mallory[4]) || !here(mallory[5]) {
		t.Errorf("the cluster's %v, alice's %v, mallory's last three %v %v %v", here(old), here(alice), here(mallory[3]), here(mallory[4]),
			here(mallory[5]))
	}

	check.Must(t, s.Pin(t.Context(), mallory[4], "claim-1"))
	check.Must(t, s.Pin(t.Context(), mallory[5], "claim-2"))
	_, err = add("mallory", "more", 900<<10)
	wantErr(t, err, ErrNoSpace, "images of namespace mallory may take 2097152", "pinned")
	_, err = add("alice", "two", 900<<10)
	check.Must(t, err)
	tree, err := s.PeekTree(alice)
	if err == nil && tree.Labels[namespaceLabel] != "alice" {
		t.Errorf("labels %v", tree.Labels)
	}
}
