// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// TestSites: a sync within package disk is told apart by who called it there, and a loop is one site.
func TestSites(t *testing.T) {
	dir := t.TempDir()
	in := fault.New()
	fsys := in.FS(disk.OS{})
	for range 3 {
		check.Must(t, disk.ReplaceDurably(fsys, filepath.Join(dir, "a"), nil, 0o600))
	}
	check.Must(t, disk.ReplaceDurably(fsys, filepath.Join(dir, "b"), nil, 0o600))
	check.Must(t, fsys.SyncDir(dir))
	here := ` < fault_test\.TestSites test/fault/site_test\.go:`
	want := []struct {
		name string
		n    int
	}{
		{`^disk\.replace pkg/disk/disk\.go:\d+ < disk\.ReplaceDurably pkg/disk/disk\.go:\d+` + here + `20$`, 3},
		{`^disk\.ReplaceDurably pkg/disk/disk\.go:\d+` + here + `20$`, 3},
		{`^disk\.replace pkg/disk/disk\.go:\d+ < disk\.ReplaceDurably pkg/disk/disk\.go:\d+` + here + `22$`, 1},
		{`^disk\.ReplaceDurably pkg/disk/disk\.go:\d+` + here + `22$`, 1},
		{`^fault_test\.TestSites test/fault/site_test\.go:23$`, 1},
	}
	got := fault.Syncs(in.Log())
	for i, site := range got {
		if i >= len(want) || !regexp.MustCompile(want[i].name).MatchString(site.Name) || len(site.Syncs) != want[i].n {
			t.Errorf("site %d is %+v", i, site)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d sites, want %d", len(got), len(want))
	}
}
