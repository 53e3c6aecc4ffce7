// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func open(t testing.TB) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// holding is a record of one claim that holds the named GPUs.
func holding(uid string, gpus ...string) *Record {
	r := &Record{Namespace: "team-a", Name: "claim-" + uid, UID: uid, BootID: "boot-1"}
	for _, name := range gpus {
		r.Devices = append(r.Devices, Device{Request: "gpu", Pool: "node-1/gpu", Name: name, CDIDevice: "fettle.dev/common=0"})
	}
	return r
}

func save(t *testing.T, s *Store, records ...*Record) {
	t.Helper()
	for _, r := range records {
		if err := s.Save(r); err != nil {
			t.Fatal(err)
		}
		if err := s.Acquire(r); err != nil {
			t.Fatal(err)
		}
	}
}

// files lists the store's files and links, sorted.
func files(t *testing.T, s *Store) []string {
	t.Helper()
	var out []string
	err := fs.WalkDir(os.DirFS(s.dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSaveLoadRemove(t *testing.T) {
	s := open(t)
	if _, err := s.Load("u1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("load before save: %v, want fs.ErrNotExist", err)
	}
	r := holding("u1", "gpu-0", "gpu-1")
	save(t, s, r)
	got, err := s.Load("u1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, got); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
	want := []string{"claims/u1.json", "owners/node-1_gpu_gpu-0", "owners/node-1_gpu_gpu-1"}
	if diff := cmp.Diff(want, files(t, s)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	info, err := os.Stat(filepath.Join(s.dir, claimsDir, "u1.json"))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the record has mode %v (%v), want 0600", info.Mode(), err)
	}
	for range 2 {
		if err := s.Remove(r); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if left := files(t, s); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSaveReplaces(t *testing.T) {
	s := open(t)
	save(t, s, holding("u1", "gpu-0"))
	newer := holding("u1", "gpu-0")
	newer.BootID = "boot-2"
	save(t, s, newer)
	got, err := s.Load("u1")
	if err != nil || got.BootID != "boot-2" {
		t.Errorf("loaded %+v, %v", got, err)
	}
}

func TestRemoveLeavesWhatAnotherHolds(t *testing.T) {
	s := open(t)
	save(t, s, holding("u1", "gpu-0"))
	if err := s.Remove(holding("u2", "gpu-0")); err != nil {
		t.Fatal(err)
	}
	if owner, err := s.Owner("node-1/gpu", "gpu-0"); err != nil || owner != "u1" {
		t.Errorf("owner %q, %v, want u1", owner, err)
	}
}

func TestListing(t *testing.T) {
	s := open(t)
	save(t, s, holding("u2", "gpu-2"), holding("u1", "gpu-1"))
	put := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(s.dir, claimsDir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("broken.json", "{")
	put(tmpPrefix+"123", "{")
	put(tmpPrefix+"123.json", "{")
	put("README", "not a record")
	uids, err := s.UIDs()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"broken", "u1", "u2"}, uids); diff != "" {
		t.Errorf("UIDs (-want +got):\n%s", diff)
	}
	all, err := s.All()
	if err == nil || !strings.Contains(err.Error(), "broken.json") {
		t.Errorf("error %v, want it to name broken.json", err)
	}
	want := []*Record{holding("u1", "gpu-1"), holding("u2", "gpu-2")}
	if diff := cmp.Diff(want, all, cmpopts.IgnoreFields(Record{}, "Version")); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if err := s.SweepTemporary(); err != nil {
		t.Fatal(err)
	}
	for _, name := range files(t, s) {
		if strings.Contains(name, tmpPrefix) {
			t.Errorf("%s was left", name)
		}
	}
}

// TestHostileUIDs: a UID comes over a socket and must not become a path.
func TestHostileUIDs(t *testing.T) {
	s := open(t)
	for _, uid := range []string{
		"", ".", "..", "../x", "../../etc/passwd", "a/b", "/etc/passwd", ".hidden", "nul\x00byte", strings.Repeat("a", 129), tmpPrefix + "1",
	} {
		r := holding(uid, "gpu-0")
		if _, err := s.Load(uid); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("load %q: %v, want a refusal", uid, err)
		}
		if err := s.Save(r); err == nil {
			t.Errorf("save %q: no error", uid)
		}
		if err := s.Remove(r); err == nil {
			t.Errorf("remove %q: no error", uid)
		}
	}
	if left := files(t, s); len(left) > 0 {
		t.Errorf("written: %v", left)
	}
}

// TestAfterDestroy: a retired node may be taken back without a restart of its plugin.
func TestAfterDestroy(t *testing.T) {
	s := open(t)
	save(t, s, holding("u1", "gpu-0"))
	if err := s.Destroy(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if uids, err := s.UIDs(); err != nil || len(uids) > 0 {
		t.Errorf("UIDs %v, %v", uids, err)
	}
	if err := s.Remove(holding("u1", "gpu-0")); err != nil {
		t.Errorf("remove: %v", err)
	}
	save(t, s, holding("u2", "gpu-0"))
	if uids, err := s.UIDs(); err != nil || len(uids) != 1 {
		t.Errorf("UIDs %v, %v", uids, err)
	}
}

func TestOpenOverAFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, claimsDir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("opened a store over a file")
	}
}
