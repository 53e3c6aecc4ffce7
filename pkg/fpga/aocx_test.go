// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"
)

// entryOf is where the table of a 64-bit ELF has a section's entry.
func entryOf(t *testing.T, file []byte, index int64) int64 {
	t.Helper()
	return int64(le.Uint64(file[40:])) + index*64
}

func TestInspectAOCXRefuses(t *testing.T) {
	packed := pack(t, vectorGBS(t))
	good := buildAOCX(64, packed)
	at := func(part []byte) int64 { return int64(bytes.Index(good, part)) }
	inner := buildELF(64, buildSection{name: sectionGBS, data: packed})
	outer := func(sections ...buildSection) []byte { return buildELF(64, sections...) }
	image := buildSection{name: sectionImage, data: inner}
	hash := buildSection{name: sectionHash, data: []byte(vectorHash)}
	board := buildSection{name: ".acl.board", data: []byte("pac")}
	table := func(file []byte) int64 { return int64(le.Uint64(file[40:])) }
	for _, test := range []struct {
		name   string
		file   []byte
		offset int64
		want   string
	}{
		{"unknown class", withBytes(good, 4, []byte{3}), 0, "want a little-endian ELF"},
		{"big-endian", withBytes(good, 5, []byte{2}), 0, "want a little-endian ELF"},
		{"entries of another size", withBytes(good, 58, []byte{40, 0}), 58, "section entries of 40 bytes, want 64"},
		{"no sections", withBytes(good, 60, []byte{0, 0}), 60, "0 sections, want 1 to 1024"},
		{"too many sections", withBytes(good, 60, []byte{0xff, 0xff}), 60, "65535 sections"},
		{
			"more sections than there are",
			withBytes(good, 60, []byte{0, 4}), 40, "aocx: 0x28: the section table of the file: want 0x10000 bytes at",
		},
		{"names in no section", withBytes(good, 62, []byte{100, 0}), 62, "names in section 100 of 7"},
		{"table beyond the file", withUint64(good, 40, 1<<63), 40, "at 0x8000000000000000, but only"},
		{"table that wraps", withUint64(good, 40, 1<<64-64), 40, "at 0xffffffffffffffc0, but only"},
		{
			"name outside the names",
			withUint32(good, int(entryOf(t, good, 1)), 1<<31), entryOf(t, good, 1), "section 1 has its name at 0x80000000",
		},
		{
			"names beyond the file",
			withUint64(good, int(entryOf(t, good, 6))+32, 1<<62), entryOf(t, good, 6), "the section names: want 0x4000000000000000",
		},
		{
			"names without an end", withUint64(good, int(entryOf(t, good, 6))+32, 20),
			int64(le.Uint64(good[entryOf(t, good, 6)+24:])) + 12, "the name of section 2 does not end",
		},
		{"image beyond the file", withUint64(good, int(entryOf(t, good, 5))+24, 1<<64-1), entryOf(t, good, 5), ".acl.fpga.bin: want"},
		{"image without bytes", withUint32(good, int(entryOf(t, good, 5))+4, 8), entryOf(t, good, 5), "no bytes in the file"},
		{"no image", outer(hash), table(outer(hash)), "the file has 0 sections .acl.fpga.bin, want one"},
		{"two images", outer(hash, image, image), table(outer(hash, image, image)), "2 sections .acl.fpga.bin, want one"},
		{"image is no ELF", outer(hash, buildSection{name: sectionImage, data: rbf(64)}), 104, ".acl.fpga.bin begins with a5a5a5a5a5a5"},
		{
			"no gzip",
			outer(hash, buildSection{name: sectionImage, data: outer(hash)}), 104 + table(outer(hash)), ".acl.fpga.bin has 0 sections .acl.gbs.gz",
		},
		{"gzip is none", buildAOCX(64, rbf(64)), at(packed), "want a gzip"},
		{"gzip cut short", buildAOCX(64, packed[:len(packed)-9]), at(packed), "unpacked 0x"},
		{"gzip with a wrong checksum", bytes.Replace(good, rbf(2), []byte("xx"), 1), at(packed), "invalid checksum"},
		{"garbage after the gzip", buildAOCX(64, concat(packed, rbf(20))), at(packed), "unpacked 0x"},
		{"second gzip member", buildAOCX(64, concat(packed, pack(t, rbf(20)))), at(packed), "want one gzip member, but bytes follow the first"},
		{"second gzip member of nothing", buildAOCX(64, concat(packed, pack(t, nil))), at(packed), "want one gzip member"},
		{"the GBS in a second gzip member", buildAOCX(64, concat(pack(t, nil), packed)), at(packed), "want one gzip member"},
		{"gzip of nothing", buildAOCX(64, pack(t, nil)), 0, "aocx: 0x0 of the unpacked .acl.gbs.gz: the magic"},
		{"gzip of something else", buildAOCX(64, pack(t, rbf(100))), 0, "of the unpacked .acl.gbs.gz: magic"},
		{
			"mistake in the GBS",
			buildAOCX(64, pack(t, withUint32(vectorGBS(t), 16, 0))), 16, "aocx: 0x10 of the unpacked .acl.gbs.gz: metadata of 0",
		},
		{"no hash", outer(image), table(outer(image)), "0 sections .acl.rand_hash"},
		{
			"hash of text",
			outer(image, buildSection{name: sectionHash, data: []byte("../../x")}), 64 + int64(len(inner)), `.acl.rand_hash "../../x", want 40`,
		},
		{"long hash", outer(image, buildSection{name: sectionHash, data: rbf(257)}), 64 + int64(len(inner)), ".acl.rand_hash has 0x101 bytes"},
		{
			"board for a terminal", outer(image, hash, buildSection{name: ".acl.board", data: []byte("\x1b[2J")}),
			64 + int64(len(inner)) + 40, ".acl.board: ",
		},
		{"two boards", outer(image, hash, board, board), table(outer(image, hash, board, board)), "2 sections .acl.board"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := inspectBytes(test.file)
			wantError(t, err, test.offset, test.want)
		})
	}
}

// TestAOCXSigned: the blocks in a GBS in an AOCX count from where that was unpacked.
func TestAOCXSigned(t *testing.T) {
	got, err := inspectBytes(buildAOCX(64, pack(t, signedGBS(t))))
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(len(signedGBS(t)) - 1124); got.Signature == nil || *got.Signature != (Signature{want, blocks, true}) {
		t.Errorf("got the signature %+v, want it at 0x%x of what was unpacked", got.Signature, want)
	}
}

// TestOpenRefusesMoreMembers changes a file between Inspect and Open: programming must not load what nobody inspected.
func TestOpenRefusesMoreMembers(t *testing.T) {
	packed := pack(t, vectorGBS(t))
	file := buildAOCX(64, packed)
	b, err := inspectBytes(file)
	if err != nil {
		t.Fatal(err)
	}
	at := b.Payload.Gzip.Offset
	b.Payload.Gzip.Length += int64(len(packed))
	b.Payload.Length += int64(len(vectorGBS(t)))
	r, err := b.Payload.Open(bytes.NewReader(concat(file[:at], packed, packed)))
	if err != nil {
		t.Fatal(err)
	}
	if image, err := io.ReadAll(r); err == nil || !strings.Contains(err.Error(), "want one gzip member") {
		t.Errorf("read %d bytes, %v, want a refusal of the second member", len(image), err)
	}
}

// TestAOCXUnpacksToTooMuch bounds what a small file may become.
func TestAOCXUnpacksToTooMuch(t *testing.T) {
	const limit = 64 << 10
	for size, want := range map[int]string{limit: "", limit + 1: "unpacks to more than 65536 bytes", 8 << 20: "unpacks to more"} {
		gbs := vectorGBS(t)
		gbs = append(gbs, make([]byte, size-len(gbs))...)
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write(gbs); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		file := buildAOCX(64, packed.Bytes())
		b, err := inspect(bytes.NewReader(file), int64(len(file)), limit)
		switch {
		case want == "" && (err != nil || b.Payload.Offset+b.Payload.Length != limit):
			t.Errorf("%d bytes: got %+v, %v, want all of it", size, b.Payload, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%d bytes: got %v, want %q", size, err, want)
		}
	}
}
