// SPDX-License-Identifier: Apache-2.0

package backend_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fettle-dev/fettle/pkg/filelock"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
	"github.com/fettle-dev/fettle/test/check"
)

// image is one whose bytes another may change.
type image struct {
	data   []byte
	fickle bool
}

func (i *image) ReadAt(p []byte, off int64) (int, error) {
	n, err := bytes.NewReader(i.data).ReadAt(p, off)
	if i.fickle {
		i.data[len(i.data)-1]++
	}
	return n, err
}
func (i *image) Size() int64    { return int64(len(i.data)) }
func (i *image) Digest() string { return "sha256:" + strings.Repeat("a", 64) }

func TestWriteCopy(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 40<<10) // More than is compared at a time.
	for _, tc := range []struct {
		name         string
		offset, size int64
		image        *image
		there        func(name string) error
		wantErr      bool
	}{
		{name: "whole", size: int64(len(data))},
		{name: "part", offset: 3, size: 300 << 10},
		{name: "nothing", wantErr: true},
		{name: "before", offset: -1, size: 2, wantErr: true},
		{name: "beyond", offset: 1, size: int64(len(data)), wantErr: true},
		{name: "overflow", offset: 1, size: 1<<63 - 1, wantErr: true},
		{name: "changes meanwhile", size: int64(len(data)), image: &image{bytes.Clone(data), true}, wantErr: true},
		{name: "a file is there", size: 1, there: func(name string) error { return os.WriteFile(name, nil, 0o600) }, wantErr: true},
		{name: "a link is there", size: 1, there: func(name string) error { return os.Symlink("other", name) }, wantErr: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			root, err := os.OpenRoot(dir)
			check.Must(t, err)
			defer root.Close()
			name := filepath.Join(dir, "copy")
			if tc.there != nil {
				check.Must(t, tc.there(name))
			}
			if tc.image == nil {
				tc.image = &image{data: bytes.Clone(data)}
			}
			err = backend.WriteCopy(root, "copy", tc.image, tc.offset, tc.size)
			if (err != nil) != tc.wantErr {
				t.Fatalf("error %v, want %v", err, tc.wantErr)
			}
			if err != nil {
				if _, err := os.Lstat(name); tc.there == nil && !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the file is left: %v", err)
				}
				return
			}
			got, err := os.ReadFile(name)
			check.Must(t, err)
			info, err := os.Stat(name)
			check.Must(t, err)
			if !bytes.Equal(got, data[tc.offset:tc.offset+tc.size]) || info.Mode() != 0o400 {
				t.Errorf("%d bytes, mode %s", len(got), info.Mode())
			}
		})
	}
}

func TestLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	held, err := backend.Lock(t.Context(), "x", name)
	check.Must(t, err)
	if _, err := backend.Lock(check.Passed(t), "x", name); !errors.Is(err, filelock.ErrHeld) || backend.KindOf(err) != backend.Retryable {
		t.Errorf("held: %v, want retryable", err)
	}
	check.Must(t, os.Rename(name, name+".old")) // Whoever has locked the old file does not keep others out of the new one.
	again, err := backend.Lock(t.Context(), "x", name)
	check.Must(t, err)
	check.Must(t, errors.Join(again.Close(), held.Close()))
	check.Must(t, os.Remove(name))
	check.Must(t, os.Symlink(name+".old", name))
	if _, err := backend.Lock(t.Context(), "x", name); backend.KindOf(err) != backend.Terminal || err == nil {
		t.Errorf("through a link: %v, want terminal", err)
	}
}

func TestIDs(t *testing.T) {
	const id = "d8424dc4a4a3c413f89e433683f9040b"
	for text, want := range map[string]string{
		id: id, strings.ToUpper(id): id, "d8424dc4-a4a3-c413-f89e-433683f9040b\n": id, "": "", id[2:]: "", id + "00": "",
		strings.Repeat("0", 32): "", strings.Repeat("F", 32): "", "../" + id[3:]: "", "0x" + id[2:]: "",
	} {
		if got := backend.CanonicalID(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if backend.ValidID(strings.ToUpper(id)) || !backend.ValidID(id) {
		t.Error("an id is valid in lower case alone")
	}
	for _, digest := range []string{
		"", "sha256:", strings.Repeat("a", 64), "sha256:" + strings.Repeat("a", 63), "sha512:" + strings.Repeat("a", 64),
	} {
		if got, err := backend.HexDigest(digest); err == nil {
			t.Errorf("%q: %q", digest, got)
		}
	}
}

func TestError(t *testing.T) {
	err := fmt.Errorf("prepare: %w", &backend.Error{
		Kind: backend.Terminal, Device: "d", Op: "program", Status: "CRC", Next: "look", Err: backend.ErrInterface,
	})
	if want := `prepare: program d: interface id (it says "CRC"): look`; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	if backend.KindOf(err) != backend.Terminal || !errors.Is(err, backend.ErrInterface) || backend.KindOf(errors.New("x")) != backend.Unknown {
		t.Error("kinds are lost")
	}
}
