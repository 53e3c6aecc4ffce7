// SPDX-License-Identifier: Apache-2.0

package presets

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
)

// TestHooks: each build of the hook stays for the claims that were prepared with it and for the process that installed it, and no longer.
func TestHooks(t *testing.T) {
	store, err := record.Open(disk.OS{}, t.TempDir())
	check.Must(t, err)
	state := filepath.Join(t.TempDir(), "state")
	check.Must(t, os.Mkdir(state, 0o700))
	dir, source := filepath.Join(state, "hooks"), filepath.Join(t.TempDir(), "fettle-hook")
	install := func(content string) *Hook {
		t.Helper()
		check.Must(t, os.WriteFile(source, []byte(content), 0o700))
		h, err := InstallHook(store, source, dir)
		check.Must(t, err)
		return h
	}
	builds := func() (found []string) {
		t.Helper()
		entries, err := os.ReadDir(dir)
		check.Must(t, err)
		for _, e := range entries {
			content, err := os.ReadFile(filepath.Join(dir, e.Name()))
			check.Must(t, err)
			found = append(found, string(content))
		}
		slices.Sort(found)
		return found
	}
	wants := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, builds()); diff != "" {
			t.Errorf("builds (-want +got):\n%s", diff)
		}
	}
	first := install("first")
	if info, err := os.Stat(state); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("the directory above has mode %v (%v), want that everybody can pass and nobody else look", info.Mode(), err)
	}
	again := install("first")
	if pathOf(t, first) != pathOf(t, again) {
		t.Errorf("one build is at %s and %s", pathOf(t, first), pathOf(t, again))
	}
	check.Must(t, again.current.Close())
	r := &record.Record{Namespace: "team-a", Name: "c", UID: "u1", BootID: "b", Phase: record.Prepared, Devices: []record.Device{{
		Request: "gpu", Pool: "node-1/gpu", Name: "gpu0", Added: &record.Addition{
			CDIDevice: "fettle.dev/common=x",
			Edits:     container.Edits{Hooks: []container.Hook{{Path: pathOf(t, first), Args: []string{"fettle-hook"}}}},
		},
	}}}
	check.Must(t, store.Create(r))
	second := install("second")
	third := install("third")
	check.Must(t, third.Sweep())
	wants("first", "second", "third")
	check.Must(t, first.current.Close())
	check.Must(t, second.current.Close())
	check.Must(t, third.Sweep())
	wants("first", "third")
	check.Must(t, store.SetAside(r.UID))
	check.WantErr(t, third.Sweep(), nil, "claims u1", "set aside")
	wants("first", "third")
	check.Must(t, store.ForgetDamaged(r.UID), store.Remove(r))
	check.Must(t, third.Sweep())
	wants("third")

	check.Must(t, os.Chmod(pathOf(t, third), 0o600))
	check.Must(t, os.WriteFile(pathOf(t, third), []byte("another"), 0o600))
	repaired := install("third")
	wants("third")
	if info, err := os.Stat(pathOf(t, repaired)); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the hook has mode %v (%v), want that the runtime can run it", info.Mode(), err)
	}
}

// hookPlace is a node without a hook. Install installs the same one each time, as another process does, in dir.
func hookPlace(t *testing.T) (install func() *Hook, dir string) {
	t.Helper()
	store, err := record.Open(disk.OS{}, t.TempDir())
	check.Must(t, err)
	dir = filepath.Join(t.TempDir(), "hooks")
	source := filepath.Join(t.TempDir(), "fettle-hook")
	check.Must(t, os.WriteFile(source, []byte("hook"), 0o700))
	return func() *Hook {
		t.Helper()
		h, err := InstallHook(store, source, dir)
		check.Must(t, err)
		return h
	}, dir
}

// TestHooksTakenBack: a node that is emptied has no hook, and one again when it is taken back and a claim needs it.
func TestHooksTakenBack(t *testing.T) {
	install, dir := hookPlace(t)
	h := install()
	before := pathOf(t, h)
	check.Must(t, h.Destroy())
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
	if after := pathOf(t, h); after != before {
		t.Errorf("taken back it is at %s, before at %s", after, before)
	}
	if content, err := os.ReadFile(before); err != nil || string(content) != "hook" {
		t.Errorf("taken back it is %q, %v", content, err)
	}
}

func pathOf(t *testing.T, h *Hook) string {
	t.Helper()
	at, err := h.Ready()
	check.Must(t, err)
	return at
}

// TestHookAfterFailure: an installation that failed on a node that came back succeeds as soon as it can.
func TestHookAfterFailure(t *testing.T) {
	dir := t.TempDir()
	source, hooks := filepath.Join(dir, "source"), filepath.Join(dir, "state", "hooks")
	check.Must(t, os.WriteFile(source, []byte("build"), 0o600))
	h, err := InstallHook(nil, source, hooks)
	check.Must(t, err)
	check.Must(t, h.Destroy(), os.Rename(source, source+"-aside"))
	if at, err := h.Ready(); err == nil {
		t.Errorf("installed at %s without a source", at)
	}
	check.Must(t, os.Rename(source+"-aside", source))
	at, err := h.Ready()
	check.Must(t, err)
	if _, err := os.Stat(at); err != nil {
		t.Error(err)
	}
}

// TestHookMadeAgain: a hook that another process made again, as after a node was emptied, is held by this process, too, when a claim gets
// it. Else the plugin of another version would remove it before the claim's record names it.
func TestHookMadeAgain(t *testing.T) {
	install, _ := hookPlace(t)
	h := install()
	name := pathOf(t, h)
	check.Must(t, os.Remove(name))
	other := install()
	check.Must(t, other.current.Close())
	if again := pathOf(t, h); again != name {
		t.Errorf("it is at %s, before at %s", again, name)
	}
	check.Must(t, other.Sweep())
	if _, err := os.Stat(name); err != nil {
		t.Errorf("the hook that a claim is about to get is removed: %v", err)
	}
}
