// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// TestRoot: operations of a host directory have absolute paths, also below a root that was opened from another.
func TestRoot(t *testing.T) {
	dir := t.TempDir()
	check.Must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600))
	start, err := fault.Snapshot(dir)
	check.Must(t, err)
	in := fault.New()
	root, err := in.Root(dir)
	check.Must(t, err)
	check.Must(t, errors.Join(root.Mkdir("d", 0o700), root.Rename("f", "d/f"), root.Chmod(".", 0o777|os.ModeSticky),
		root.Chown(".", os.Geteuid(), os.Getegid())))
	below, err := root.OpenRoot("d")
	check.Must(t, err)
	_, err = below.Stat("f")
	check.Must(t, err)
	check.Must(t, errors.Join(below.Remove("f"), below.SyncDir("."), below.Close()))
	list, err := root.Open(".")
	check.Must(t, err)
	names, err := list.Readdirnames(-1)
	check.Must(t, errors.Join(err, list.Close(), root.SyncDir("."), root.Close()))
	if !slices.Equal(names, []string{"d"}) {
		t.Errorf("names %v", names)
	}
	var got []string
	for _, op := range in.Log() {
		path, err := filepath.Rel(dir, op.Path)
		check.Must(t, err)
		got = append(got, string(op.Kind)+" "+path)
	}
	want := []string{
		"open .", "mkdir d", "rename f", "chmod .", "chown .", "open d", "stat d/f", "remove d/f", "syncdir d", "open .", "syncdir .",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	states := all(t, start, in.Log(), fault.Options{})
	if len(states) != 1 {
		t.Fatalf("%d states after all was synced", len(states))
	}
	if diff := cmp.Diff(look(t, dir), materialised(t, states[0])); diff != "" {
		t.Errorf("replayed (-disk +replay):\n%s", diff)
	}
}

func TestRootFails(t *testing.T) {
	dir := t.TempDir()
	for n, want := range map[int]int{1: 0, 2: 1} { // the rename fails, then the chmod after it
		check.Must(t, os.RemoveAll(filepath.Join(dir, "g")))
		check.Must(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
		in := fault.New(fault.Fail(n, syscall.EIO))
		root, err := in.Root(dir)
		check.Must(t, err)
		failed := []error{root.Rename("f", "g"), root.Chmod(".", 0o700)}
		for i, err := range failed {
			if errors.Is(err, syscall.EIO) != (i == want) {
				t.Errorf("fault at %d: operation %d: %v", n, i, err)
			}
		}
		check.Must(t, root.Close())
	}
	in := fault.New(fault.FailRead(1, syscall.EMFILE))
	if _, err := in.Root(dir); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("open: %v, want EMFILE", err)
	}
	if _, err := in.Root(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open: %v, want that it is not there", err)
	}
}
