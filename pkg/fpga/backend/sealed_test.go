// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/check"
)

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func TestSeal(t *testing.T) {
	content := []byte("an image")
	right := digestOf(content)
	for _, tc := range []struct {
		name    string
		size    int64
		want    string
		wantErr string
	}{
		{name: "right", size: 8, want: right},
		{name: "other digest", size: 8, want: digestOf(nil), wantErr: "wrong digest " + right},
		{name: "no digest", size: 8, want: "", wantErr: "wrong digest"},
		{name: "digest in upper case", size: 8, want: strings.ToUpper(right), wantErr: "wrong digest"},
		{name: "ends early", size: 9, want: right, wantErr: "ends after 8 bytes, want 9"},
		{name: "too long", size: 7, want: digestOf(content[:7]), wantErr: "longer than 7 bytes"},
		{name: "empty", size: 0, want: digestOf(nil), wantErr: "want 1 to 4294967295"},
		{name: "too large", size: 1 << 32, want: right, wantErr: "want 1 to 4294967295"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			image, err := Seal(bytes.NewReader(content), tc.size, tc.want)
			if tc.wantErr != "" {
				check.WantErr(t, err, nil, tc.wantErr)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = image.Close() }()
			got, err := io.ReadAll(io.NewSectionReader(image, 0, image.Size()))
			if err != nil || !bytes.Equal(got, content) || image.Digest() != right {
				t.Errorf("got %q, %s, %v", got, image.Digest(), err)
			}
		})
	}
}

// TestSealed: who holds the very file cannot change it, nor lift a seal.
func TestSealed(t *testing.T) {
	content := []byte("an image")
	image, err := Seal(bytes.NewReader(content), 8, digestOf(content))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = image.Close() }()
	if _, err := image.file.WriteAt([]byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write: %v, want EPERM", err)
	}
	for _, size := range []int64{0, 100} {
		if err := image.file.Truncate(size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v, want EPERM", size, err)
		}
	}
	if got, err := unix.FcntlInt(image.file.Fd(), unix.F_GET_SEALS, 0); err != nil || got&seals != seals {
		t.Errorf("seals %#x, %v; want %#x", got, err, seals)
	}
}

func TestWindow(t *testing.T) {
	content := []byte("header and image")
	image, err := Seal(bytes.NewReader(content), 16, digestOf(content))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = image.Close() }()
	part, unmap, err := image.Window(11, 5)
	if err != nil || string(part) != "image" {
		t.Fatalf("got %q, %v", part, err)
	}
	if err := unmap(); err != nil {
		t.Error(err)
	}
	for _, bad := range [][2]int64{{-1, 5}, {0, 0}, {0, -1}, {0, 17}, {16, 1}, {17, 1}, {1, 1<<63 - 1}, {1<<63 - 1, 1}} {
		if _, _, err := image.Window(bad[0], bad[1]); err == nil {
			t.Errorf("a part of %v was given", bad)
		}
	}
}
