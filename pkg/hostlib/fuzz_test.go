// SPDX-License-Identifier: Apache-2.0

package hostlib_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/hostlib"
	"github.com/fettle-dev/fettle/pkg/rootfs"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/elffile"
)

// newCache is a cache of the new format with one entry, made by hand.
func newCache(hwcap uint64) []byte {
	var b bytes.Buffer
	b.WriteString("glibc-ld.so.cache1.1")
	text := "libx.so.1\x00/opt/libx.so.1\x00"
	for _, part := range []any{
		uint32(1), uint32(len(text)), uint8(2),
		[3]uint8{},
		uint32(0),
		[3]uint32{},
		int32(0x0303), uint32(72), uint32(82), uint32(0), hwcap,
	} {
		_ = binary.Write(&b, binary.LittleEndian, part)
	}
	b.WriteString(text)
	return b.Bytes()
}

// oldCache is one of the old format, with the new one behind it if that is given.
func oldCache(behind []byte) []byte {
	var b bytes.Buffer
	b.WriteString("ld.so-1.7.0\x00")
	for _, part := range []any{uint32(1), int32(0x0303), uint32(0), uint32(10)} {
		_ = binary.Write(&b, binary.LittleEndian, part)
	}
	if behind != nil {
		b.Write(make([]byte, (8-b.Len()%8)%8))
		b.Write(behind)
		return b.Bytes()
	}
	b.WriteString("libx.so.1\x00/opt/libx.so.1\x00")
	return b.Bytes()
}

func TestParseCache(t *testing.T) {
	for name, data := range map[string][]byte{"new": newCache(0), "old": oldCache(nil), "both": oldCache(newCache(0))} {
		entries, err := hostlib.ParseCache(data)
		if err != nil || len(entries) != 1 || entries[0].Name != "libx.so.1" || entries[0].Path != "/opt/libx.so.1" {
			t.Errorf("%s: %+v, %v", name, entries, err)
		}
		for n := range data {
			if _, err := hostlib.ParseCache(data[:n]); !errors.Is(err, hostlib.ErrCache) {
				t.Errorf("%s cut at %d of %d: %v, want %v", name, n, len(data), err, hostlib.ErrCache)
				break
			}
		}
	}
	if entries, err := hostlib.ParseCache(newCache(1<<62 | 1)); err != nil || entries[0].Hwcap == 0 {
		t.Errorf("for some processors: %+v, %v", entries, err)
	}
	huge := newCache(0)
	binary.LittleEndian.PutUint32(huge[20:], 1<<31)
	if _, err := hostlib.ParseCache(huge); !errors.Is(err, hostlib.ErrCache) {
		t.Errorf("more entries than bytes: %v, want %v", err, hostlib.ErrCache)
	}
}

// TestCacheOfOneName: each entry of a cache may have the same long name. A name is kept once.
func TestCacheOfOneName(t *testing.T) {
	const entries, header, limit = 1 << 15, 48, 8 << 20
	data := newCache(0)[:header]
	binary.LittleEndian.PutUint32(data[20:], entries)
	text := uint32(header + 24*entries)
	for range entries {
		for _, field := range []uint32{0x0303, text, text, 0, 0, 0} {
			data = binary.LittleEndian.AppendUint32(data, field)
		}
	}
	data = append(data, "/"+strings.Repeat("n", 4000)+"\x00"...)
	root := tree(t, map[string]string{"etc/ld.so.cache": string(data)})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	found, err := open(t, root, hostlib.Config{}).Libraries([]string{"libx.so.1"})
	check.Must(t, err)
	if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > limit {
		t.Errorf("%d bytes were allocated for a cache of %d bytes, want at most %d", after.TotalAlloc-before.TotalAlloc, len(data), limit)
	}
	if len(found.Found) > 0 || len(found.Missing) != 1 {
		t.Errorf("found %+v", found)
	}
}

func FuzzParseCache(f *testing.F) {
	for _, seed := range [][]byte{newCache(0), newCache(1 << 62), oldCache(nil), oldCache(newCache(0)), nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := hostlib.ParseCache(data)
		if err != nil {
			if !errors.Is(err, hostlib.ErrCache) {
				t.Errorf("%v is not %v", err, hostlib.ErrCache)
			}
			return
		}
		if len(entries)*12 > len(data) {
			t.Errorf("%d entries of %d bytes", len(entries), len(data))
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Path, "/") || strings.Contains(e.Name, "\x00") {
				t.Errorf("entry %+v", e)
			}
		}
	})
}

func FuzzReadObject(f *testing.F) {
	f.Add(elffile.File{Soname: "libx.so.1"}.Bytes())
	f.Add(elffile.File{Interpreter: "/lib/ld.so", Soname: "x"}.Bytes())
	f.Add(elffile.Canary())
	f.Fuzz(func(t *testing.T, data []byte) {
		object, err := hostlib.ReadObject(bytes.NewReader(data))
		if err != nil && !errors.Is(err, hostlib.ErrNotELF) {
			t.Errorf("%v is not %v", err, hostlib.ErrNotELF)
		}
		if strings.Contains(object.Soname+object.Interpreter, "\x00") {
			t.Errorf("object %+v", object)
		}
	})
}

func FuzzReadConf(f *testing.F) {
	f.Add("include /etc/*.conf\n/opt/a=libc6 # x\nhwcap 0 x\n")
	f.Add("include ld.so.conf\ninclude [\n..\n/../..\n")
	dir := f.TempDir()
	root, err := rootfs.Open(dir)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = root.Close() })
	f.Fuzz(func(t *testing.T, text string) {
		// A file that is truncated and written anew is flushed to the disk by some file systems; a new one is not.
		check.Must(t, os.RemoveAll(filepath.Join(dir, "etc")))
		check.Must(t, os.Mkdir(filepath.Join(dir, "etc"), 0o755))
		check.Must(t, os.WriteFile(filepath.Join(dir, "etc/ld.so.conf"), []byte(text), 0o600))
		conf, err := hostlib.ReadConf(root, hostlib.LoaderConf)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range conf.Dirs {
			if !filepath.IsAbs(d) || filepath.Clean(d) != d || strings.Contains(d, "\n") {
				t.Errorf("directory %q", d)
			}
		}
	})
}
