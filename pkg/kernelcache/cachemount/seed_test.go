// SPDX-License-Identifier: Apache-2.0

package cachemount

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/hostmount"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
)

// TestPlanSeed: which files are links, and what they take.
func TestPlanSeed(t *testing.T) {
	long := strings.Repeat("k", hostmount.ShortLink-len("/.fettle/key-0/d/")) // the longest that takes no page
	fsys := fstest.MapFS{}
	for _, name := range []string{"group", "d/link", "d/" + long, "d/" + long + "k", "d/x.lock", "vllm_compile_cache.py"} {
		fsys["io.vllm.cache/"+name] = &fstest.MapFile{Data: []byte("text")}
	}
	fsys["io.vllm.cache/d/large.lock"] = &fstest.MapFile{Data: make([]byte, maxWritten+1)}
	m := &kernelcache.Mount{
		Source: "io.vllm.cache", Target: "/cache", Relocation: &kernelcache.Relocation{Files: []string{"group"}, Bytes: 10},
	}
	s, err := planSeed(fsys, &kernelcache.Cache{Type: kernelcache.VLLM}, m, "/.fettle/key-0")
	if err != nil {
		t.Fatal(err)
	}
	forms := map[string]seedForm{}
	for _, node := range s.nodes {
		forms[node.name] = node.form
	}
	want := map[string]seedForm{
		"d": seedDir, "d/link": seedLink, "d/" + long: seedLink, "d/" + long + "k": seedLink, "d/large.lock": seedLink,
		"d/x.lock": seedCopy, "vllm_compile_cache.py": seedCopy, "group": seedRewritten,
	}
	if diff := cmp.Diff(want, forms); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if pages := (s.bytes - 10) / hostmount.Page; pages != 2+2+1 || s.files != 8 { // what is rewritten, copies, the longest link
		t.Errorf("%d pages and %d files", pages, s.files)
	}
	if err := s.check(); err != nil {
		t.Error(err)
	}
	s.files = maxSeed / nodeBytes
	if err := s.check(); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "at most 64 MiB") {
		t.Errorf("too many files: %v", err)
	}
}
