// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fettle-dev/fettle/pkg/container"
	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// stored leaves out what a Record knows of its file.
var stored = cmpopts.IgnoreUnexported(Record{})

// unsynced is the operating system's file system without its syncs, which take most of a test's time and change nothing that a test
// sees.
type unsynced struct{ disk.OS }

type unsyncedFile struct{ disk.File }

func (unsyncedFile) Sync() error     { return nil }
func (unsyncedFile) Datasync() error { return nil }

func (u unsynced) OpenFile(name string, flag int, perm fs.FileMode) (disk.File, error) {
	f, err := u.OS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return unsyncedFile{f}, nil
}

func (u unsynced) SyncDir(name string) error {
	_, err := u.Lstat(name)
	return err
}

func open(t testing.TB) *Store {
	t.Helper()
	s, err := Open(unsynced{}, filepath.Join(t.TempDir(), "state"))
	check.Must(t, err)
	return s
}

const pool = "node-1/gpu"

// holding is a record of one claim that has the named GPUs for itself.
func holding(uid string, gpus ...string) *Record {
	r := &Record{Namespace: "team-a", Name: "claim-" + uid, UID: uid, BootID: "boot-1", Phase: Prepared}
	for _, name := range gpus {
		r.Devices = append(r.Devices, Device{Request: "gpu", Pool: pool, Name: name, CDIDevice: "fettle.dev/common=0"})
	}
	return r
}

// looking has them for a look.
func looking(uid string, gpus ...string) *Record {
	r := holding(uid, gpus...)
	for i := range r.Devices {
		r.Devices[i].AdminAccess = true
	}
	return r
}

// sharing has a share of them, with a configuration.
func sharing(effect, uid string, gpus ...string) *Record {
	r := holding(uid, gpus...)
	for i := range r.Devices {
		r.Devices[i].ShareID, r.Devices[i].Effect = "share-"+uid, effect
	}
	return r
}

// stepping is a record of a claim that has a GPU and steps to go.
func stepping(uid string, steps int) *Record {
	r := holding(uid, "gpu-"+uid)
	r.Phase = Intended
	for i := range steps {
		target := string(rune('a' + i))
		r.Steps = append(r.Steps, Step{
			Step: step.Step{Kind: "test.step", Target: target, Params: []byte(`{"n":"` + target + `"}`)}, State: step.Intended,
		})
	}
	return r
}

func put(t testing.TB, s *Store, records ...*Record) {
	t.Helper()
	for _, r := range records {
		check.Must(t, s.Create(r))
		check.Must(t, s.Acquire(r))
	}
}

func load(t testing.TB, s *Store, uid string) *Record {
	t.Helper()
	r, err := s.Load(uid)
	check.Must(t, err)
	return r
}

func advance(t testing.TB, s *Store, r *Record, changes ...Change) {
	t.Helper()
	for _, c := range changes {
		check.Must(t, s.Advance(r, c))
	}
}

// same fails where two records differ.
func same(t testing.TB, what string, want, got *Record) {
	t.Helper()
	if diff := cmp.Diff(want, got, stored); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func holders(t testing.TB, s *Store, gpu string) []string {
	t.Helper()
	uids, err := s.Holders(pool, gpu)
	check.Must(t, err)
	return uids
}

func path(s *Store, uid string) string { return filepath.Join(s.dir, claimsDir, uid+suffix) }

// content is every file and link of the store but the lock, with what is in it but for room.
func content(t testing.TB, s *Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	check.Must(t, filepath.WalkDir(s.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == lockFile {
			return err
		}
		local, err := filepath.Rel(s.dir, name)
		if err != nil {
			return err
		}
		if d.Type() == fs.ModeSymlink {
			out[local], err = os.Readlink(name)
			return err
		}
		data, err := os.ReadFile(name)
		out[local] = string(said(data))
		return err
	}))
	return out
}

// files are the names in content, sorted.
func files(t testing.TB, s *Store) []string {
	t.Helper()
	var out []string
	for name := range content(t, s) {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// fullUID names the claim of full, which is also the one in the golden files.
const fullUID = "0b0d6d1c-5f0e-4b43-8a47-6f1f0e9d7c11"

// claimed locks a claim and does something with the hold.
func claimed(t testing.TB, s *Store, uid string, do func(h *Hold) error) error {
	t.Helper()
	h, err := s.LockClaim(t.Context(), uid)
	check.Must(t, err)
	defer h.Release()
	return do(h)
}

func bury(t testing.TB, s *Store, uid string, arrived Moment) {
	t.Helper()
	check.Must(t, claimed(t, s, uid, func(h *Hold) error { return h.LeaveTombstone(t.Context(), arrived) }))
}

func arrival(t testing.TB, s *Store, uid string, arrived Moment) error {
	t.Helper()
	return claimed(t, s, uid, func(h *Hold) error { return h.CheckArrival(t.Context(), arrived) })
}

// full is a record with every field set.
func full() *Record {
	return &Record{
		Namespace: "team-a", Name: "train", UID: fullUID, BootID: "5a1c0b2e-1111-2222-3333-444455556666", Phase: Intended,
		Devices: []Device{
			{
				Request: "gpu/large", Pool: pool, Name: "nvidia-0000-1b-00-0", CDIDevice: "fettle.dev/common=x0123456789abcdef",
				ShareID: "5ca1ab1e-7777-8888-9999-000011112222", Effect: "00112233445566778899aabbccddeeff",
				Edits: container.Edits{Nodes: []container.Node{{Path: "/dev/nvidia0", Major: 195, Minor: 0, Permissions: "rw"}}},
			},
			{
				Request: "disk", Pool: "node-1/host", Name: "localssd-ssd0", AdminAccess: true, CDIDevice: "fettle.dev/claim=xfedcba9876543210",
				Edits: container.Edits{Mounts: []container.Mount{{HostPath: "/mnt/disks/ssd0", ContainerPath: "/mnt/<scratch>", ReadOnly: true}}},
			},
		},
		Steps: []Step{
			{
				Step:  step.Step{Kind: "host.scratch", Target: "/mnt/disks/ssd0", Params: []byte(`{"path":"/mnt/disks/ssd0","before":{"uid":7}}`)},
				State: step.Intended,
			},
			{
				Step:  step.Step{Kind: "cdi.write", Target: "fettle.dev-claim-1.json", Params: []byte(`{"content":"{}\n"}`)},
				State: step.Intended,
			},
		},
	}
}

// chapter is what a file holds up to a byte.
type chapter struct {
	end   int
	state *Record
}

// said is a file without its room.
func said(data []byte) []byte { return bytes.TrimRight(data, "\x00") }

// story is the file of full after its whole life, without its room, and what it held after each change.
func story(t testing.TB) ([]byte, []chapter) {
	t.Helper()
	s, r := open(t), full()
	var chapters []chapter
	note := func() []byte {
		data, err := os.ReadFile(path(s, fullUID))
		check.Must(t, err)
		data = said(data)
		chapters = append(chapters, chapter{end: len(data), state: r.Clone()})
		return data
	}
	check.Must(t, s.Create(r))
	data := note()
	for _, c := range []Change{
		{Step: 0, State: step.Done},
		{Step: 1, State: step.Done},
		{Phase: Prepared},
		{Phase: Releasing},
		{Step: 1, State: step.Undone},
	} {
		advance(t, s, r, c)
		data = note()
	}
	return data, chapters
}

// rewrite is a new file for a record that was read: how it would have begun, and what happened since.
func rewrite(r *Record) ([]byte, error) {
	begin := *r
	begin.Steps = nil
	if r.Phase != Renewing {
		begin.Phase = Intended
	}
	var changes, undone []Change
	for i, s := range r.Steps {
		begin.Steps = append(begin.Steps, Step{Step: s.Step, State: step.Intended})
		switch s.State {
		case step.Done:
			changes = append(changes, Change{Step: i, State: s.State})
		case step.Undone: // which is legal only once the claim is released
			undone = append(undone, Change{Step: i, State: s.State})
		case step.Intended:
		}
	}
	if r.Phase != begin.Phase {
		changes = append(changes, Change{Phase: r.Phase})
	}
	changes = append(changes, undone...)
	data, err := encode(&begin)
	for i := 0; err == nil && i < len(changes); i++ {
		var more []byte
		more, err = encodeFrame(head{}, changes[i])
		data = append(data, more...)
	}
	return data, err
}
