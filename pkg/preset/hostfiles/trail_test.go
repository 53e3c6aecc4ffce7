// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/preset"
	"github.com/fettle-dev/fettle/pkg/rootfs"
	"github.com/fettle-dev/fettle/test/check"
)

// TestTrail: a trail is current until something changes that its paths lead through or to, however that is done.
func TestTrail(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(m *mountedTree)
		stale  bool
	}{
		"nothing":                     {func(*mountedTree) {}, false},
		"another file beside the way": {func(m *mountedTree) { m.write("a/other") }, false},
		"another file at the end":     {func(m *mountedTree) { m.write("a/b/other") }, true}, // the directory is one of the paths
		"content":                     {func(m *mountedTree) { check.Must(m.t, os.WriteFile(m.at("a/b/file"), []byte("x"), 0o600)) }, true},
		"mode of a directory":         {func(m *mountedTree) { check.Must(m.t, os.Chmod(m.at("a"), 0o777)) }, true},
		"owner of a directory":        {func(m *mountedTree) { check.Must(m.t, os.Chown(m.at("a"), 5, 5)) }, true},
		"file replaced":               {func(m *mountedTree) { m.replace("a/b/file") }, true},
		"file gone":                   {func(m *mountedTree) { check.Must(m.t, os.Remove(m.at("a/b/file"))) }, true},
		"absent file made":            {func(m *mountedTree) { m.write("a/absent") }, true},
		"directory for another":       {func(m *mountedTree) { m.exchange("a", "c") }, true},
		"link made again":             {func(m *mountedTree) { m.relink("link", "a/b/file") }, true},
		"link to elsewhere":           {func(m *mountedTree) { m.relink("link", "etc/secret/file") }, true},
		"directory mounted over":      {func(m *mountedTree) { m.bind("c", "a") }, true},
		"directory mounted onto it":   {func(m *mountedTree) { m.bind("a", "a") }, true},
		"file mounted over":           {func(m *mountedTree) { m.bind("etc/secret/file", "a/b/file") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMountedTree(t)
			m.write("a/b/file")
			m.write("c/b/file")
			check.Must(t, os.Symlink("/a/./b/../b/file", m.at("link")))
			root, err := rootfs.Open(m.root)
			check.Must(t, err)
			defer root.Close()
			trail, whole := trailOf(root, []string{"/a/b", "/a/b/file", "/link", "/a/absent", "/absent/file"})
			if !whole || !trail.current(root) {
				t.Fatalf("whole %v, trail %v", whole, trail)
			}
			tc.change(m)
			if trail.current(root) == tc.stale {
				t.Errorf("current %v, want %v", !tc.stale, tc.stale)
			}
		})
	}
}

// TestTrailLoop: links without an end have no trail.
func TestTrailLoop(t *testing.T) {
	dir := t.TempDir()
	check.Must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	root, err := rootfs.Open(dir)
	check.Must(t, err)
	defer root.Close()
	if _, whole := trailOf(root, []string{"/loop"}); whole {
		t.Error("the trail is whole")
	}
}

func (m *mountedTree) replace(name string) {
	m.t.Helper()
	m.write(name + ".new")
	check.Must(m.t, os.Rename(m.at(name+".new"), m.at(name)))
}

func (m *mountedTree) exchange(one, other string) {
	m.t.Helper()
	check.Must(m.t, unix.Renameat2(unix.AT_FDCWD, m.at(one), unix.AT_FDCWD, m.at(other), unix.RENAME_EXCHANGE))
}

func (m *mountedTree) relink(name, target string) {
	m.t.Helper()
	check.Must(m.t, os.Symlink(target, m.at(name+".new")))
	check.Must(m.t, os.Rename(m.at(name+".new"), m.at(name)))
}

func (m *mountedTree) bind(source, target string) {
	m.t.Helper()
	check.Must(m.t, unix.Mount(m.at(source), m.at(target), "", unix.MS_BIND, ""))
}

// TestDriverPlacesKept: where a driver's files are on the host is found once, and again when something on the way or who writes there has
// changed. What is kept is what a new look finds.
func TestDriverPlacesKept(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(m *mountedTree, f *Finder)
		kept   bool
		// want is the path of the host that is mounted, wantErr why nothing is.
		want, wantErr string
	}{
		"nothing":                 {func(*mountedTree, *Finder) {}, true, "/opt/driver-1/lib.so", ""},
		"another file on the way": {func(m *mountedTree, _ *Finder) { m.write("opt/new") }, true, "/opt/driver-1/lib.so", ""},
		"link to another version": {func(m *mountedTree, _ *Finder) { m.relink("opt/driver", "driver-2") }, false, "/opt/driver-2/lib.so", ""},
		"directory for another": {
			func(m *mountedTree, _ *Finder) { m.exchange("opt/driver-1", "opt/driver-2") }, false, "/opt/driver-1/lib.so", "",
		},
		"others may write on the way": {
			func(m *mountedTree, _ *Finder) { check.Must(m.t, os.Chmod(m.at("opt"), 0o777)) }, false, "", "every user may write to /opt",
		},
		"containers write on the way": {
			func(_ *mountedTree, f *Finder) { f.Writable = []string{"/opt"} }, false, "", "containers may write below /opt",
		},
		"second mount of what containers write to": {
			func(m *mountedTree, _ *Finder) { m.bind("data", "opt/driver-1") }, false, "", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMountedTree(t)
			for _, file := range []string{"opt/driver-1/lib.so", "opt/driver-2/lib.so", "data/lib.so"} {
				m.write(file)
			}
			check.Must(t, os.Symlink("driver-1", m.at("opt/driver")))
			f := m.finder(false)
			f.Writable = []string{"/data"}
			f.Drivers = &Drivers{
				Host: "/", Version: func() string { return "" }, Now: func() time.Time { return time.Now().Add(time.Hour) },
				Ask: func(context.Context, string, string) (nvml.Driver, error) {
					return nvml.Driver{Files: []nvml.DriverFile{{Path: "/opt/driver/lib.so", ContainerPath: "/lib.so"}}}, nil
				},
			}
			request := preset.Request{Drivers: []preset.Driver{{PresetDriver: v1alpha1.PresetDriver{Vendor: v1alpha1.DriverNVIDIA}}}}
			_, err := f.Find("u1", request)
			check.Must(t, err)
			before := f.Drivers.known[m.root].answer.places.Load()
			if before == nil {
				t.Fatal("nothing is kept")
			}
			tc.change(m, f)
			found, err := f.Find("u1", request)
			fresh, freshErr := (&Finder{Root: f.Root, Mounts: f.Mounts, Writable: f.Writable, Drivers: &Drivers{
				Host: "/", Version: f.Drivers.Version, Now: f.Drivers.Now, Ask: f.Drivers.Ask,
			}}).Find("u1", request)
			if (err == nil) != (freshErr == nil) || err != nil && err.Error() != freshErr.Error() {
				t.Errorf("got %v, a new look %v", err, freshErr)
			}
			if err == nil && (found.Shared.Mounts[0] != fresh.Shared.Mounts[0] || tc.want != "" && found.Shared.Mounts[0].HostPath != tc.want) {
				t.Errorf("got %+v, a new look %+v", found.Shared.Mounts, fresh.Shared.Mounts)
			}
			if tc.wantErr != "" {
				check.WantErr(t, err, nil, tc.wantErr)
			}
			now := f.Drivers.known[m.root].answer
			if kept := now != nil && now.places.Load() == before; kept != tc.kept {
				t.Errorf("kept %v, want %v", kept, tc.kept)
			}
		})
	}
}

// TestDriverPlacesBelowRoot: who may write to the host's root decides, too, where the driver has a root of its own.
func TestDriverPlacesBelowRoot(t *testing.T) {
	m := newMountedTree(t)
	m.write("opt/driver/lib.so")
	f := m.finder(false)
	f.Drivers = &Drivers{
		Host: "/opt/driver", Version: func() string { return "" }, Now: func() time.Time { return time.Now().Add(time.Hour) },
		Ask: func(context.Context, string, string) (nvml.Driver, error) {
			return nvml.Driver{Files: []nvml.DriverFile{{Path: "/lib.so", ContainerPath: "/lib.so"}}}, nil
		},
	}
	request := preset.Request{Drivers: []preset.Driver{{PresetDriver: v1alpha1.PresetDriver{Vendor: v1alpha1.DriverNVIDIA}}}}
	_, err := f.Find("u1", request)
	check.Must(t, err)
	if f.Drivers.known[m.at("opt/driver")].answer.places.Load() == nil {
		t.Fatal("nothing is kept")
	}
	check.Must(t, os.Chmod(m.root, 0o777))
	_, err = f.Find("u1", request)
	check.WantErr(t, err, nil, "every user may write to /")
}
