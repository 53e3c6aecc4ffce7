// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/seed"
)

// mount mounts a file system on a directory, which it makes, until the test is over.
func mount(t *testing.T, at string, f check.Filesystem) {
	t.Helper()
	check.Must(t, os.MkdirAll(at, 0o755))
	check.Mount(t, at, f)
}

// attach mounts the image of a disk, as after a boot.
func attach(t *testing.T, image, at string) {
	t.Helper()
	check.Must(t, os.MkdirAll(at, 0o755))
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop", image, at).CombinedOutput(); err != nil {
		t.Skipf("this machine lets nobody mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
}

func detach(t *testing.T, at string) {
	t.Helper()
	check.Must(t, unix.Unmount(at, 0))
}

// newDisk makes an ext4 in a file.
func newDisk(t *testing.T, options ...string) (image string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Skipf("needs mkfs.ext4: %v", err)
	}
	image = filepath.Join(t.TempDir(), "disk.img")
	check.Must(t, os.WriteFile(image, nil, 0o600), os.Truncate(image, 8<<20))
	if out, err := exec.CommandContext(t.Context(), mkfs, append(append([]string{"-q"}, options...), image)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return image
}

// wantReplaced wants that every part of the step refuses another directory than the claim got, and says what it looked for.
func wantReplaced(t *testing.T, kind step.Kind, s step.Step, words ...string) {
	t.Helper()
	for verb, do := range map[string]func() error{
		"undo":   func() error { return kind.Undo(t.Context(), s.Params) },
		"finish": func() error { return kind.Finish(t.Context(), s.Params) },
	} {
		err := do()
		check.WantErr(t, err, step.ErrReplaced, append([]string{s.Target}, words...)...)
		if err == nil {
			t.Errorf("%s: done on another directory", verb)
		}
	}
	if kind.Apply(t.Context(), s.Params) == nil || kind.Verify(t.Context(), s.Params) == nil {
		t.Error("applied or verified on another directory")
	}
}

// TestAnotherDirectory: what the path leads to now is not what the claim got, and is left alone. What the claim got is emptied once it is
// back.
func TestAnotherDirectory(t *testing.T) {
	p := newPlace(t)
	keeps(t, p.lent)
	kind, s := lend(t, p)
	check.Must(t, kind.Apply(t.Context(), s.Params))
	aside := filepath.Join(filepath.Dir(p.lent), "aside")
	check.Must(t, os.WriteFile(filepath.Join(p.lent, "secret"), nil, 0o600), os.Rename(p.lent, aside))
	check.Must(t, os.Rename(p.outside, p.lent))
	wantReplaced(t, kind, s, "inode", "and there is a directory of", "put it back")
	check.Must(t, os.Rename(p.lent, p.outside))
	p.untouched(t)

	check.Must(t, os.Rename(aside, p.lent), Undo(t.Context(), kind, s.Params))
	if left := names(t, p.lent); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// keeps skips a test where a directory has nothing that tells it from another.
func keeps(t *testing.T, path string) {
	t.Helper()
	d, err := Open(path)
	check.Must(t, err)
	defer d.Close()
	at, err := d.place()
	check.Must(t, err)
	if at.Inode == 0 {
		t.Skipf("the directories of this file system are not told apart: %s", &at)
	}
}

// TestDirectoryGone: a directory that was deleted is undone, one that is out of sight is not.
func TestDirectoryGone(t *testing.T) {
	p := newPlace(t)
	keeps(t, p.lent)
	root := filepath.Dir(p.lent)
	deep := filepath.Join(root, "disks", "lent")
	check.Must(t, os.MkdirAll(deep, 0o755))
	kind := Kind(root, OpenRoot)
	s, err := Plan(root, "/disks/lent", "u1")
	check.Must(t, err)
	check.Must(t, os.Rename(filepath.Dir(deep), filepath.Join(root, "away")))
	wantReplaced(t, kind, s, "there is nothing") // nothing at all
	check.Must(t, os.Mkdir(filepath.Dir(deep), 0o755))
	wantReplaced(t, kind, s, "there is nothing") // another directory above
	check.Must(t, os.Remove(filepath.Dir(deep)), os.Rename(filepath.Join(root, "away"), filepath.Dir(deep)))
	check.Must(t, os.Remove(deep), Undo(t.Context(), kind, s.Params))
}

// TestOlderStep: a step that a version before noted, without the place, is undone where the path leads.
func TestOlderStep(t *testing.T) {
	p := newPlace(t)
	kind, s := lend(t, p)
	params, err := step.Decode[Params](s.Params)
	check.Must(t, err)
	params.Place = nil
	older, err := json.Marshal(params)
	check.Must(t, err)
	if strings.Contains(string(older), "place") {
		t.Errorf("parameters %s", older)
	}
	check.Must(t, os.Rename(p.lent, p.lent+"-aside"), os.Mkdir(p.lent, 0o755))
	check.Must(t, Undo(t.Context(), kind, older))
	check.Must(t, os.Remove(p.lent), Undo(t.Context(), kind, older))
}

// TestDiskNotMounted plays a disk that is mounted at the directory or above, and boots in which it is not: whatever there is then, a
// claim's file never reaches the next claim, and nothing but the claim's directory is emptied.
func TestDiskNotMounted(t *testing.T) {
	disks := []string{newDisk(t), newDisk(t)}
	random := seed.New(t)
	for name, at := range map[string]struct{ mount, path string }{
		"the directory":     {"/mnt/disks/ssd0", "/mnt/disks/ssd0"},
		"the one above":     {"/mnt/disks", "/mnt/disks/ssd0"},
		"further above":     {"/mnt", "/mnt/disks/ssd0"},
		"a bind mount":      {"", "/mnt/disks/ssd0"},
		"a file in memory ": {"tmpfs", "/mnt/disks/ssd0"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			path, source := filepath.Join(root, at.path), filepath.Join(root, "data")
			check.Must(t, os.MkdirAll(source, 0o755), os.MkdirAll(path, 0o755))
			mounted := filepath.Join(root, at.mount)
			appear := func(disk string) { attach(t, disk, mounted) }
			switch at.mount {
			case "":
				mounted, appear = path, func(string) { mount(t, path, check.Filesystem{Source: source, Flags: unix.MS_BIND}) }
			case "tmpfs":
				mounted, appear = path, func(string) { mount(t, path, check.Tmpfs("size=1m")) }
			}
			keeps(t, path)
			kind := Kind(root, OpenRoot)
			appear(disks[0])
			check.Must(t, os.MkdirAll(path, 0o755))
			s, err := Plan(root, at.path, "u1")
			check.Must(t, err)
			secret := filepath.Join(path, "secret")
			check.Must(t, kind.Apply(t.Context(), s.Params), os.WriteFile(secret, nil, 0o600))
			for range 1 + random.IntN(3) {
				detach(t, mounted)
				unmounted := []func(){
					func() {},
					func() {
						check.Must(t, os.MkdirAll(path, 0o755), os.WriteFile(filepath.Join(path, "theirs"), nil, 0o600))
					},
					func() { check.Must(t, os.RemoveAll(path)) },
					func() {
						check.Must(t, os.RemoveAll(filepath.Join(root, "mnt")), os.MkdirAll(filepath.Dir(path), 0o755))
					},
				}
				unmounted[random.IntN(len(unmounted))]()
				left := fmt.Sprint(os.ReadDir(path))
				wantReplaced(t, kind, s)
				if now := fmt.Sprint(os.ReadDir(path)); now != left {
					t.Errorf("there was %s, and is %s", left, now)
				}
				if at.mount != "" && at.mount != "tmpfs" && random.IntN(2) == 0 { // a disk, but another one
					attach(t, disks[1], mounted)
					wantReplaced(t, kind, s)
					detach(t, mounted)
				}
				appear(disks[0])
			}
			check.Must(t, Undo(t.Context(), kind, s.Params))
			if left, _ := os.ReadDir(path); len(left) > 0 {
				t.Errorf("the next claim gets %v", left)
			}
		})
	}
}

// TestDiskAwayWhileARecordIsLost: the record of a claim is lost, and the disk is not mounted when the claim ends. Once it is back, it tells
// that what is on it is that claim's.
func TestDiskAwayWhileARecordIsLost(t *testing.T) {
	image, root := newDisk(t), t.TempDir()
	path := filepath.Join(root, "ssd0")
	attach(t, image, path)
	s, err := Plan(root, "/ssd0", "u1")
	check.Must(t, err)
	kinds := step.Kinds{StepKind: Kind(root, OpenRoot)}
	check.Must(t, kinds.Apply(t.Context(), s), os.WriteFile(filepath.Join(path, "secret"), nil, 0o600))
	detach(t, path)
	_, err = PlanUndo(root, "/ssd0", "u1")
	check.WantErr(t, err, ErrNotScratch)
	attach(t, image, path)
	recorded := func(claim string) bool { return claim == "u2" }
	check.WantErr(t, CheckLeft(root, "/ssd0", recorded), ErrLeft, "/ssd0")
	check.Must(t, CheckLeft(root, "/ssd0", func(claim string) bool { return claim == "u1" }))
	s, err = PlanUndo(root, "/ssd0", "u1")
	check.Must(t, err)
	check.Must(t, kinds.Undo(t.Context(), s), kinds.Finish(t.Context(), s), CheckLeft(root, "/ssd0", recorded))
}

// TestIdentity: what is not known counts for nothing, and all else must be equal.
func TestIdentity(t *testing.T) {
	full := Identity{Type: "ef53", FileSystem: "a", Inode: 2, Born: "1.0"}
	for _, tc := range []struct {
		other Identity
		want  bool
	}{
		{full, true},
		{Identity{Type: "ef53"}, true}, // as from a kernel that does not say more
		{Identity{Type: "ef53", FileSystem: "a", Inode: 2}, true},
		{Identity{Type: "1021994"}, false},
		{Identity{Type: "ef53", FileSystem: "b", Inode: 2, Born: "1.0"}, false},
		{Identity{Type: "ef53", FileSystem: "a", Inode: 3, Born: "1.0"}, false},
		{Identity{Type: "ef53", FileSystem: "a", Inode: 2, Born: "1.1"}, false},
	} {
		if full.is(tc.other) != tc.want || tc.other.is(full) != tc.want {
			t.Errorf("%s and %s: want one directory %t", full, tc.other, tc.want)
		}
	}
}

// TestHangingServer: a step on a directory whose disk or server does not answer ends in time, in each direction.
func TestHangingServer(t *testing.T) {
	root := t.TempDir()
	check.Must(t, os.Mkdir(filepath.Join(root, "nfs"), 0o755))
	s, err := Plan(root, "/nfs", "u1")
	check.Must(t, err)
	patient := clocktesting.NewFakeClock(time.Unix(0, 0))
	check.HangingMount(t, filepath.Join(root, "nfs"))
	for name, do := range map[string]func(step.Kinds) error{
		"Apply":  func(k step.Kinds) error { return k.Apply(t.Context(), s) },
		"Verify": func(k step.Kinds) error { return k.Verify(t.Context(), s) },
		"Undo":   func(k step.Kinds) error { return k.Undo(t.Context(), s) },
		"Finish": func(k step.Kinds) error { return k.Finish(t.Context(), s) },
	} {
		k := kind{hostRoot: root, open: OpenRoot, reads: sysfs.NewReads(patient, patience)}
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			err = do(step.Kinds{StepKind: k.step()})
		}()
		check.Wind(t, name+" ends", patient, patience, check.Received(done))
		check.WantErr(t, err, sysfs.ErrNoAnswer, "/nfs")
	}
}
