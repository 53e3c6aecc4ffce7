// SPDX-License-Identifier: Apache-2.0

package hostmount

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/step"
	"github.com/fettle-dev/fettle/test/check"
)

// node is a directory of mounts and a host's tree, on mounts of the test's own.
type node struct {
	*testing.T
	*Dir
	host string
}

func newNode(t *testing.T) *node {
	t.Helper()
	root := t.TempDir()
	check.Mount(t, root, check.Tmpfs("size=16m"))
	if err := unix.Mount("", root, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	n := &node{T: t, host: filepath.Join(root, "host"), Dir: In(filepath.Join(root, "mounts"), filepath.Join(root, "host"))}
	n.write("data/team/file", "of the host")
	n.write("etc/shadow", "secret")
	return n
}

func (n *node) write(name, content string) {
	n.Helper()
	at := filepath.Join(n.host, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(content), 0o644)); err != nil {
		n.Fatal(err)
	}
}

func (n *node) plan(m Mount) (string, step.Step) {
	n.Helper()
	at, s, err := n.Plan("claim-1", "key", m)
	if err != nil {
		n.Fatal(err)
	}
	return at, s
}

// do applies or undoes a step twice, as whoever did not hear of the first time.
func (n *node) do(do func(step.Kinds, step.Step) error, s step.Step) {
	n.Helper()
	for range 2 {
		if err := do(step.Kinds{StepKind: n.Kind()}, s); err != nil {
			n.Fatal(err)
		}
	}
}

func (n *node) apply(s step.Step) {
	n.Helper()
	n.do(func(k step.Kinds, s step.Step) error { return k.Apply(n.Context(), s) }, s)
}

func (n *node) undo(s step.Step) {
	n.Helper()
	n.do(func(k step.Kinds, s step.Step) error { return k.Undo(n.Context(), s) }, s)
	if left, err := os.ReadDir(n.path); err != nil || len(left) > 0 {
		n.Errorf("after it was undone there is %v, %v", left, err)
	}
}

func (n *node) reads(name, want string) {
	n.Helper()
	if got, err := os.ReadFile(name); err != nil || string(got) != want {
		n.Errorf("%s has %q, %v, want %q", name, got, err, want)
	}
}

func below(path string, readOnly bool) Mount {
	return Mount{Copy: &Copy{Below: "/data", Path: path, ReadOnly: readOnly}}
}

func TestCopy(t *testing.T) {
	for name, c := range map[string]struct {
		mount Mount
		file  string
	}{
		"directory": {below("team", true), "file"},
		"file":      {below("team/file", true), ""},
		"itself":    {below(".", true), "team/file"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			at, s := n.plan(c.mount)
			n.apply(s)
			n.reads(filepath.Join(at, c.file), "of the host")
			if err := os.WriteFile(filepath.Join(at, c.file), nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("written to a copy that is for reading: %v", err)
			}
			n.undo(s)
			n.reads(filepath.Join(n.host, "data/team/file"), "of the host")
		})
	}
}

func TestCopyIsWritten(t *testing.T) {
	n := newNode(t)
	at, s := n.plan(below("team", false))
	n.apply(s)
	if err := os.WriteFile(filepath.Join(at, "file"), []byte("changed"), 0o600); err != nil {
		t.Error(err)
	}
	n.reads(filepath.Join(n.host, "data/team/file"), "changed")
	var stat unix.Statfs_t
	if err := unix.Statfs(at, &stat); err != nil || stat.Flags&unix.ST_NOSUID == 0 || stat.Flags&unix.ST_NODEV == 0 {
		t.Errorf("flags %#x, %v: want a copy in which no program is another user's and no file a device", stat.Flags, err)
	}
	n.undo(s)
	n.reads(filepath.Join(n.host, "data/team/file"), "changed")
}

// TestReadOnlyHost: a claim cannot write where the host itself does not.
func TestReadOnlyHost(t *testing.T) {
	n := newNode(t)
	at, s := n.plan(below("team", false))
	team := filepath.Join(n.host, "data/team")
	for _, flags := range []uintptr{unix.MS_BIND, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY} {
		if err := unix.Mount(team, team, "", flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	n.apply(s)
	if err := os.WriteFile(filepath.Join(at, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("written to what the host has for reading: %v", err)
	}
	n.undo(s)
}

// TestSwapped: what a claim was given is not what its path leads to later.
func TestSwapped(t *testing.T) {
	n := newNode(t)
	at, s := n.plan(below("team", true))
	n.apply(s)
	team := filepath.Join(n.host, "data/team")
	if err := errors.Join(os.Rename(team, team+".old"), os.Symlink("../etc", team)); err != nil {
		t.Fatal(err)
	}
	n.apply(s)
	n.reads(filepath.Join(at, "file"), "of the host")
	n.undo(s)
}

func TestRefused(t *testing.T) {
	n := newNode(t)
	data := filepath.Join(n.host, "data")
	links := map[string]string{"link": "../etc", "absolute": "/etc", "inside": "team", "up": "..", "magic": "/proc/self/root/etc"}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(data, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(unix.Mkfifo(filepath.Join(data, "pipe"), 0o600), os.Symlink("../etc", filepath.Join(data, "team/out"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{
		"link": ErrOutside, "absolute": ErrOutside, "inside": ErrOutside, "up/etc": ErrOutside, "magic": ErrOutside,
		"team/out": ErrOutside, "team/out/shadow": ErrOutside, "nowhere": fs.ErrNotExist, "pipe": nil,
	} {
		m := below(name, true)
		if _, err := n.CheckCopy(m.Copy); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("look at %s: %v, want %v", name, err, want)
		}
		at, s := n.plan(m)
		if err := (step.Kinds{StepKind: n.Kind()}).Apply(t.Context(), s); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if there, err := mounted(at); there || err != nil {
			t.Errorf("%s: mounted %v, %v", name, there, err)
		}
	}
	for _, name := range []string{"../etc", "/etc", "team/../../etc", ""} {
		if _, _, err := n.Plan("claim-1", "key", below(name, true)); !errors.Is(err, ErrOutside) {
			t.Errorf("plan %q: %v, want %v", name, err, ErrOutside)
		}
	}
}

// TestForeignParameters: the parameters are read from a file, and name nothing outside.
func TestForeignParameters(t *testing.T) {
	n := newNode(t)
	kinds := step.Kinds{StepKind: n.Kind()}
	for _, raw := range []string{
		`{}`, `{"name":"a"}`, `{"name":"../host/etc"}`, `{"name":"a/.."}`, `{"name":"/a"}`, `{"name":"a/b/c"}`, `"text"`, ``,
	} {
		s := step.Step{Kind: StepKind, Params: json.RawMessage(raw)}
		if kinds.Apply(t.Context(), s) == nil || kinds.Undo(t.Context(), s) == nil {
			t.Errorf("%s was taken", raw)
		}
	}
	for _, raw := range []string{
		`{"name":"a/b"}`, `{"name":"a/b","scratch":{"bytes":0}}`, `{"name":"a/b","copy":{"below":"/data","path":"../etc"}}`,
		`{"name":"a/b","copy":{"below":"data","path":"."}}`, `{"name":"a/b","copy":{"below":"/data","path":"."},"scratch":{"bytes":1}}`,
	} {
		if err := kinds.Apply(t.Context(), step.Step{Kind: StepKind, Params: json.RawMessage(raw)}); err == nil {
			t.Errorf("%s was taken", raw)
		}
	}
	n.reads(filepath.Join(n.host, "etc/shadow"), "secret")
}

func TestScratch(t *testing.T) {
	n := newNode(t)
	at, s := n.plan(Mount{Scratch: &Scratch{Bytes: 1 << 20}})
	n.apply(s)
	if err := os.WriteFile(filepath.Join(at, "fits"), make([]byte, 1<<19), 0o600); err != nil {
		t.Error(err)
	}
	n.apply(s)
	if err := os.WriteFile(filepath.Join(at, "file"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("more than the limit was written: %v", err)
	}
	if stat, err := os.Stat(at); err != nil || stat.Mode().Perm() != 0o777 {
		t.Errorf("mode %v, %v: want one that every user can write to", stat.Mode(), err)
	}
	for i := range 1 << 10 { // as many files as it has pages
		if err := os.WriteFile(filepath.Join(at, strings.Repeat("x", i%200+1)+string(rune('a'+i/200))), nil, 0o600); err != nil {
			n.undo(s)
			return
		}
	}
	t.Error("the number of files has no limit")
	n.undo(s)
}

// TestLeft: what a claim whose record is lost may have had is found by what is there.
func TestLeft(t *testing.T) {
	n := newNode(t)
	_, first := n.plan(below("team", true))
	_, second := n.plan(Mount{Scratch: &Scratch{Bytes: 4096}})
	n.apply(first)
	n.apply(second)
	if err := n.Destroy(); err == nil {
		t.Error("the directory of mounts was removed with mounts in it")
	}
	if claims, err := n.Claims(); err != nil || len(claims) != 1 || claims[0] != "claim-1" {
		t.Errorf("claims %v, %v", claims, err)
	}
	left, err := n.LeftoverSteps("claim-1")
	if err != nil || len(left) != 2 {
		t.Fatalf("left are %v, %v, want both", left, err)
	}
	for _, s := range left {
		if !s.Same(first) && !s.Same(second) {
			t.Errorf("left is %v, want one of %v and %v", s, first, second)
		}
		if err := (step.Kinds{StepKind: n.Kind()}).Undo(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
	if left, err := n.LeftoverSteps("claim-1"); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v, want none", left, err)
	}
	for range 2 {
		if err := n.Destroy(); err != nil {
			t.Error(err)
		}
	}
	n.reads(filepath.Join(n.host, "data/team/file"), "of the host")
}

// TestUnseen: a mount that nobody but the plugin would see is not made, since the container would get the empty directory under it.
func TestUnseen(t *testing.T) {
	n := newNode(t)
	if err := unix.Mount("", filepath.Dir(n.path), "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	at, s := n.plan(below("team", true))
	if err := (step.Kinds{StepKind: n.Kind()}).Apply(t.Context(), s); !errors.Is(err, ErrUnseen) {
		t.Errorf("got %v, want %v", err, ErrUnseen)
	}
	if there, err := mounted(at); there || err != nil {
		t.Errorf("mounted %v, %v", there, err)
	}
}

func TestIsShared(t *testing.T) {
	const table = `22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
35 22 0:30 / /shared:5 rw shared:7 master:3 - tmpfs shared:9 rw
36 22 0:31 / /slave rw master:3 - tmpfs shared:9 rw
`
	for id, want := range map[uint64]bool{22: false, 35: true, 36: false, 3: false} {
		if got := isShared(table, id); got != want {
			t.Errorf("mount %d: shared %v, want %v", id, got, want)
		}
	}
}

// TestApart: mounts of one claim that differ in anything have places of their own, and the same is the same step.
func TestApart(t *testing.T) {
	d, seen := In("/state/mounts", "/"), map[string]bool{}
	for _, m := range []Mount{
		below("team", true), below("team", false), below("other", true), {Scratch: &Scratch{1}}, {Scratch: &Scratch{2}},
	} {
		for _, key := range []string{"one", "two"} {
			at, s, err := d.Plan("claim", key, m)
			if err != nil || seen[at] || !strings.HasPrefix(at, "/state/mounts/claim/") {
				t.Errorf("%+v is at %s, %v", m, at, err)
			}
			seen[at] = true
			if _, again, _ := d.Plan("claim", key, m); !again.Same(s) {
				t.Errorf("%+v is step %v, and then %v", m, s, again)
			}
		}
	}
}

// TestNeeds: each mount counts, of whatever kind, since the kernel has only so many for the node.
func TestNeeds(t *testing.T) {
	d := In("/mounts", "/")
	for _, tc := range []struct {
		mount Mount
		want  []budget.Need
	}{
		{Mount{Copy: &Copy{Below: "/data", Path: "a"}}, []budget.Need{{Resource: budget.Mounts, Amount: 1}}},
		{
			Mount{Scratch: &Scratch{Bytes: 4096}},
			[]budget.Need{{Resource: budget.Mounts, Amount: 1}, {Resource: budget.Memory, Amount: MemoryOf(4096)}},
		},
	} {
		_, s, err := d.Plan("claim-1", "", tc.mount)
		check.Must(t, err)
		got, err := d.Kind().Needs(s.Params)
		check.Must(t, err)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestAnotherKind: a reboot leaves mount points. The host may have a directory then where it had a file, and the other way round.
func TestAnotherKind(t *testing.T) {
	n := newNode(t)
	at, s := n.plan(below("team", true))
	team := filepath.Join(n.host, "data/team")
	n.apply(s)
	for _, directory := range []bool{false, true} {
		check.Must(t, errors.Join(unix.Unmount(at, unix.MNT_DETACH), os.RemoveAll(team)))
		if directory {
			n.write("data/team/file", "again")
			n.apply(s)
			n.reads(filepath.Join(at, "file"), "again")
		} else {
			n.write("data/team", "a file")
			n.apply(s)
			n.reads(at, "a file")
		}
	}
	n.undo(s)
}
