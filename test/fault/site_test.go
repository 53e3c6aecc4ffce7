// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
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
	_, _, line, _ := runtime.Caller(0)
	for range 3 {
		check.Must(t, disk.ReplaceDurably(fsys, filepath.Join(dir, "a"), nil, 0o600))
	}
	check.Must(t, disk.ReplaceDurably(fsys, filepath.Join(dir, "b"), nil, 0o600))
	check.Must(t, fsys.SyncDir(dir))
	here := func(after int) string {
		return fmt.Sprintf(`fault_test\.TestSites test/fault/site_test\.go:%d$`, line+after)
	}
	replace, durably := `^disk\.replace pkg/disk/disk\.go:\d+ < `, `disk\.ReplaceDurably pkg/disk/disk\.go:\d+ < `
	want := []struct {
		name string
		n    int
	}{
		{replace + durably + here(2), 3},
		{"^" + durably + here(2), 3},
		{replace + durably + here(4), 1},
		{"^" + durably + here(4), 1},
		{"^" + here(5), 1},
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
