// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/fettle-dev/fettle/pkg/disk"
)

type wholeFS struct{ disk.OS }

func (wholeFS) SyncFS(string) error { return nil }

// TestSyncFS: what was done before it survives, whatever that is, and what comes after it does not need to.
func TestSyncFS(t *testing.T) {
	base := t.TempDir()
	start, err := Snapshot(base)
	if err != nil {
		t.Fatal(err)
	}
	states := func(faults ...Fault) (all, whole int) {
		in := New(faults...)
		fsys := in.FS(wholeFS{})
		dir := filepath.Join(base, "dir")
		write := func(name string) {
			f, err := fsys.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.Write([]byte("content"))
			if err := errors.Join(err, f.Chmod(0o640), f.Close()); err != nil {
				t.Fatal(err)
			}
		}
		if err := fsys.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		write("before")
		if err := fsys.(interface{ SyncFS(name string) error }).SyncFS(base); err != nil {
			t.Fatal(err)
		}
		write("after")
		after, err := Replay(start, in.Log(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		for state := range after {
			at := filepath.Join(t.TempDir(), "state")
			if err := state.Materialise(at); err != nil {
				t.Fatal(err)
			}
			all++
			info, err := os.Stat(filepath.Join(at, "dir/before"))
			if err == nil && info.Mode() == 0o640 && info.Size() == 7 {
				whole++
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		return all, whole
	}
	if all, whole := states(); all < 3 || whole != all {
		t.Errorf("%d of %d states have what was synced", whole, all)
	}
	if all, whole := states(DropSync(1)); whole == all {
		t.Errorf("without the sync all %d states have it", all)
	}
	if err := New().FS(disk.OS{}).(interface{ SyncFS(name string) error }).SyncFS(base); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("where there is none: %v", err)
	}
}
