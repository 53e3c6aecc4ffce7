// SPDX-License-Identifier: Apache-2.0

package disk_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/disk"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

// content lists a directory: names with what they hold.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check.Must(t, err)
	got := map[string]string{}
	for _, e := range entries {
		if e.IsDir() {
			got[e.Name()] = "directory"
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		check.Must(t, err)
		got[e.Name()] = string(data)
	}
	return got
}

func TestOS(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	fsys := disk.OS{}
	check.Must(t, fsys.Mkdir(at("d"), 0o700))
	f, err := fsys.OpenFile(at("f"), os.O_WRONLY|os.O_CREATE, 0o600)
	check.Must(t, err)
	n, err := f.Write([]byte("abc"))
	check.Must(t, errors.Join(err, f.Truncate(2), f.Chmod(0o640), f.Sync(), f.Datasync(), f.Close()))
	check.Must(t, errors.Join(fsys.Rename(at("f"), at("d/f")), fsys.Symlink("d/f", at("l")), fsys.SyncDir(dir)))
	data, err := fsys.ReadFile(at("d/f"))
	check.Must(t, err)
	info, err := fsys.Lstat(at("d/f"))
	check.Must(t, err)
	target, err := fsys.Readlink(at("l"))
	check.Must(t, err)
	entries, err := fsys.ReadDir(dir)
	check.Must(t, err)
	got := fmt.Sprintf("%d %s %s %s %s %s", n, data, info.Mode(), target, entries[0].Name(), entries[1].Name())
	if want := "3 ab -rw-r----- d/f d l"; got != want || len(entries) != 2 {
		t.Errorf("got %s (%d entries), want %s", got, len(entries), want)
	}
	if err := fsys.Remove(at("d")); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("remove a directory that is not empty: %v", err)
	}
	check.Must(t, errors.Join(fsys.Remove(at("l")), fsys.Remove(at("d/f")), fsys.Remove(at("d"))))
	_, openErr := fsys.OpenFile(at("none"), os.O_WRONLY, 0)
	for i, err := range []error{openErr, fsys.SyncDir(at("none")), fsys.Remove(at("none")), fsys.Rename(at("none"), at("x"))} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%d: %v, want that it is not there", i, err)
		}
	}
	if err := f.Datasync(); !errors.Is(err, syscall.EBADF) && !errors.Is(err, fs.ErrClosed) {
		t.Errorf("datasync of a closed file: %v", err)
	}
}

// replaced runs Replace or ReplaceDurably over a file that holds "old", with faults.
type replacer func(fsys disk.Replacer, path string, data []byte, perm fs.FileMode) error

func replacers() map[string]replacer {
	return map[string]replacer{"Replace": disk.Replace, "ReplaceDurably": disk.ReplaceDurably}
}

func replaced(t *testing.T, replace replacer, faults ...fault.Fault) (in *fault.Injector, dir string, err error) {
	t.Helper()
	dir = t.TempDir()
	check.Must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("old"), 0o600))
	in = fault.New(faults...)
	err = replace(in.FS(disk.OS{}), filepath.Join(dir, "f"), []byte("new content"), 0o622)
	return in, dir, err
}

func TestReplace(t *testing.T) {
	for name, replace := range replacers() {
		_, dir, err := replaced(t, replace)
		check.Must(t, err)
		info, err := os.Stat(filepath.Join(dir, "f"))
		check.Must(t, err)
		if diff := cmp.Diff(map[string]string{"f": "new content"}, content(t, dir)); diff != "" || info.Mode() != 0o622 {
			t.Errorf("%s: mode %s, (-want +got):\n%s", name, info.Mode(), diff)
		}
		if err := replace(disk.OS{}, filepath.Join(dir, "none", "f"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s in a directory that is not there: %v", name, err)
		}
	}
}

// TestReplaceBelowRoot: names are relative to the root, and a link out of it is not followed.
func TestReplaceBelowRoot(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	root, err := os.OpenRoot(dir)
	check.Must(t, err)
	defer root.Close()
	check.Must(t, errors.Join(root.Mkdir("d", 0o700), root.Symlink(outside, "out")))
	for name, replace := range replacers() {
		fsys := disk.Root{Root: root}
		check.Must(t, errors.Join(replace(fsys, "f", []byte(name), 0o622), replace(fsys, "d/f", []byte(name), 0o600)))
		info, err := root.Stat("f")
		check.Must(t, err)
		if diff := cmp.Diff(map[string]string{"f": name}, content(t, filepath.Join(dir, "d"))); diff != "" || info.Mode() != 0o622 {
			t.Errorf("%s: mode %s, (-want +got):\n%s", name, info.Mode(), diff)
		}
		if err := replace(fsys, "out/f", nil, 0o600); err == nil || len(content(t, outside)) > 0 {
			t.Errorf("%s went through a link: %v", name, err)
		}
		if err := replace(fsys, "../f", nil, 0o600); err == nil {
			t.Errorf("%s went above the root", name)
		}
	}
	if err := (disk.Root{Root: root}).SyncDir("none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("sync a directory that is not there: %v", err)
	}
}

// TestReplaceFails at each operation, in each way: the error says which file and why, the old content stays, and no temporary file.
// Where only the sync of the directory failed the new content is there already.
func TestReplaceFails(t *testing.T) {
	ways := map[string]func(n int) fault.Fault{
		"ENOSPC": func(n int) fault.Fault { return fault.Fail(n, syscall.ENOSPC) },
		"EIO":    func(n int) fault.Fault { return fault.Fail(n, syscall.EIO) },
		"EROFS":  func(n int) fault.Fault { return fault.Fail(n, syscall.EROFS) },
		"short":  fault.Short,
		"full":   fault.Full,
	}
	errno := map[string]error{
		"EIO": syscall.EIO, "EROFS": syscall.EROFS, "ENOSPC": syscall.ENOSPC, "short": syscall.ENOSPC, "full": syscall.ENOSPC,
	}
	for name, replace := range replacers() {
		in, _, err := replaced(t, replace)
		check.Must(t, err)
		for n := 1; n <= in.Log().Changes(); n++ {
			at := in.Log()[n-1].Kind
			for way, faultAt := range ways {
				_, dir, err := replaced(t, replace, faultAt(n))
				want := map[string]string{"f": "old"}
				harmless := way == "full" && at != fault.Create && at != fault.Write
				if harmless || at == fault.SyncDir {
					want["f"] = "new content"
				}
				if harmless != (err == nil) || err != nil && (!errors.Is(err, errno[way]) || !strings.Contains(err.Error(), filepath.Join(dir, "f"))) {
					t.Errorf("%s, %s at %s: error %v", name, way, at, err)
				}
				if diff := cmp.Diff(want, content(t, dir)); diff != "" {
					t.Errorf("%s, %s at %s (-want +got):\n%s", name, way, at, diff)
				}
			}
		}
	}
}

// TestReplaceReadOnly: where the temporary file cannot be removed either, it has a name that is swept.
func TestReplaceReadOnly(t *testing.T) {
	in, dir, err := replaced(t, disk.ReplaceDurably, fault.ReadOnly(2))
	if !errors.Is(err, syscall.EROFS) || in.Log().Changes() < 3 {
		t.Fatalf("error %v", err)
	}
	left := content(t, dir)
	if len(left) != 2 || left["f"] != "old" {
		t.Errorf("left %v, want the old file and a temporary one", left)
	}
	for name := range left {
		if name != "f" && !strings.HasPrefix(name, disk.TemporaryPrefix) {
			t.Errorf("left %s, which no sweep would know", name)
		}
	}
}

// TestReplaceCut: whenever the process ends, there is the old content or the new; whenever the power goes, too, if that was promised.
func TestReplaceCut(t *testing.T) {
	for name, replace := range replacers() {
		dir := t.TempDir()
		check.Must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("old"), 0o600))
		start, err := fault.Snapshot(dir)
		check.Must(t, err)
		in := fault.New()
		check.Must(t, replace(in.FS(disk.OS{}), filepath.Join(dir, "f"), []byte("new content"), 0o622))
		log := in.Log()
		for n := 1; n <= log.Changes()+1; n++ {
			states, err := fault.Replay(start, log.Before(n), fault.Options{})
			check.Must(t, err)
			for s := range states {
				f := regexp.MustCompile(`(?m)^f (\S+) \S+ (.*)$`).FindStringSubmatch(s.String())
				replacement := slices.Equal(f[1:], []string{"-rw--w--w-", `"new content"`})
				if !replacement && (n > log.Changes() || !slices.Equal(f[1:], []string{"-rw-------", `"old"`})) {
					t.Errorf("%s, cut before %d, lost %s:\n%s", name, n, s.Lost, s)
				}
				if name == "Replace" {
					break // the first state lost nothing
				}
			}
		}
	}
}

func TestMkdirAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "c")
	for range 2 {
		check.Must(t, disk.MkdirAll(disk.OS{}, path, 0o700))
		info, err := os.Stat(path)
		check.Must(t, err)
		if info.Mode() != fs.ModeDir|0o700 {
			t.Errorf("mode %s", info.Mode())
		}
	}
	check.Must(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
	if err := disk.MkdirAll(disk.OS{}, filepath.Join(dir, "f", "d"), 0o700); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
	for n := 1; n <= 3; n++ {
		in := fault.New(fault.Fail(n, syscall.ENOSPC))
		if err := disk.MkdirAll(in.FS(disk.OS{}), filepath.Join(t.TempDir(), "a", "b", "c"), 0o700); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("full at %d: %v", n, err)
		}
	}
}

// TestMkdirAllTogether: who comes second finds the directory made.
func TestMkdirAllTogether(t *testing.T) {
	dir := t.TempDir()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for n := range 20 {
				if err := disk.MkdirAll(disk.OS{}, filepath.Join(dir, fmt.Sprint(n), "a", "b"), 0o700); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}
