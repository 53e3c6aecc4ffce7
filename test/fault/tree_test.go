// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// look describes a directory as a state does.
func look(t *testing.T, dir string) []string {
	t.Helper()
	tree, err := fault.Snapshot(dir)
	check.Must(t, err)
	return lines(all(t, tree, nil, fault.Options{})[0])
}

func lines(s fault.State) []string { return strings.Split(strings.TrimSpace(s.String()), "\n") }

// materialised looks at a state.
func materialised(t *testing.T, s fault.State) []string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	check.Must(t, s.Materialise(dir))
	if got := look(t, dir); !cmp.Equal(lines(s), got) {
		t.Errorf("materialised (-want +got):\n%s", cmp.Diff(lines(s), got))
	}
	return lines(s)
}

func all(t *testing.T, start *fault.Tree, log fault.Log, o fault.Options) []fault.State {
	t.Helper()
	states, err := fault.Replay(start, log, o)
	check.Must(t, err)
	var list []fault.State
	for s := range states {
		list = append(list, s)
	}
	return list
}

// TestSnapshotMaterialise: a snapshot to which nothing happened comes back as it was.
func TestSnapshotMaterialise(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	check.Must(t, errors.Join(
		os.MkdirAll(at("a/b/c"), 0o755), os.WriteFile(at("a/f"), []byte("content"), 0o640), os.WriteFile(at("a/b/empty"), nil, 0o400),
		os.Symlink("f", at("a/link")), os.Symlink("/nowhere", at("a/dangling")), syscall.Mkfifo(at("a/fifo"), 0o600),
		os.Chmod(at("a"), 0o777|os.ModeSticky|os.ModeSetgid), os.Chmod(at("a/b/c"), 0), os.Chmod(at("a/b"), 0o555), os.Chmod(dir, 0o711),
	))
	if os.Geteuid() == 0 {
		check.Must(t, errors.Join(os.Lchown(at("a/f"), 1000, 1001), os.Lchown(at("a/link"), 1000, 1001),
			syscall.Mknod(at("a/null"), syscall.S_IFCHR|0o666, 1<<8|3)))
	}
	start, err := fault.Snapshot(dir)
	check.Must(t, err)
	info, err := os.Lstat(at("a"))
	check.Must(t, err)
	want := look(t, dir)
	if a := "a " + info.Mode().String(); !strings.HasPrefix(want[1], a) || !slices.ContainsFunc(want, func(line string) bool {
		return strings.HasPrefix(line, "a/f -rw-r----- ") && strings.HasSuffix(line, ` "content"`)
	}) {
		t.Errorf("snapshot %q, want one with %s", want, a)
	}
	check.Must(t, os.Chmod(at("a/b"), 0o755)) // for who removes it; the snapshot is a value
	states := all(t, start, nil, fault.Options{})
	if len(states) != 1 || states[0].Lost != "" {
		t.Fatalf("%d states, want one that lost nothing", len(states))
	}
	if diff := cmp.Diff(want, materialised(t, states[0])); diff != "" {
		t.Errorf("materialised (-want +got):\n%s", diff)
	}
	if err := states[0].Materialise(dir); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("into a directory that is not empty: %v", err)
	}
}
