// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

func TestCreateLoadRemove(t *testing.T) {
	s := open(t)
	if _, err := s.Load("u1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("load before create: %v, want fs.ErrNotExist", err)
	}
	r := holding("u1", "gpu-0", "gpu-1")
	put(t, s, r)
	same(t, "loaded", r, load(t, s, "u1"))
	want := []string{"claims/u1.json", "owners/node-1_gpu_gpu-0/u1", "owners/node-1_gpu_gpu-1/u1"}
	if diff := cmp.Diff(want, files(t, s)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	info, err := os.Stat(path(s, "u1"))
	check.Must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("the record has mode %v, want 0600", info.Mode())
	}
	for range 2 {
		check.Must(t, s.Remove(r))
	}
	if left := files(t, s); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestLife: a record is created once and then written into its room, and whoever reads it sees each change.
func TestLife(t *testing.T) {
	s, err := Open(disk.OS{}, filepath.Join(t.TempDir(), "state"))
	check.Must(t, err)
	r := full()
	check.Must(t, s.Create(r))
	for _, c := range []Change{
		{Step: 0, State: step.Done},
		{Step: 1, State: step.Done},
		{Phase: Prepared},
		{Phase: Releasing},
		{Step: 1, State: step.Undone},
		{Step: 0, State: step.Undone},
	} {
		before := read(t, path(s, fullUID))
		// Each change is made by another process than the last.
		next := load(t, s, fullUID)
		advance(t, s, next, c)
		r.apply(c)
		same(t, "in memory", r, next)
		same(t, "on disk", r, load(t, s, fullUID))
		after := read(t, path(s, fullUID))
		if !bytes.HasPrefix(after, said(before)) {
			t.Errorf("%+v: the file was written anew", c)
		}
		if len(after) != len(before) {
			t.Errorf("%+v: the file has %d bytes, it had %d: expected room", c, len(after), len(before))
		}
	}
}

// TestCreateReplaces: a renewal takes the place of what was prepared, with what it says and how far it is.
func TestCreateReplaces(t *testing.T) {
	s, r := open(t), stepping("u1", 1)
	put(t, s, r)
	advance(t, s, r, Change{State: step.Done}, Change{Phase: Prepared})
	renewed := stepping("u1", 2)
	renewed.BootID, renewed.Phase = "boot-2", Renewing
	check.Must(t, s.Create(renewed))
	same(t, "renewed", renewed, load(t, s, "u1"))
	advance(t, s, renewed, Change{State: step.Done}, Change{Step: 1, State: step.Done}, Change{Phase: Prepared})
	same(t, "prepared", renewed, load(t, s, "u1"))
}

// TestAdvanceSeveral: changes that are written at once are what they are one after the other.
func TestAdvanceSeveral(t *testing.T) {
	one, all := open(t), open(t)
	changes := []Change{{State: step.Done}, {Step: 1, State: step.Done}, {Phase: Prepared}, {Phase: Releasing}, {Step: 1, State: step.Undone}}
	want, got := stepping("u1", 2), stepping("u1", 2)
	put(t, one, want)
	put(t, all, got)
	advance(t, one, want, changes...)
	check.Must(t, all.Advance(got, changes...))
	same(t, "in memory", want, got)
	same(t, "on disk", want, load(t, all, "u1"))
	if diff := cmp.Diff(string(read(t, path(one, "u1"))), string(read(t, path(all, "u1")))); diff != "" {
		t.Errorf("files (-one by one +at once):\n%s", diff)
	}
}

func TestAdvanceWithoutAFile(t *testing.T) {
	s, r := open(t), stepping("u1", 1)
	check.Must(t, s.Create(r))
	check.Must(t, s.Remove(r))
	err := s.Advance(r, Change{State: step.Done})
	check.WantErr(t, err, fs.ErrNotExist, "team-a/claim-u1")
	if left := files(t, s); len(left) > 0 || r.Steps[0].State != step.Intended {
		t.Errorf("left %v, the step is %s", left, r.Steps[0].State)
	}
}

func TestRemoveLeavesWhatAnotherHolds(t *testing.T) {
	s := open(t)
	put(t, s, holding("u1", "gpu-0"))
	check.Must(t, s.Remove(holding("u2", "gpu-0")))
	if diff := cmp.Diff([]string{"u1"}, holders(t, s, "gpu-0")); diff != "" {
		t.Errorf("holders (-want +got):\n%s", diff)
	}
}

// TestListing lists claims and nothing else, whatever their files hold.
func TestListing(t *testing.T) {
	s := open(t)
	put(t, s, holding("u2", "gpu-2"), holding("u1", "gpu-1"))
	for name, content := range map[string]string{"broken.json": "{", ".tmp-u3.json-01": "", ".hidden.json": "", "README": "", "u4.yaml": ""} {
		check.Must(t, os.WriteFile(filepath.Join(s.dir, claimsDir, name), []byte(content), 0o600))
	}
	uids, err := s.UIDs()
	check.Must(t, err)
	if diff := cmp.Diff([]string{"broken", "u1", "u2"}, uids); diff != "" {
		t.Errorf("UIDs (-want +got):\n%s", diff)
	}
}

// TestSweepTemporary removes what writes left that were cut off, but not what a write under way needs.
func TestSweepTemporary(t *testing.T) {
	s := open(t)
	put(t, s, holding("u1", "gpu-0"))
	for _, name := range []string{".tmp-u1.json-00000001", ".tmp-u2.json-00000002", ".tmp-u3.json-00000003", ".tmp-other", ".u2.json"} {
		check.Must(t, os.WriteFile(filepath.Join(s.dir, claimsDir, name), []byte("{"), 0o600))
	}
	hold, err := s.LockClaim(t.Context(), "u3")
	check.Must(t, err)
	check.Must(t, s.SweepTemporary())
	left := files(t, s)
	want := []string{"claims/.tmp-other", "claims/.tmp-u3.json-00000003", "claims/.u2.json", "claims/u1.json", "owners/node-1_gpu_gpu-0/u1"}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	hold.Release()
	check.Must(t, s.SweepTemporary())
	if _, err := os.Stat(filepath.Join(s.dir, claimsDir, ".tmp-u3.json-00000003")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary file of a claim that nobody works on: %v", err)
	}
}

// TestHostileUIDs: a UID comes over a socket and must not become a path.
func TestHostileUIDs(t *testing.T) {
	s := open(t)
	put(t, s, holding("u1", "gpu-0"))
	before := content(t, s)
	for _, uid := range []string{
		"", ".", "..", "../x", "../../etc/passwd", "a/b", "/etc/passwd", ".hidden", "nul\x00byte", strings.Repeat("a", 129), ".tmp-1",
		"../claims/u1", "../claims/u1.json", "../owners/node-1_gpu_gpu-0/u1",
	} {
		r := holding(uid, "gpu-0")
		_, err := s.Load(uid)
		calls := map[string]error{
			"load": err, "create": s.Create(r), "remove": s.Remove(r), "set aside": s.SetAside(uid), "settle": s.ForgetDamaged(uid),
			"advance": s.Advance(r, Change{Phase: Releasing}),
		}
		for name, err := range calls {
			if err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "expected the UID") {
				t.Errorf("%s %q: %v, want a refusal", name, uid, err)
			}
		}
	}
	if diff := cmp.Diff(before, content(t, s)); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
}

// TestAfterDestroy: a retired node may be taken back without a restart of its plugin.
func TestAfterDestroy(t *testing.T) {
	s := open(t)
	put(t, s, holding("u1", "gpu-0"))
	bury(t, s, "u1", at(1))
	check.Must(t, s.Destroy())
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if uids, err := s.UIDs(); err != nil || len(uids) > 0 {
		t.Errorf("claims %v, %v", uids, err)
	}
	if s.Held(pool, "gpu-0") || s.InDoubt("u1") {
		t.Error("something is held in an empty store")
	}
	check.Must(t, s.Remove(holding("u1", "gpu-0")))
	check.Must(t, arrival(t, s, "u1", at(0)))
	check.Must(t, errors.Join(s.SweepOwners(), s.SweepTemporary()))
	put(t, s, holding("u2", "gpu-0"))
	if uids, err := s.UIDs(); err != nil || len(uids) != 1 {
		t.Errorf("claims %v, %v", uids, err)
	}
}

// TestAcquireAfterDestroy: the plugin takes the devices before it writes the record.
func TestAcquireAfterDestroy(t *testing.T) {
	s, r := open(t), holding("u1", "gpu-0")
	check.Must(t, s.Destroy())
	check.Must(t, s.Acquire(r))
	check.Must(t, s.Create(r))
	if diff := cmp.Diff([]string{"u1"}, holders(t, s, "gpu-0")); diff != "" {
		t.Errorf("holders (-want +got):\n%s", diff)
	}
}

func TestOpenOverAFile(t *testing.T) {
	dir := t.TempDir()
	check.Must(t, os.WriteFile(filepath.Join(dir, claimsDir), nil, 0o600))
	s, err := Open(disk.OS{}, dir)
	if err == nil {
		err = s.Create(holding("u1"))
	}
	check.WantErr(t, err, nil, claimsDir)
}
