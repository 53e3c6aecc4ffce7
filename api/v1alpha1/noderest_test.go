// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"
)

// TestRestOfOthers: entries in short are of one object of one node only, and what is no entry is none.
func TestRestOfOthers(t *testing.T) {
	digest := func(first string) string { return "sha256:" + first + strings.Repeat("0", 62) }
	s := AcceleratorNodeStatus{Facts: &NodeFacts{BootID: "one"}, Rest: &NodeRest{}}
	s.Rest.KernelCaches = s.AddRestCache("", &NodeCache{
		Namespace: "a", Name: "c", Digest: digest("aa"), Phase: NodeCacheError, IncompatibleDevices: 3, Claims: 99,
	})
	s.Rest.Presets = s.AddRestPreset("", &NodePreset{Name: "p", Claims: 1 << 30})
	want := NodeCache{Namespace: "a", Name: "c", Digest: digest("aa"), Phase: NodeCacheError, IncompatibleDevices: 1, Claims: 15}
	if got := s.CachesOf("a", "c", digest("bb"), digest("aa")); len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := s.CachesOf("a", "c", digest("bb"), ""); len(got) != 1 || got[0].Digest != "" {
		t.Errorf("another digest: %+v", got)
	}
	if claims, there := s.PresetClaims("", "p"); !there || claims != 1<<24-1 {
		t.Errorf("%d claims, %t", claims, there)
	}
	for _, name := range []string{"", "a/c", "p"} {
		if got := s.CachesOf("", name); len(got) > 0 {
			t.Errorf("%q: %+v", name, got)
		}
	}
	s.Facts.BootID = "another"
	if got := s.CachesOf("a", "c"); len(got) > 0 {
		t.Errorf("after another boot: %+v", got)
	}
	s.Rest = &NodeRest{KernelCaches: "short", Presets: strings.Repeat("*", 13), Bitstreams: "12345"}
	_, there := s.PresetClaims("", "p")
	if len(s.CachesOf("a", "c")) > 0 || there || s.HasBitstream(digest("aa")) || s.HasBitstream("") || s.HasBitstream("garbage") {
		t.Error("found in texts that are no entries")
	}
}
