// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// writer replaces or extends dir/rec, which holds "old", and has promised "new" when it returns.
type writer func(fsys disk.FS, dir string) error

// put writes a file in the order that the test wants.
func put(fsys disk.FS, path string, flag int, data string, then ...func(disk.File) error) error {
	f, err := fsys.OpenFile(path, flag, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(data))
	for _, do := range then {
		err = errors.Join(err, do(f))
	}
	return errors.Join(err, f.Close())
}

const (
	fresh  = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	extend = os.O_WRONLY | os.O_APPEND
)

// run gives the log of a writer in a directory that holds the start.
func run(t *testing.T, in *fault.Injector, w writer) (start *fault.Tree, dir string) {
	t.Helper()
	dir = t.TempDir()
	check.Must(t, os.WriteFile(filepath.Join(dir, "rec"), []byte("old"), 0o600))
	start, err := fault.Snapshot(dir)
	check.Must(t, err)
	in.Quick = true
	check.Must(t, w(in.FS(disk.OS{}), dir))
	return start, dir
}

// broken looks for a power loss, at any time, that the writer does not survive: before it returned there must be what is
// acceptable, and afterwards "new".
func broken(t *testing.T, in *fault.Injector, w writer, acceptable func(string) bool) string {
	t.Helper()
	start, _ := run(t, in, w)
	log := in.Log()
	for n := 1; n <= log.Changes()+1; n++ {
		for _, s := range all(t, start, log.Before(n), fault.Options{}) {
			data := content(t, s, "rec")
			if !acceptable(data) || n > log.Changes() && data != `"new"` {
				return fmt.Sprintf("cut before %d, lost %s: %s", n, s.Lost, data)
			}
		}
	}
	return ""
}

func oldOrNew(data string) bool { return data == `"old"` || data == `"new"` }

func TestWriters(t *testing.T) {
	tmp := func(dir string) string { return filepath.Join(dir, "tmp") }
	rec := func(dir string) string { return filepath.Join(dir, "rec") }
	for _, test := range []struct {
		name   string
		write  writer
		broken bool
	}{
		{"temporary file, sync, rename, sync of the directory", func(f disk.FS, dir string) error {
			return errors.Join(put(f, tmp(dir), fresh, "new", disk.File.Sync), f.Rename(tmp(dir), rec(dir)), f.SyncDir(dir))
		}, false},
		{"the same with a datasync", func(f disk.FS, dir string) error {
			return errors.Join(put(f, tmp(dir), fresh, "new", disk.File.Datasync), f.Rename(tmp(dir), rec(dir)), f.SyncDir(dir))
		}, false},
		{"no sync before the rename", func(f disk.FS, dir string) error {
			return errors.Join(put(f, tmp(dir), fresh, "new"), f.Rename(tmp(dir), rec(dir)), f.SyncDir(dir))
		}, true},
		{"sync only after the rename", func(f disk.FS, dir string) error {
			sync := func(file disk.File) error { return errors.Join(f.Rename(tmp(dir), rec(dir)), file.Sync()) }
			return errors.Join(put(f, tmp(dir), fresh, "new", sync), f.SyncDir(dir))
		}, true},
		{"no sync of the directory", func(f disk.FS, dir string) error {
			return errors.Join(put(f, tmp(dir), fresh, "new", disk.File.Sync), f.Rename(tmp(dir), rec(dir)))
		}, true},
		{"sync of the directory before the rename", func(f disk.FS, dir string) error {
			return errors.Join(put(f, tmp(dir), fresh, "new", disk.File.Sync), f.SyncDir(dir), f.Rename(tmp(dir), rec(dir)))
		}, true},
		{"sync of another directory", func(f disk.FS, dir string) error {
			return errors.Join(put(f, tmp(dir), fresh, "new", disk.File.Sync), f.Rename(tmp(dir), rec(dir)), f.SyncDir(filepath.Dir(dir)))
		}, true},
		{"overwritten in place", func(f disk.FS, dir string) error {
			return put(f, rec(dir), os.O_WRONLY|os.O_TRUNC, "new", disk.File.Sync)
		}, true},
		{"removed before the rename", func(f disk.FS, dir string) error {
			return errors.Join(put(f, tmp(dir), fresh, "new", disk.File.Sync), f.Remove(rec(dir)), f.Rename(tmp(dir), rec(dir)), f.SyncDir(dir))
		}, true},
		{"a sync that failed, and then one that did not", func(f disk.FS, dir string) error {
			twice := func(file disk.File) error {
				if err := file.Sync(); !errors.Is(err, syscall.EIO) {
					return fmt.Errorf("first sync: %w", err)
				}
				return file.Sync()
			}
			return errors.Join(put(f, tmp(dir), fresh, "new", twice), f.Rename(tmp(dir), rec(dir)), f.SyncDir(dir))
		}, true},
		{"ReplaceDurably", func(f disk.FS, dir string) error { return disk.ReplaceDurably(f, rec(dir), []byte("new"), 0o600) }, false},
		{"Replace", func(f disk.FS, dir string) error { return disk.Replace(f, rec(dir), []byte("new"), 0o600) }, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := fault.New()
			if strings.HasPrefix(test.name, "a sync that failed") {
				in.Set(fault.Fail(3, syscall.EIO))
			}
			got := broken(t, in, test.write, oldOrNew)
			if (got != "") != test.broken {
				t.Errorf("broken %q, want broken %t", got, test.broken)
			}
		})
	}
}

// TestAppend: with a datasync what was appended is certain; without one it may be missing, torn or zeros.
func TestAppend(t *testing.T) {
	appended := func(then ...func(disk.File) error) []string {
		in := fault.New()
		start, _ := run(t, in, func(f disk.FS, dir string) error { return put(f, filepath.Join(dir, "rec"), extend, "+new", then...) })
		var got []string
		for _, s := range all(t, start, in.Log(), fault.Options{}) {
			got = append(got, fmt.Sprintf("%s | lost: %s", content(t, s, "rec"), s.Lost))
		}
		slices.Sort(got)
		return got
	}
	if diff := cmp.Diff([]string{`"old+new" | lost: `}, appended(disk.File.Datasync)); diff != "" {
		t.Errorf("with a datasync (-want +got):\n%s", diff)
	}
	want := []string{
		`"old" | lost: write rec (#1) and later`,
		`"old+n" | lost: half of write rec (#1) and all later`,
		`"old+new" | lost: `,
		`"old\x00\x00\x00\x00" | lost: write rec (#1) and later, but for the length`,
	}
	if diff := cmp.Diff(want, appended()); diff != "" {
		t.Errorf("without one (-want +got):\n%s", diff)
	}
	for _, sync := range []bool{true, false} {
		got := broken(t, fault.New(), func(f disk.FS, dir string) error {
			if !sync {
				return put(f, filepath.Join(dir, "rec"), os.O_WRONLY, "new")
			}
			return put(f, filepath.Join(dir, "rec"), os.O_WRONLY, "new", disk.File.Datasync)
		}, func(data string) bool { return oldOrNew(data) || data == `"nld"` })
		if (got == "") != sync {
			t.Errorf("overwritten in place, sync %t: %q", sync, got)
		}
	}
}

func content(t *testing.T, s fault.State, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "s")
	check.Must(t, s.Materialise(dir))
	data, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return "none"
	}
	check.Must(t, err)
	return fmt.Sprintf("%q", data)
}

// outcomes are the distinct contents of some files over all states, after all operations.
func outcomes(t *testing.T, w writer, o func(dir string) fault.Options, names ...string) []string {
	t.Helper()
	in := fault.New()
	start, dir := run(t, in, w)
	var got []string
	options := fault.Options{}
	if o != nil {
		options = o(dir)
	}
	for _, s := range all(t, start, in.Log(), options) {
		var line []string
		for _, name := range names {
			line = append(line, content(t, s, name))
		}
		got = append(got, strings.Join(line, " "))
	}
	slices.Sort(got)
	return slices.Compact(got)
}

func TestNames(t *testing.T) {
	at := filepath.Join
	for _, test := range []struct {
		name  string
		write writer
		files []string
		want  []string
	}{
		{"a file in a new directory needs both synced", func(f disk.FS, dir string) error {
			return errors.Join(f.Mkdir(at(dir, "d"), 0o700), put(f, at(dir, "d/f"), fresh, "x", disk.File.Sync), f.SyncDir(at(dir, "d")))
		}, []string{"d/f"}, []string{`"x"`, "none"}},
		{"and has both", func(f disk.FS, dir string) error {
			return errors.Join(f.Mkdir(at(dir, "d"), 0o700), put(f, at(dir, "d/f"), fresh, "x", disk.File.Sync),
				f.SyncDir(at(dir, "d")), f.SyncDir(dir))
		}, []string{"d/f"}, []string{`"x"`}},
		{"the parent does not help", func(f disk.FS, dir string) error {
			return errors.Join(f.Mkdir(at(dir, "d"), 0o700), put(f, at(dir, "d/f"), fresh, "x", disk.File.Sync), f.SyncDir(dir))
		}, []string{"d/f"}, []string{`"x"`, "none"}},
		{"a move between directories is whole", func(f disk.FS, dir string) error {
			return errors.Join(f.Mkdir(at(dir, "d"), 0o700), f.SyncDir(dir), f.Rename(at(dir, "rec"), at(dir, "d/rec")))
		}, []string{"rec", "d/rec"}, []string{`"old" none`, `none "old"`}},
		{"and certain when either is synced", func(f disk.FS, dir string) error {
			return errors.Join(f.Mkdir(at(dir, "d"), 0o700), f.SyncDir(dir), f.Rename(at(dir, "rec"), at(dir, "d/rec")), f.SyncDir(at(dir, "d")))
		}, []string{"rec", "d/rec"}, []string{`none "old"`}},
		{"a move into a directory that is lost is lost", func(f disk.FS, dir string) error {
			return errors.Join(f.Mkdir(at(dir, "d"), 0o700), f.Rename(at(dir, "rec"), at(dir, "d/rec")))
		}, []string{"rec", "d/rec"}, []string{`"old" none`, `none "old"`}},
		{"but what was made certain there is lost with it", func(f disk.FS, dir string) error {
			return errors.Join(f.Mkdir(at(dir, "d"), 0o700), f.Rename(at(dir, "rec"), at(dir, "d/rec")), f.SyncDir(at(dir, "d")))
		}, []string{"rec", "d/rec"}, []string{`none "old"`, "none none"}},
		{"removals are independent", func(f disk.FS, dir string) error {
			return errors.Join(put(f, at(dir, "a"), fresh, "a", disk.File.Sync), put(f, at(dir, "b"), fresh, "b", disk.File.Sync), f.SyncDir(dir),
				f.Remove(at(dir, "a")), f.Remove(at(dir, "b")))
		}, []string{"a", "b"}, []string{`"a" "b"`, `"a" none`, `none "b"`, "none none"}},
		{"a directory goes only with what went from it", func(f disk.FS, dir string) error {
			return errors.Join(f.Mkdir(at(dir, "d"), 0o700), put(f, at(dir, "d/f"), fresh, "x", disk.File.Sync),
				f.SyncDir(dir), f.SyncDir(at(dir, "d")), f.Rename(at(dir, "d/f"), at(dir, "f")), f.Remove(at(dir, "d")))
		}, []string{"d/f", "f"}, []string{`"x" none`, `none "x"`}},
		{"directories move in order, so that none is moved into itself", func(f disk.FS, dir string) error {
			return errors.Join(f.Mkdir(at(dir, "a"), 0o700), f.Mkdir(at(dir, "b"), 0o700), put(f, at(dir, "a/f"), fresh, "x", disk.File.Sync),
				f.SyncDir(dir), f.SyncDir(at(dir, "a")),
				f.Rename(at(dir, "b"), at(dir, "a/b")), f.Rename(at(dir, "a/b"), at(dir, "c")), f.Rename(at(dir, "a"), at(dir, "c/a")))
		}, []string{"a/f", "c/a/f"}, []string{`"x" none`, `none "x"`}},
		{"a name keeps its order", func(f disk.FS, dir string) error {
			return errors.Join(put(f, at(dir, "a"), fresh, "1", disk.File.Sync), f.Rename(at(dir, "a"), at(dir, "rec")),
				put(f, at(dir, "a"), fresh, "2", disk.File.Sync), f.Rename(at(dir, "a"), at(dir, "rec")))
		}, []string{"a", "rec"}, []string{`"1" "old"`, `"2" "1"`, `none "1"`, `none "2"`, `none "old"`}},
		{"links are names too", func(f disk.FS, dir string) error {
			return errors.Join(f.Symlink("rec", at(dir, "a")), f.SyncDir(dir), f.Symlink("rec", at(dir, "b")))
		}, []string{"a", "b"}, []string{`"old" "old"`, `"old" none`}},
		{"a link's target is not its parent", func(f disk.FS, dir string) error {
			return errors.Join(f.Remove(at(dir, "rec")), f.Symlink("x", at(dir, "rec")), f.SyncDir(dir))
		}, []string{"rec"}, []string{"none"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, outcomes(t, test.write, nil, test.files...)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestContents: several writes that were not synced.
func TestContents(t *testing.T) {
	got := outcomes(t, func(f disk.FS, dir string) error {
		again := func(file disk.File) error {
			_, err := file.Write([]byte("ef"))
			return err
		}
		return put(f, filepath.Join(dir, "rec"), extend, "abcd", again)
	}, nil, "rec")
	want := []string{
		`"old"`, `"old\x00\x00\x00\x00\x00\x00"`, `"old\x00\x00\x00\x00ef"`,
		`"oldab"`, `"oldabcd"`, `"oldabcd\x00\x00"`, `"oldabcde"`, `"oldabcdef"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got = outcomes(t, func(f disk.FS, dir string) error {
		file, err := f.OpenFile(filepath.Join(dir, "rec"), extend, 0)
		check.Must(t, err)
		err = errors.Join(file.Truncate(1), file.Truncate(5))
		_, writeErr := file.Write([]byte("+"))
		return errors.Join(err, writeErr, file.Close())
	}, nil, "rec")
	want = []string{`"o"`, `"o\x00\x00\x00\x00"`, `"o\x00\x00\x00\x00+"`, `"o\x00\x00\x00\x00\x00"`, `"old"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("truncated (-want +got):\n%s", diff)
	}
}

// TestAttributes: mode and owner are certain after Sync, and not after Datasync.
func TestAttributes(t *testing.T) {
	modes := func(sync func(disk.File) error) []string {
		in := fault.New()
		start, _ := run(t, in, func(f disk.FS, dir string) error {
			file, err := f.OpenFile(filepath.Join(dir, "rec"), extend, 0)
			check.Must(t, err)
			return errors.Join(file.Chmod(0o640), sync(file), file.Chmod(0o444), file.Close())
		})
		var got []string
		for _, s := range all(t, start, in.Log(), fault.Options{}) {
			got = append(got, strings.Fields(materialised(t, s)[1])[1])
		}
		slices.Sort(got)
		return got
	}
	if diff := cmp.Diff([]string{"-r--r--r--", "-rw-r-----"}, modes(disk.File.Sync)); diff != "" {
		t.Errorf("with Sync (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"-r--r--r--", "-rw-------", "-rw-r-----"}, modes(disk.File.Datasync)); diff != "" {
		t.Errorf("with Datasync (-want +got):\n%s", diff)
	}
}

func TestVolatile(t *testing.T) {
	options := func(dir string) fault.Options { return fault.Options{Volatile: []string{filepath.Join(dir, "run")}} }
	got := outcomes(t, func(f disk.FS, dir string) error {
		at := func(name string) string { return filepath.Join(dir, name) }
		return errors.Join(f.Mkdir(at("run"), 0o700), f.SyncDir(dir), put(f, at("run/f"), fresh, "x", disk.File.Sync),
			f.Rename(at("run/f"), at("run/g")), f.SyncDir(at("run")))
	}, options, "run/f", "run/g", "rec")
	if diff := cmp.Diff([]string{`none none "old"`}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDropEachSync: each sync of ReplaceDurably matters, by number and by call site.
func TestDropEachSync(t *testing.T) {
	write := func(f disk.FS, dir string) error {
		return disk.ReplaceDurably(f, filepath.Join(dir, "rec"), []byte("new"), 0o600)
	}
	in := fault.New()
	_, _ = run(t, in, write)
	sites := fault.Syncs(in.Log())
	if len(sites) != 2 || sites[0].Kind != fault.Sync || sites[1].Kind != fault.SyncDir {
		t.Fatalf("sites %+v, want one of the file and one of the directory", sites)
	}
	for i, site := range sites {
		for _, drop := range []fault.Fault{fault.DropSync(i + 1), fault.DropSyncAt(site.Name)} {
			in := fault.New(drop)
			if got := broken(t, in, write, oldOrNew); got == "" {
				t.Errorf("without the sync at %s nothing breaks", site.Name)
			}
			if lies := strings.Count(in.Log().String(), "[lie]"); lies != 1 {
				t.Errorf("%d lies, want 1", lies)
			}
		}
		if !slices.Equal(site.Syncs, []int{i + 1}) {
			t.Errorf("numbers %v", site.Syncs)
		}
	}
}

// TestMany: where the states are too many, the extremes are there, and the sample is the same for one seed.
func TestMany(t *testing.T) {
	const files = 20
	in := fault.New()
	start, _ := run(t, in, func(f disk.FS, dir string) error {
		for n := range files {
			check.Must(t, put(f, filepath.Join(dir, fmt.Sprint(n)), fresh, "data"))
		}
		check.Must(t, put(f, filepath.Join(dir, "rec"), extend, "+1"))
		check.Must(t, put(f, filepath.Join(dir, "rec"), extend, "+2"))
		return f.Remove(filepath.Join(dir, "rec"))
	})
	states := func(seed uint64) []fault.State { return all(t, start, in.Log(), fault.Options{Limit: 100, Seed: seed}) }
	first := states(1)
	if diff := cmp.Diff(lost(first), lost(states(1))); diff != "" {
		t.Errorf("another sample for one seed:\n%s", diff)
	}
	if cmp.Equal(lost(first), lost(states(2))) {
		t.Error("the same sample for two seeds")
	}
	sums := map[[32]byte]bool{}
	none, one, only, zeros, prefix := 0, 0, 0, 0, 0
	for _, s := range first {
		sums[s.Sum] = true
		if s.Lost == "" {
			none++
		}
		if strings.HasPrefix(s.Lost, "create") && strings.Count(s.Lost, ";") == 0 {
			one++
		}
		if strings.Count(s.Lost, "create") == files-1 {
			only++
		}
		if strings.HasSuffix(s.Lost, "and later, but for the length") && !strings.Contains(s.Lost, ";") {
			zeros++
		}
		if strings.Contains(s.String(), `"old+1"`) && strings.Count(s.String(), `"data"`) == files {
			prefix++ // not seen where everything survives, since the file is removed then
		}
	}
	if len(sums) != len(first) || none != 1 || one != files || only < 2*files || zeros != files || prefix != 1 {
		t.Errorf("%d states, %d distinct, %d lost nothing, %d one file, %d all but one, %d one file's data, %d up to the first of two writes",
			len(first), len(sums), none, one, only, zeros, prefix)
	}
}

func lost(states []fault.State) []string {
	var list []string
	for _, s := range states {
		list = append(list, s.Lost)
	}
	return list
}

// TestBehindTheSeam: what was not logged is refused, rather than replayed wrongly.
func TestBehindTheSeam(t *testing.T) {
	for name, do := range map[string]writer{
		"rename": func(f disk.FS, dir string) error { return f.Rename(filepath.Join(dir, "x"), filepath.Join(dir, "y")) },
		"remove": func(f disk.FS, dir string) error { return f.Remove(filepath.Join(dir, "x")) },
		"write":  func(f disk.FS, dir string) error { return put(f, filepath.Join(dir, "x"), extend, "data") },
		"leave":  func(f disk.FS, dir string) error { return f.Rename(filepath.Join(dir, "rec"), dir+".gone") },
	} {
		in := fault.New()
		start, _ := run(t, in, func(f disk.FS, dir string) error {
			check.Must(t, os.WriteFile(filepath.Join(dir, "x"), nil, 0o600))
			return do(f, dir)
		})
		if _, err := fault.Replay(start, in.Log(), fault.Options{}); err == nil {
			t.Errorf("%s of a file that was made behind the seam's back, or out of its sight, was replayed", name)
		}
	}
}
