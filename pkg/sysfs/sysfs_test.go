// SPDX-License-Identifier: Apache-2.0

package sysfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/sysfs"
	"github.com/fettle-dev/fettle/test/check"
)

// newTree makes a host tree: content by name, and a link for content that begins with an arrow.
func newTree(t testing.TB, files map[string]string) (*sysfs.Tree, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	for name, content := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if target, link := strings.CutPrefix(content, "-> "); link {
			if err := os.Symlink(target, name); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := sysfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tree.Close() })
	return tree, dir
}

func TestReadString(t *testing.T) {
	tree, dir := newTree(t, map[string]string{
		"sys/a/plain":    " some text \n",
		"sys/a/empty":    "",
		"sys/a/nul":      "a\x00b",
		"sys/a/latin1":   "caf\xe9",
		"sys/a/huge":     strings.Repeat("x", 64<<10+1),
		"sys/a/inside":   "-> ../b/target",
		"sys/b/target":   "linked",
		"sys/a/outside":  "-> ../../../secret",
		"sys/a/absolute": "-> /etc/hostname",
		"sys/a/dangling": "-> nowhere",
		"sys/a/loop":     "-> loop",
	})
	if err := os.WriteFile(filepath.Join(dir, "..", "secret"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, want string
		wantErr    error  // an error that it is
		wantText   string // a part of its message
	}{
		{name: "sys/a/plain", want: "some text"},
		{name: "sys/a/empty"},
		{name: "sys/a/inside", want: "linked"},
		{name: "sys/a/nul", wantErr: sysfs.ErrMalformed, wantText: "read /sys/a/nul: malformed: contains NUL"},
		{name: "sys/a/latin1", wantErr: sysfs.ErrMalformed, wantText: "not UTF-8"},
		{name: "sys/a/huge", wantErr: sysfs.ErrMalformed, wantText: "larger than 65536 bytes"},
		{name: "sys/a", wantErr: sysfs.ErrMalformed, wantText: "want a plain file"},
		{name: "sys/a/none", wantErr: fs.ErrNotExist, wantText: "read /sys/a/none: no such file or directory"},
		{name: "sys/a/dangling", wantErr: fs.ErrNotExist},
		{name: "sys/a/outside", wantText: "read /sys/a/outside: leads outside of the host's tree"},
		{name: "sys/a/absolute", wantText: "leads outside of the host's tree"},
		{name: "sys/a/loop", wantText: "too many levels of symbolic links"},
		{name: "../secret", wantText: "leads outside of the host's tree"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tree.ReadString(tc.name)
			if tc.wantErr == nil && tc.wantText == "" {
				if err != nil || got != tc.want {
					t.Fatalf("got %q, %v; want %q", got, err, tc.want)
				}
				return
			}
			if err == nil || tc.wantErr != nil && !errors.Is(err, tc.wantErr) || !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("got %q, %v; want %v %q", got, err, tc.wantErr, tc.wantText)
			}
		})
	}
}

func TestNumbers(t *testing.T) {
	tree, _ := newTree(t, map[string]string{
		"int": "-1\n", "notint": "0x10", "hex": "0x10de\n", "nothex": "ten", "dev": "226:128\n",
		"dev0": "0:1", "devbig": "4096:0", "devsmall": "226", "devneg": "1:-1",
	})
	if v, err := tree.ReadInt("int"); v != -1 || err != nil {
		t.Errorf("ReadInt: %d, %v", v, err)
	}
	if v, err := tree.ReadHex("hex"); v != 0x10de || err != nil {
		t.Errorf("ReadHex: %#x, %v", v, err)
	}
	if major, minor, err := tree.ReadDev("dev"); major != 226 || minor != 128 || err != nil {
		t.Errorf("ReadDev: %d:%d, %v", major, minor, err)
	}
	for _, bad := range []string{"dev0", "devbig", "devsmall", "devneg", "hex"} {
		if _, _, err := tree.ReadDev(bad); !errors.Is(err, sysfs.ErrMalformed) {
			t.Errorf("ReadDev(%s): %v, want malformed", bad, err)
		}
	}
	if _, err := tree.ReadInt("notint"); !errors.Is(err, sysfs.ErrMalformed) {
		t.Errorf("ReadInt: %v, want malformed", err)
	}
	if _, err := tree.ReadHex("nothex"); !errors.Is(err, sysfs.ErrMalformed) {
		t.Errorf("ReadHex: %v, want malformed", err)
	}
}

// TestFixedHex: a number of a fixed width that lost digits is another number, so it is unreadable.
func TestFixedHex(t *testing.T) {
	tree, _ := newTree(t, map[string]string{
		"whole": "0x1da3\n", "bare": "1da3", "cut": "0x1", "long": "0x01da3", "word": "0xgaud", "none": "",
	})
	for _, name := range []string{"whole", "bare"} {
		if v, err := tree.ReadFixedHex(name, 4); v != 0x1da3 || err != nil {
			t.Errorf("%s: %#x, %v", name, v, err)
		}
	}
	for _, name := range []string{"cut", "long", "word", "none"} {
		_, err := tree.ReadFixedHex(name, 4)
		check.WantErr(t, err, sysfs.ErrMalformed, "4 hexadecimal digits")
	}
}

func TestLinksAndDirs(t *testing.T) {
	tree, _ := newTree(t, map[string]string{
		"d/driver": "-> ../../bus/pci/drivers/nvidia", "d/up": "-> ..", "d/b": "", "d/a": "",
	})
	if base, err := tree.LinkBase("d/driver"); base != "nvidia" || err != nil {
		t.Errorf("LinkBase: %q, %v", base, err)
	}
	if _, err := tree.LinkBase("d/up"); !errors.Is(err, sysfs.ErrMalformed) {
		t.Errorf("LinkBase: %v, want malformed", err)
	}
	if _, err := tree.LinkBase("d/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("LinkBase: %v, want absent", err)
	}
	names, err := tree.ReadDir("d")
	if diff := cmp.Diff([]string{"a", "b", "driver", "up"}, names); diff != "" || err != nil {
		t.Errorf("ReadDir: %v\n%s", err, diff)
	}
	if tree.Exists("d/driver") || !tree.Exists("d/a") {
		t.Error("Exists follows links: the driver is not there, the file is")
	}
	if _, _, err := tree.Rdev("d/a"); !errors.Is(err, sysfs.ErrMalformed) {
		t.Errorf("Rdev of a plain file: %v, want malformed", err)
	}
	if text, err := fs.ReadFile(tree.FS(), "d/a"); err != nil || len(text) != 0 {
		t.Errorf("FS: %q, %v", text, err)
	}
	if size, err := tree.Capacity("d"); err != nil || size <= 0 {
		t.Errorf("Capacity: %d, %v", size, err)
	}
}

func TestRdev(t *testing.T) {
	host, err := sysfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	// The null device is 1:3 on every Linux (Documentation/admin-guide/devices.txt).
	if major, minor, err := host.Rdev("dev/null"); major != 1 || minor != 3 || err != nil {
		t.Errorf("got %d:%d, %v; want 1:3", major, minor, err)
	}
	if _, err := host.ReadString("dev/zero"); !errors.Is(err, sysfs.ErrMalformed) {
		t.Errorf("reading a device node: %v, want malformed", err)
	}
}

func TestGlob(t *testing.T) {
	files := map[string]string{
		"mnt/disks/ssd1/x": "", "mnt/disks/ssd0/x": "", "mnt/disks/.snap/x": "", "mnt/disks/file": "", "mnt/out": "-> ../../..",
	}
	tree, _ := newTree(t, files)
	for _, tc := range []struct {
		pattern string
		want    []string
		wantErr bool
	}{
		{pattern: "mnt/disks/ssd*", want: []string{"mnt/disks/ssd0", "mnt/disks/ssd1"}},
		{pattern: "mnt/*/ssd[1-9]", want: []string{"mnt/disks/ssd1"}, wantErr: true}, // mnt/out is in the way
		{pattern: "mnt/disks/*", want: []string{"mnt/disks/file", "mnt/disks/ssd0", "mnt/disks/ssd1"}},
		{pattern: "mnt/disks/.s*", want: []string{"mnt/disks/.snap"}},
		{pattern: "mnt/disks/ssd0", want: []string{"mnt/disks/ssd0"}},
		{pattern: "mnt/disks/file/*"},
		{pattern: "mnt/disks/file/x"},
		{pattern: "srv/*"},
		{pattern: "mnt/[", wantErr: true},
		{pattern: "../*", wantErr: true},
		{pattern: "mnt/out/*", wantErr: true},
	} {
		t.Run(tc.pattern, func(t *testing.T) {
			got, err := tree.Glob(tc.pattern)
			if diff := cmp.Diff(tc.want, got); diff != "" || (err != nil) != tc.wantErr {
				t.Errorf("error %v, want error %v\n%s", err, tc.wantErr, diff)
			}
		})
	}
}

func TestGlobIsBounded(t *testing.T) {
	tree, dir := newTree(t, map[string]string{"d/x": ""})
	for i := range 1025 {
		if err := os.WriteFile(filepath.Join(dir, "d", strings.Repeat("y", i%50+1)+string(rune('a'+i/50))), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tree.Glob("d/*"); err == nil || !strings.Contains(err.Error(), "more than 1024 matches") {
		t.Errorf("got %v, want too many matches", err)
	}
}

func TestWriteAttr(t *testing.T) {
	tree, dir := newTree(t, map[string]string{"sys/d/sriov_numvfs": "0\n", "sys/d/out": "-> ../../../victim"})
	writer, err := sysfs.OpenWriter(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = writer.Close() })
	if err := writer.WriteAttr("sys/d/sriov_numvfs", "4\n"); err != nil {
		t.Error(err)
	}
	if got, err := tree.ReadInt("sys/d/sriov_numvfs"); got != 4 || err != nil {
		t.Errorf("read back %d, %v; want 4", got, err)
	}
	if err := writer.WriteAttr("sys/d/none", "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want absent", err)
	}
	if tree.Exists("sys/d/none") {
		t.Error("an absent attribute was created")
	}
	if err := writer.WriteAttr("sys/d/out", "1"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want an escape to be refused", err)
	}
}

func FuzzRead(f *testing.F) {
	for _, seed := range []string{"226:128", "0x10de", "-1", "", "\x00", "99999999999999999999", ":", "\xff\xfe"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		tree, dir := newTree(t, map[string]string{"f": ""})
		if err := os.WriteFile(filepath.Join(dir, "f"), content, 0o644); err != nil {
			t.Fatal(err)
		}
		if major, minor, err := tree.ReadDev("f"); err == nil && (major < 1 || major > 4095 || minor < 0 || minor >= 1<<20) {
			t.Errorf("%q read as %d:%d", content, major, minor)
		}
		if _, err := tree.ReadInt("f"); err != nil && !errors.Is(err, sysfs.ErrMalformed) {
			t.Errorf("%q: %v, want malformed", content, err)
		}
		_, _ = tree.ReadHex("f")
	})
}
