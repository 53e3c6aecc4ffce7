// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/test/check"
)

// TestPlaces: a directory that is mounted at a second path is at one place, and so is one inside of it.
func TestPlaces(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	root := t.TempDir()
	for _, name := range []string{"disks/a b/in", "disks/c", "again", "inner"} {
		check.Must(t, os.MkdirAll(filepath.Join(root, name), 0o755))
	}
	at := func(name string) string { return filepath.Join(root, name) }
	bind := func(from, to string) {
		check.Must(t, unix.Mount(at(from), at(to), "", unix.MS_BIND, ""))
		t.Cleanup(func() { check.Must(t, unix.Unmount(at(to), unix.MNT_DETACH)) })
	}
	bind("disks/a b", "again")
	bind("disks/a b/in", "inner")
	tree, err := Open(root)
	check.Must(t, err)
	defer tree.Close()
	places, err := tree.Places()
	check.Must(t, err)
	of := func(name string) container.Place {
		t.Helper()
		p, err := places.Of(name)
		check.Must(t, err)
		if p.FileSystem == "" {
			t.Fatalf("%s is nowhere: %v", name, p)
		}
		return p
	}
	for _, pair := range [][2]string{{"disks/a b", "again"}, {"disks/a b/in", "inner"}, {"again/in", "inner"}} {
		if one, other := of(pair[0]), of(pair[1]); one.Moved(other) || !one.Overlaps(other) {
			t.Errorf("%s is %v, and %s is %v", pair[0], one, pair[1], other)
		}
	}
	for _, pair := range [][2]string{{"again", "inner"}, {"disks", "again"}, {"disks", "inner"}} {
		if one, other := of(pair[0]), of(pair[1]); !one.Overlaps(other) || !other.Overlaps(one) {
			t.Errorf("%s is %v, and %s inside of it %v", pair[0], one, pair[1], other)
		}
	}
	for _, name := range []string{"again", "inner", "disks/a b"} {
		if one, other := of("disks/c"), of(name); one.Overlaps(other) {
			t.Errorf("disks/c is %v, and %s is %v", one, name, other)
		}
	}
}

// TestNoPlaces: without the table of mounts, as when the process has no file left to read it with, a directory is at no known place.
func TestNoPlaces(t *testing.T) {
	_, err := Places{}.Of("mnt/disks/a")
	if err == nil || !strings.Contains(err.Error(), "locate /mnt/disks/a: the table of mounts was not read") {
		t.Errorf("got %v", err)
	}
}
