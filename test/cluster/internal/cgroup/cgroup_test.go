// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const hybrid = `27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime shared:4 - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/x,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`

func TestParse(t *testing.T) {
	got, err := Parse(strings.NewReader(hybrid))
	if err != nil {
		t.Fatal(err)
	}
	want := Hierarchies{
		{Root: "/sys/fs/cgroup/cpuset", Controllers: []string{"cpuset"}},
		{Root: "/sys/fs/cgroup/pids", Controllers: []string{"pids"}},
		{Root: "/sys/fs/cgroup/systemd", Controllers: []string{"name=systemd"}},
		{Root: "/sys/fs/cgroup/unified", V2: true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestTracking(t *testing.T) {
	all, err := Parse(strings.NewReader(hybrid))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		have Hierarchies
		want string
	}{
		"hybrid":  {all, "/sys/fs/cgroup/pids"},
		"only v2": {all[3:], "/sys/fs/cgroup/unified"},
		"none":    {all[:1], ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.have.Tracking()
			if got.Root != test.want || (err == nil) != (test.want != "") {
				t.Errorf("got %q, %v, want %q", got.Root, err, test.want)
			}
		})
	}
}

// TestOnPlainDirectories runs what needs no kernel support against directories that stand for hierarchies.
func TestOnPlainDirectories(t *testing.T) {
	hs := Hierarchies{{Root: t.TempDir(), Controllers: []string{"pids"}}, {Root: t.TempDir(), Controllers: []string{"memory"}}}
	if err := hs.Create("/ft-x/node1/daemons"); err != nil {
		t.Fatal(err)
	}
	if len(hs.Left("/ft-x/node1/daemons")) != 2 {
		t.Errorf("group was not made in both hierarchies: %v", hs.Left("/ft-x"))
	}
	procs := filepath.Join(hs[0].Root, "ft-x/node1/cgroup.procs")
	if err := os.WriteFile(procs, []byte("0\n12\n13\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := hs.Procs("/ft-x")
	if err != nil || !slices.Equal(got, []int{12, 13}) {
		t.Errorf("got processes %v, %v, want 12 and 13", got, err)
	}
	if err := os.Remove(procs); err != nil {
		t.Fatal(err)
	}
	if err := hs.Remove("/ft-x", time.Minute); err != nil || len(hs.Left("/ft-x")) != 0 {
		t.Errorf("remove: %v, left %v", err, hs.Left("/ft-x"))
	}
	if err := hs.Kill("/ft-x", time.Minute); err != nil {
		t.Errorf("kill a group that does not exist: %v", err)
	}
}
