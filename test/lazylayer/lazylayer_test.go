// SPDX-License-Identifier: Apache-2.0

package lazylayer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func example(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range []struct{ name, content string }{
		{"d/", ""}, {"d/empty", ""}, {"d/large", strings.Repeat("0123456789", 5000)}, {"d/small", "s"},
	} {
		h := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.content)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(e.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		err := w.WriteHeader(h)
		_, wrote := io.WriteString(w, e.content)
		if err = errors.Join(err, wrote); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestEStargz: it reads as any tar.gz, and the footer leads to an index from which each chunk is found.
func TestEStargz(t *testing.T) {
	l, err := EStargz(example(t), 20_000, 0)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(l.Data))
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := io.ReadAll(z); err != nil || !bytes.Equal(plain, l.Tar) {
		t.Errorf("it unpacks to other bytes: %v", err)
	}
	footer := l.Data[len(l.Data)-51:]
	if string(footer[12:16]) != "SG\x16\x00" || string(footer[32:38]) != "STARGZ" {
		t.Fatalf("the footer is %q", footer)
	}
	at, err := strconv.ParseInt(string(footer[16:32]), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	z, err = gzip.NewReader(bytes.NewReader(l.Data[at:]))
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(z)
	h, err := r.Next()
	if err != nil || h.Name != StargzIndex {
		t.Fatalf("at the offset is %v: %v", h, err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	found := check(t, data, func(e tocEntry) []byte {
		z, err := gzip.NewReader(bytes.NewReader(l.Data[e.Offset:]))
		if err != nil {
			t.Fatal(err)
		}
		z.Multistream(false)
		member, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		if e.ChunkSize > 0 {
			return member[:e.ChunkSize]
		}
		return member[:e.Size%20_000] // the padding and the next header are in it, too
	})
	if found < 3 || l.Parts < found+3 {
		t.Errorf("%d chunks in %d members", found, l.Parts)
	}
}

// TestZstdChunked: it reads as any tar.zst, and the footer leads to an index from which each chunk is found.
func TestZstdChunked(t *testing.T) {
	l, err := ZstdChunked(example(t), 20_000)
	if err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	if plain, err := z.DecodeAll(l.Data, nil); err != nil || !bytes.Equal(plain, l.Tar) {
		t.Errorf("it unpacks to other bytes: %v", err)
	}
	footer := l.Data[len(l.Data)-64:]
	if string(footer[56:]) != chunkedMagic {
		t.Fatalf("the footer is %q", footer)
	}
	at, size := binary.LittleEndian.Uint64(footer), binary.LittleEndian.Uint64(footer[8:])
	data, err := z.DecodeAll(l.Data[at:at+size], nil)
	if err != nil {
		t.Fatal(err)
	}
	found := check(t, data, func(e tocEntry) []byte {
		piece, err := z.DecodeAll(l.Data[e.Offset:e.EndOffset], nil)
		if err != nil {
			t.Fatal(err)
		}
		return piece
	})
	if found < 4 || l.Parts < found+4 {
		t.Errorf("%d chunks in %d frames", found, l.Parts)
	}
}

// check compares the digests of chunks in an index with what is there, and counts them.
func check(t *testing.T, index []byte, read func(tocEntry) []byte) (found int) {
	t.Helper()
	var all toc
	if err := json.Unmarshal(index, &all); err != nil || all.Version != 1 {
		t.Fatalf("version %d: %v", all.Version, err)
	}
	for _, e := range all.Entries {
		want := e.ChunkDigest
		if want == "" {
			want = e.Digest
		}
		if want == "" || e.Type == "chunk" && e.ChunkSize == 0 {
			continue
		}
		found++
		if got := digest(read(e)); got != want {
			t.Errorf("%s from %d: %s, want %s", e.Name, e.ChunkOffset, got, want)
		}
	}
	return found
}
