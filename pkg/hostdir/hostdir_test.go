// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
)

// place is a directory to lend beside a directory that nothing may touch.
type place struct{ lent, outside string }

func newPlace(t *testing.T) place {
	t.Helper()
	base := t.TempDir()
	p := place{lent: filepath.Join(base, "lent"), outside: filepath.Join(base, "outside")}
	for _, dir := range []string{p.lent, p.outside, filepath.Join(p.outside, "sub")} {
		check.Must(t, os.Mkdir(dir, 0o755))
	}
	check.Must(t, os.WriteFile(filepath.Join(p.outside, "secret"), []byte("kept"), 0o600))
	check.Must(t, os.WriteFile(filepath.Join(p.outside, "sub", "file"), []byte("kept"), 0o600))
	return p
}

// untouched fails where anything outside the lent directory changed.
func (p place) untouched(t *testing.T) {
	t.Helper()
	want := []string{"755 .", "600 secret kept", "755 sub", "600 sub/file kept"}
	var got []string
	err := filepath.WalkDir(p.outside, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(p.outside, path)
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%o %s", info.Mode().Perm(), name)
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + string(content)
		}
		got = append(got, line)
		return nil
	})
	check.Must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outside (-want +got):\n%s", diff)
	}
}

func (p place) open(t *testing.T) *Dir {
	t.Helper()
	d, err := Open(p.lent)
	check.Must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check.Must(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// hostile are the things that a workload may leave, each made in the lent directory.
func hostile() map[string]func(p place) error {
	at := filepath.Join
	return map[string]func(p place) error{
		"nothing":       func(place) error { return nil },
		"plain file":    func(p place) error { return os.WriteFile(at(p.lent, "f"), []byte("x"), 0o600) },
		"link to file":  func(p place) error { return os.Symlink(at(p.outside, "secret"), at(p.lent, "l")) },
		"link to dir":   func(p place) error { return os.Symlink(p.outside, at(p.lent, "l")) },
		"link upwards":  func(p place) error { return os.Symlink("../outside", at(p.lent, "l")) },
		"link to self":  func(p place) error { return os.Symlink("l", at(p.lent, "l")) },
		"hard link":     func(p place) error { return os.Link(at(p.outside, "secret"), at(p.lent, "h")) },
		"fifo":          func(p place) error { return syscall.Mkfifo(at(p.lent, "fifo"), 0o666) },
		"trash file":    func(p place) error { return os.WriteFile(at(p.lent, trashPrefix+"u1-0"), nil, 0o600) },
		"trash dir":     func(p place) error { return os.MkdirAll(at(p.lent, trashPrefix+"u1-0", "a", "b"), 0o777) },
		"trash link":    func(p place) error { return os.Symlink(p.outside, at(p.lent, trashPrefix+"u1-0")) },
		"inner link":    func(p place) error { return linkBelow(p, at(p.lent, "d")) },
		"in trash link": func(p place) error { return linkBelow(p, at(p.lent, trashPrefix+"u1-0")) },
		"odd names": func(p place) error {
			for _, name := range []string{"new\nline", "-rf", "*", "\xff\xfe", " ", "...", strings.Repeat("n", 255), "1", "2"} {
				if err := os.MkdirAll(at(p.lent, name, name), 0o755); err != nil {
					return err
				}
			}
			return nil
		},
		"names of lifted directories": func(p place) error {
			for _, name := range []string{"a/1/x/y/z", "a/2/x/y/z", "1/1/1/1", "2/2/2"} {
				if err := os.MkdirAll(at(p.lent, name), 0o755); err != nil {
					return err
				}
			}
			return os.WriteFile(at(p.lent, "3"), nil, 0o600)
		},
		"modes": func(p place) error {
			return errors.Join(
				os.MkdirAll(at(p.lent, "ro", "sub", "subsub"), 0o755),
				os.WriteFile(at(p.lent, "ro", "sub", "f"), nil, 0),
				os.Chmod(at(p.lent, "ro", "sub"), 0o500), os.Chmod(at(p.lent, "ro"), 0o500),
				os.Mkdir(at(p.lent, "sticky"), 0o777), os.WriteFile(at(p.lent, "sticky", "f"), nil, 0o600),
				os.Chmod(at(p.lent, "sticky"), 0o777|os.ModeSticky|os.ModeSetgid),
				os.Mkdir(at(p.lent, "none"), 0),
			)
		},
	}
}

func linkBelow(p place, dir string) error {
	return errors.Join(os.Mkdir(dir, 0o755), os.Symlink(p.outside, filepath.Join(dir, "out")), os.Symlink("../..", filepath.Join(dir, "up")))
}

func TestHostileContent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("not root: modes that deny their own user are left out, as the plugin runs as root")
	}
	for name, leave := range hostile() {
		t.Run(name, func(t *testing.T) {
			if name == "modes" && os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			p := newPlace(t)
			check.Must(t, leave(p))
			d := p.open(t)
			for range 2 { // both are safe to run twice
				check.Must(t, d.SetAside(t.Context(), "u1"))
				for _, left := range names(t, p.lent) {
					if !strings.HasPrefix(left, trashPrefix) {
						t.Errorf("%q was not set aside", left)
					}
				}
			}
			dirty, err := d.Dirty()
			check.Must(t, err)
			// A single small file is not even moved.
			if want := !slices.Contains([]string{"nothing", "plain file", "hard link"}, name); dirty != want {
				t.Errorf("dirty %v, want %v", dirty, want)
			}
			for range 2 {
				check.Must(t, d.Purge(t.Context()))
				if left := names(t, p.lent); len(left) > 0 {
					t.Errorf("left: %q", left)
				}
			}
			if dirty, err := d.Dirty(); err != nil || dirty {
				t.Errorf("dirty %v (%v) after Purge", dirty, err)
			}
			p.untouched(t)
		})
	}
}

// TestSetAsideAgain: however often it is called, content is not nested deeper, and new content joins.
func TestSetAsideAgain(t *testing.T) {
	p := newPlace(t)
	d := p.open(t)
	check.Must(t, os.Mkdir(filepath.Join(p.lent, "a"), 0o700))
	check.Must(t, d.SetAside(t.Context(), "u1"))
	check.Must(t, d.SetAside(t.Context(), "u1"))
	check.Must(t, os.Mkdir(filepath.Join(p.lent, "b"), 0o700)) // a writer that was late
	check.Must(t, d.SetAside(t.Context(), "u1"))
	if diff := cmp.Diff([]string{trashPrefix + "u1-0", trashPrefix + "u1-1"}, names(t, p.lent)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a"}, names(t, filepath.Join(p.lent, trashPrefix+"u1-0"))); diff != "" {
		t.Errorf("first trash (-want +got):\n%s", diff)
	}
}

// TestLittleIsDeletedAtOnce: small files, where there are few entries.
func TestLittleIsDeletedAtOnce(t *testing.T) {
	tests := map[string]struct {
		files int
		size  int64
		aside []string
	}{
		"nothing":        {aside: []string{"d"}},
		"few and small":  {files: few - 1, size: small, aside: []string{"d"}},
		"one more":       {files: few, size: small, aside: []string{"d", "f0", "f1", "f10"}},
		"few, not small": {files: 2, size: small + 1, aside: []string{"d", "f0", "f1"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			d := p.open(t)
			check.Must(t, os.Mkdir(filepath.Join(p.lent, "d"), 0o700)) // which is always moved
			for i := range tt.files {
				file := filepath.Join(p.lent, fmt.Sprintf("f%d", i))
				check.Must(t, os.WriteFile(file, nil, 0o600))
				check.Must(t, os.Truncate(file, tt.size))
			}
			check.Must(t, d.SetAside(t.Context(), "u1"))
			if diff := cmp.Diff([]string{trashPrefix + "u1-0"}, names(t, p.lent)); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
			got := names(t, filepath.Join(p.lent, trashPrefix+"u1-0"))
			if diff := cmp.Diff(tt.aside, got[:min(len(got), 4)]); diff != "" {
				t.Errorf("the first that were set aside (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPurgeLeavesTheRest deletes only what was set aside.
func TestPurgeLeavesTheRest(t *testing.T) {
	p := newPlace(t)
	d := p.open(t)
	check.Must(t, os.MkdirAll(filepath.Join(p.lent, "mine", "sub"), 0o755))
	check.Must(t, os.Mkdir(filepath.Join(p.lent, trashPrefix+"u0-0"), 0o755))
	check.Must(t, d.Purge(t.Context()))
	if diff := cmp.Diff([]string{"mine"}, names(t, p.lent)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// TestDeepTree: a tree deeper than the process may have open files is deleted with a handful of them.
func TestDeepTree(t *testing.T) {
	const depth, limit = 1500, 64
	p := newPlace(t)
	makeDeep(t, p.lent, depth)
	d := p.open(t)
	check.Must(t, d.SetAside(t.Context(), "u1"))
	var before syscall.Rlimit
	check.Must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	lowered := before
	lowered.Cur = limit
	check.Must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lowered))
	err := d.Purge(t.Context())
	check.Must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
	check.Must(t, err)
	if left := names(t, p.lent); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// keyless is a directory with others that a workload encrypted with a key which is gone: nothing is renamed out of those.
type keyless struct{ Root }

func (k keyless) open(path string) (root Root, err error) {
	k.Root, err = OpenRoot(path)
	return k, err
}

func (k keyless) OpenRoot(name string) (root Root, err error) {
	k.Root, err = k.Root.OpenRoot(name)
	return k, err
}

func (k keyless) Rename(from, to string) error {
	if strings.Contains(from, "/") {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.ENOKEY}
	}
	return k.Root.Rename(from, to)
}

// TestNothingMoves: a tree of which nothing can be moved up is deleted, too, and a call that ended goes on the next time.
func TestNothingMoves(t *testing.T) {
	p := newPlace(t)
	makeDeep(t, p.lent, 64)
	for i := range 3 * few {
		check.Must(t, os.MkdirAll(filepath.Join(p.lent, "deep", fmt.Sprint(i), "d"), 0o755))
	}
	d, err := openWith(keyless{}.open, p.lent)
	check.Must(t, err)
	defer d.Close()
	check.Must(t, d.SetAside(t.Context(), "u1"))
	err = context.Canceled
	for tries := 1; errors.Is(err, context.Canceled); tries++ {
		err = d.Purge(&countdown{Context: t.Context(), left: 50 * tries})
	}
	check.Must(t, err)
	if left := names(t, p.lent); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// makeDeep makes directories one in another, each with a file, whose path is longer than the kernel takes in one call.
func makeDeep(t *testing.T, dir string, depth int) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	check.Must(t, err)
	for range depth {
		check.Must(t, root.Mkdir("deep", 0o755))
		check.Must(t, root.WriteFile("f", nil, 0o600))
		next, err := root.OpenRoot("deep")
		check.Must(t, errors.Join(err, root.Close()))
		root = next
	}
	check.Must(t, root.Close())
}

// TestPurgeInterrupted: what one process does not finish, the next does.
func TestPurgeInterrupted(t *testing.T) {
	p := newPlace(t)
	for i := range 50 {
		check.Must(t, os.MkdirAll(filepath.Join(p.lent, fmt.Sprint(i), "sub"), 0o755))
	}
	d := p.open(t)
	check.Must(t, d.SetAside(t.Context(), "u1"))
	ctx := &countdown{Context: t.Context(), left: 20}
	if err := d.Purge(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want context.Canceled", err)
	}
	if left := names(t, filepath.Join(p.lent, trashPrefix+"u1-0")); len(left) == 0 || len(left) >= 50 {
		t.Errorf("%d left, want it interrupted halfway", len(left))
	}
	dirty, err := d.Dirty()
	if err != nil || !dirty {
		t.Errorf("dirty %v (%v) although interrupted", dirty, err)
	}
	check.Must(t, d.Purge(t.Context()))
	if left := names(t, p.lent); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// countdown is a context that ends after it was asked a number of times.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestTakenNames: a claim is released whatever names of trash are taken, by tries before or by the workload, and however often.
func TestTakenNames(t *testing.T) {
	p := newPlace(t)
	d := p.open(t)
	const taken = 100
	for i := range taken {
		check.Must(t, os.WriteFile(filepath.Join(p.lent, fmt.Sprintf("%su1-%d", trashPrefix, i)), nil, 0o600))
	}
	for tries := range 2 {
		check.Must(t, os.Mkdir(filepath.Join(p.lent, "d"), 0o700))
		check.Must(t, d.SetAside(t.Context(), "u1"))
		if got, want := len(names(t, p.lent)), taken+tries+1; got != want {
			t.Errorf("%d names, want %d, all of them trash", got, want)
		}
	}
	check.Must(t, d.Purge(t.Context()))
	if left := names(t, p.lent); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// weighed measures the memory in use when the first entry is moved or removed.
type weighed struct {
	Root
	used uint64
}

func (w *weighed) weigh() {
	if w.used == 0 {
		w.used = inUse()
	}
}

func inUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (w *weighed) Rename(from, to string) error { w.weigh(); return w.Root.Rename(from, to) }

func (w *weighed) Remove(name string) error { w.weigh(); return w.Root.Remove(name) }

// TestManyNames: what is read of a directory is bounded, however many names a workload left in it.
func TestManyNames(t *testing.T) {
	const many, limit = 20_000, 2 << 20
	for _, prefix := range []string{"f", trashPrefix} {
		p := newPlace(t)
		for i := range many {
			name := fmt.Sprintf("%s%d-%s", prefix, i, strings.Repeat("n", 200))
			check.Must(t, os.Link(filepath.Join(p.outside, "secret"), filepath.Join(p.lent, name)))
		}
		root := &weighed{}
		d, err := openWith(func(path string) (Root, error) {
			var err error
			root.Root, err = OpenRoot(path)
			return root, err
		}, p.lent)
		check.Must(t, err)
		before := inUse()
		check.Must(t, d.SetAside(t.Context(), "u1"))
		check.Must(t, d.Purge(t.Context()))
		if used := int64(root.used) - int64(before); root.used == 0 || used > limit {
			t.Errorf("%s: %d bytes are in use for %d names, want at most %d", prefix, used, many, limit)
		}
		if left := names(t, p.lent); len(left) > 0 {
			t.Errorf("%s: %d names are left", prefix, len(left))
		}
		check.Must(t, d.Close())
		p.untouched(t)
	}
}

func TestOpenRefuses(t *testing.T) {
	p := newPlace(t)
	link, file := filepath.Join(p.lent, "link"), filepath.Join(p.lent, "file")
	check.Must(t, os.Symlink(p.outside, link))
	check.Must(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{link, file, filepath.Join(p.lent, "missing")} {
		d, err := Open(path)
		if err == nil {
			t.Errorf("opened %s", path)
			_ = d.Close()
			continue
		}
		if !strings.Contains(err.Error(), path) {
			t.Errorf("error %q does not name %s", err, path)
		}
	}
}

func TestOwner(t *testing.T) {
	p := newPlace(t)
	const mode = 0o2750
	check.Must(t, os.Chmod(p.lent, 0o750|os.ModeSetgid))
	if os.Geteuid() == 0 {
		check.Must(t, os.Chown(p.lent, 1000, 2000))
	}
	d := p.open(t)
	before, err := d.Owner()
	check.Must(t, err)
	check.Must(t, d.OpenUp())
	if info, err := os.Stat(p.lent); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("lent with mode %v (%v)", info.Mode(), err)
	}
	if os.Geteuid() == 0 {
		check.Must(t, os.Chown(p.lent, 0, 0))
	}
	check.Must(t, d.Restore(t.Context(), before))
	after, err := d.Owner()
	check.Must(t, err)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("owner (-before +after):\n%s", diff)
	}
	var stat syscall.Stat_t
	check.Must(t, syscall.Stat(p.lent, &stat))
	if stat.Mode&0o7777 != mode {
		t.Errorf("mode %o, want %o", stat.Mode&0o7777, mode)
	}
}
