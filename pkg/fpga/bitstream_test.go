// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ptr[T any](v T) *T { return &v }

func inspectBytes(data []byte) (Bitstream, error) {
	return Inspect(bytes.NewReader(data), int64(len(data)))
}

// nlb is what all files with the loopback's metadata say.
func nlb(change func(*Bitstream)) Bitstream {
	b := Bitstream{
		Format: GBS, ID: nlb0, AFUID: nlb0, InterfaceID: shell, Name: "nlb_400", Contexts: 1, Platform: "DCP", Power: ptr(50.0),
		Clocks: Clocks{High: &Clock{Auto: true}, Low: &Clock{MHz: 200}},
	}
	change(&b)
	return b
}

func TestInspect(t *testing.T) {
	head := int64(gbsHeader + len(nlb0Metadata))
	signed := head + int64(len(`"signature":"test",`))
	packed := pack(t, vectorGBS(t))
	for _, test := range []struct {
		name  string
		file  []byte
		image []byte // what goes to the device; nil if that is not known
		want  Bitstream
	}{
		{
			name: "gbs", file: buildGBS(nlb0Metadata, rbf(100)), image: rbf(100),
			want: nlb(func(b *Bitstream) { b.Payload = &Payload{Offset: head, Length: 100} }),
		},
		{
			name: "gbs without what may be absent", image: rbf(1),
			file: buildGBS(`{"afu-image":{"interface-uuid":"`+shell+`","accelerator-clusters":[{"accelerator-type-uuid":"`+nlb0+`"}]}}`, rbf(1)),
			want: Bitstream{Format: GBS, ID: nlb0, AFUID: nlb0, InterfaceID: shell, Payload: &Payload{Offset: 173, Length: 1}},
		},
		{
			name: "gbs with the blocks after the metadata", file: signedGBS(t), image: concat(buildBlocks(), rbf(100)),
			want: nlb(func(b *Bitstream) {
				b.Payload = &Payload{Offset: signed, Length: blocks + 100}
				b.Signature = &Signature{Offset: signed, Length: blocks}
			}),
		},
		{
			name: "gbs with the blocks but no key", image: concat(buildBlocks(), rbf(1)),
			file: buildGBS(nlb0Metadata, concat(buildBlocks(), rbf(1))),
			want: nlb(func(b *Bitstream) {
				b.Payload = &Payload{Offset: head, Length: blocks + 1}
				b.Signature = &Signature{Offset: head, Length: blocks}
			}),
		},
		{
			name: "gbs with the blocks before the header", file: concat(buildBlocks(), buildGBS(nlb0Metadata, rbf(100))),
			want: nlb(func(b *Bitstream) { b.Signature = &Signature{Length: blocks} }),
		},
		{name: "aocx of 64 bits", file: buildAOCX(64, packed), image: rbf(64), want: vector(t, 64, packed)},
		{name: "aocx of 32 bits", file: buildAOCX(32, packed), image: rbf(64), want: vector(t, 32, packed)},
		{name: "xclbin", file: helloXclbin(t), image: helloXclbin(t), want: hello(func(*Bitstream) {})},
		{
			name: "xclbin with a signature behind it", file: signedXclbin(t), image: signedXclbin(t),
			want: hello(func(b *Bitstream) {
				b.Signature = &Signature{Offset: 658, Length: 48}
				b.Payload.Length += 48
			}),
		},
		{
			name: "xclbin with a signature somewhere", file: withUint32(helloXclbin(t), xclbinSignatureLength, 48),
			image: withUint32(helloXclbin(t), xclbinSignatureLength, 48),
			want:  hello(func(b *Bitstream) { b.Signature = &Signature{Offset: -1, Length: 48} }),
		},
		{
			name: "xclbin without an interface", file: withBytes(helloXclbin(t), xclbinInterface, make([]byte, 16)),
			image: withBytes(helloXclbin(t), xclbinInterface, make([]byte, 16)),
			want:  hello(func(b *Bitstream) { b.InterfaceID = "" }),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := inspectBytes(test.file)
			if err != nil {
				t.Fatal(err)
			}
			test.want.Size = int64(len(test.file))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if test.image == nil {
				return
			}
			if image := open(t, got, test.file); !bytes.Equal(image, test.image) {
				t.Errorf("the payload is %x, want %x", image, test.image)
			}
		})
	}
}

func open(t testing.TB, b Bitstream, file []byte) []byte {
	t.Helper()
	r, err := b.Payload.Open(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	image, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func vector(t testing.TB, bits int, packed []byte) Bitstream {
	return nlb(func(b *Bitstream) {
		b.Format, b.ID, b.AFUID = AOCX, vectorHash, openCLAFU
		b.OpenCL = &OpenCL{Board: "pac_a10", Target: "fpga", Version: "19.4.0 Build 64"}
		at := bytes.Index(buildAOCX(bits, packed), packed)
		if at < 0 {
			t.Fatal("the file has no gzip")
		}
		gbs := vectorGBS(t)
		b.Payload = &Payload{Offset: int64(len(gbs) - 64), Length: 64, Gzip: &Range{Offset: int64(at), Length: int64(len(packed))}}
	})
}

func hello(change func(*Bitstream)) Bitstream {
	b := Bitstream{
		Format: Xclbin, ID: helloUUID, AFUID: helloUUID, InterfaceID: shell, Platform: "xilinx_u50_gen3x16_xdma_base_5",
		Payload: &Payload{Length: 658},
		Sections: []Section{
			{Kind: SectionBitstream, Name: "primary", Offset: 576, Length: 80},
			{Kind: SectionBuildMetadata, Name: "build", Offset: 656, Length: 2},
			{Kind: 7, Name: "empty", Offset: 658},
		},
	}
	change(&b)
	return b
}

// withBytes changes a copy of a file.
func withBytes(file []byte, at int, data []byte) []byte {
	file = bytes.Clone(file)
	copy(file[at:], data)
	return file
}

func withUint32(file []byte, at int, v uint32) []byte {
	return withBytes(file, at, le.AppendUint32(nil, v))
}

func withUint64(file []byte, at int, v uint64) []byte {
	return withBytes(file, at, le.AppendUint64(nil, v))
}

// wantError wants an *Error at an offset whose text has a part.
func wantError(t *testing.T, err error, offset int64, part string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Offset != offset || !strings.Contains(err.Error(), part) {
		t.Errorf("got %v, want an error at 0x%x with %q", err, offset, part)
	}
}

func TestInspectRefuses(t *testing.T) {
	gbs := buildGBS(nlb0Metadata, rbf(100))
	image := int64(len(gbs) - 100)
	metadata := func(old, replacement string) []byte { return buildGBS(edited(t, old, replacement), rbf(1)) }
	cluster := nlb0Metadata[strings.Index(nlb0Metadata, `{"total-contexts"`) : len(nlb0Metadata)-3]
	for _, test := range []struct {
		name   string
		file   []byte
		offset int64
		want   string
	}{
		{"nothing", nil, 0, "0x0: a file of 0 bytes holds no image"},
		{"seven bytes", gbs[:7], 0, "a file of 7 bytes"},
		{"something else", []byte("PK\x03\x04 and so on"), 0, "want a GBS, an AOCX or an xclbin; a raw image needs a sidecar"},
		{"legacy header", concat([]byte(legacyMagic), make([]byte, 100)), 0, "before release 6.4"},
		{"only signed", concat(buildBlocks(), rbf(100)), 0, "a raw image needs a sidecar"},
		{"wrong second magic", withBytes(gbs, 8, []byte("GBSv002\x00")), 0, `gbs: 0x0: magic`},
		{"metadata of no bytes", withUint32(gbs, 16, 0), 16, "gbs: 0x10: metadata of 0 bytes, want 1 to 4095"},
		{"metadata of 4096 bytes", withUint32(concat(gbs, make([]byte, 8192)), 16, 4096), 16, "metadata of 4096 bytes"},
		{"metadata of 4 GiB", withUint32(gbs, 16, 0xffffffff), 16, "metadata of 4294967295 bytes"},
		{"metadata beyond the file", withUint32(gbs, 16, 4095), int64(gbsHeader), "the metadata: want 0xfff bytes at 0x14, but only"},
		{"no image", gbs[:image], image, "want an image, but the file ends"},
		{"no JSON", buildGBS(`{"version":1,]`, rbf(1)), gbsHeader + 13, "want JSON as in a GBS of version 1"},
		{"metadata too short by one", withUint32(gbs, 16, uint32(len(nlb0Metadata)-1)), gbsHeader + int64(len(nlb0Metadata)) - 2, "want JSON"},
		{"metadata too long by one", withUint32(gbs, 16, uint32(len(nlb0Metadata)+1)), gbsHeader + int64(len(nlb0Metadata)), "want JSON"},
		{"a key twice", metadata(`"power":50`, `"power":50,"power":51`), gbsHeader, `duplicate field "afu-image.power"`},
		{"no afu-image", buildGBS(`{"version":1}`, rbf(1)), gbsHeader, "afu-image: want an object"},
		{"no cluster", metadata(cluster, ""), gbsHeader, "accelerator-clusters: got 0, want exactly one"},
		{"two clusters", metadata(cluster, cluster+","+cluster), gbsHeader, "accelerator-clusters: got 2, want exactly one"},
		{"wrong magic-no", metadata("488605312", "1"), gbsHeader, "afu-image.magic-no: got 1, want 488605312"},
		{"clock of text", metadata(`"auto"`, `"fast"`), gbsHeader, `clock "fast": want a frequency in MHz or "auto"`},
		{"negative clock", metadata(`:200`, `:-1`), gbsHeader, `clock -1: want`},
		{"endless clock", metadata(`:200`, `:1e999`), gbsHeader, `clock 1e999: want`},
		{"negative power", metadata(`:50`, `:-50`), gbsHeader, "power: got -50"},
		{"negative contexts", metadata(`"total-contexts":1`, `"total-contexts":-1`), gbsHeader, "total-contexts: got -1"},
		{"short AFU id", metadata("D8424DC4-", ""), gbsHeader, `accelerator-type-uuid: "A4A3-C413-F89E-433683F9040B": want 32`},
		{"dashes elsewhere", metadata("D8424DC4-A4A3", "D842-4DC4A4A3"), gbsHeader, "accelerator-type-uuid"},
		{"path as AFU id", metadata("D8424DC4-A4A3-C413-F89E-433683F9040B", "../../etc/passwd"), gbsHeader, "accelerator-type-uuid"},
		{"AFU id of f", metadata("D8424DC4-A4A3-C413-F89E-433683F9040B", strings.Repeat("f", 32)), gbsHeader, "all f, which ports show"},
		{
			"interface of f",
			metadata("9926AB6D-6C92-5A68-AABC-A7D84C545738", strings.Repeat("F", 32)), gbsHeader, "interface-uuid: want an id, got all f",
		},
		{
			"interface of 0",
			metadata("9926AB6D-6C92-5A68-AABC-A7D84C545738", strings.Repeat("0", 32)), gbsHeader, "interface-uuid: want an id, got all 0",
		},
		{"no interface", metadata("9926AB6D-6C92-5A68-AABC-A7D84C545738", ""), gbsHeader, "interface-uuid"},
		{"name for a terminal", metadata("nlb_400", `\u001b[2J`), gbsHeader, "printable text"},
		{"long name", metadata("nlb_400", strings.Repeat("x", 257)), gbsHeader, "at most 256 bytes"},
		{"long platform", metadata("DCP", strings.Repeat("x", 257)), gbsHeader, "platform-name"},
		{
			"signature that is not there", metadata(`"version":1`, `"version":1,"signature":{}`),
			int64(len(metadata(`"version":1`, `"version":1,"signature":{}`)) - 1), "want the magic 19fdeab6 of a signature",
		},
		{"blocks cut short", signedGBS(t)[:len(signedGBS(t))-101], int64(len(signedGBS(t)) - 1124), "want 1024 bytes of signature"},
		{
			"blocks without an image",
			signedGBS(t)[:len(signedGBS(t))-100], int64(len(signedGBS(t)) - 1124), "want 1024 bytes of signature and then",
		},
		{
			"signed twice", concat(buildBlocks(), signedGBS(t)),
			int64(blocks + len(signedGBS(t)) - 1124), "a second signature",
		},
		{"mistake after blocks", concat(buildBlocks(), withUint32(gbs, 16, 0)), blocks + 16, "gbs: 0x410: metadata of 0 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := inspectBytes(test.file)
			wantError(t, err, test.offset, test.want)
		})
	}
}

// TestTruncated cuts a file of each format after every byte. What is left is refused, unless only the end of an image is gone that
// nothing tells the length of.
func TestTruncated(t *testing.T) {
	packed := pack(t, vectorGBS(t))
	for name, test := range map[string]struct {
		file []byte
		good int // the first length that may pass
	}{
		"gbs":        {buildGBS(nlb0Metadata, rbf(100)), gbsHeader + len(nlb0Metadata) + 1},
		"signed gbs": {signedGBS(t), len(signedGBS(t)) - 99},
		"aocx":       {buildAOCX(64, packed), len(buildAOCX(64, packed))},
		"aocx of 32": {buildAOCX(32, packed), len(buildAOCX(32, packed))},
		"xclbin":     {helloXclbin(t), len(helloXclbin(t))},
	} {
		t.Run(name, func(t *testing.T) {
			for n := range test.file {
				// The reader could give more than the size that is said, and must not be asked.
				b, err := Inspect(bytes.NewReader(test.file), int64(n))
				var e *Error
				switch {
				case n >= test.good:
					if err != nil || b.Payload.Offset+b.Payload.Length != int64(n) {
						t.Errorf("%d bytes: got a payload %+v and the error %v, want one to the end", n, b.Payload, err)
					}
				case !errors.As(err, &e) || e.Offset > int64(n):
					t.Errorf("%d bytes: got %v, want an error at an offset up to there", n, err)
				}
				// The same for a file that is shorter than it was said to be.
				if _, err := Inspect(bytes.NewReader(test.file[:n]), int64(len(test.file))); !errors.As(err, &e) {
					t.Errorf("%d bytes of %d: got %v, want an error", n, len(test.file), err)
				}
			}
		})
	}
}

// TestPayloadOfChangedFile: what is read later is as long as what was inspected, or an error.
func TestPayloadOfChangedFile(t *testing.T) {
	gbs := buildGBS(nlb0Metadata, rbf(100))
	aocx := buildAOCX(64, pack(t, vectorGBS(t)))
	for name, test := range map[string]struct {
		file   []byte
		change func([]byte) []byte
	}{
		"shorter gbs":  {gbs, func(b []byte) []byte { return b[:len(b)-1] }},
		"no gzip":      {aocx, func(b []byte) []byte { return bytes.Replace(b, []byte("\x1f\x8b"), []byte("xx"), 1) }},
		"other gzip":   {aocx, func(b []byte) []byte { return bytes.Replace(b, rbf(64), rbf(64)[1:], 1) }},
		"changed byte": {aocx, func(b []byte) []byte { return bytes.Replace(b, rbf(2), []byte("xx"), 1) }},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := inspectBytes(test.file)
			if err != nil {
				t.Fatal(err)
			}
			r, err := b.Payload.Open(bytes.NewReader(test.change(bytes.Clone(test.file))))
			if err != nil {
				return
			}
			if n, err := io.Copy(io.Discard, r); err == nil {
				t.Errorf("read %d bytes without an error", n)
			}
		})
	}
}

func TestErrorOfReader(t *testing.T) {
	broken := errors.New("disk on fire")
	_, err := Inspect(failingReader{broken}, 100)
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want one that wraps %v", err, broken)
	}
}

type failingReader struct{ err error }

func (f failingReader) ReadAt([]byte, int64) (int, error) { return 0, f.err }

func TestClockJSON(t *testing.T) {
	for _, text := range []string{`"auto"`, `0`, `200`, `312.5`} {
		var c Clock
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(c); err != nil || string(got) != text || c.String() != strings.Trim(text, `"`) {
			t.Errorf("%s became %s, %s, %v", text, got, c, err)
		}
	}
}

// sparse is a long file: some bytes and then zeros.
type sparse struct {
	head []byte
	size int64
}

func (s sparse) ReadAt(p []byte, at int64) (int, error) {
	if at >= s.size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), s.size-at))
	clear(p[:n])
	if at < int64(len(s.head)) {
		copy(p[:n], s.head[at:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// TestImagesOf32Bits wants the longest image that a kernel counts in 32 bits, and refuses one that is a byte longer.
func TestImagesOf32Bits(t *testing.T) {
	const most = 1<<32 - 1
	gbs := buildGBS(nlb0Metadata, nil)
	sections := buildXclbin(t, buildSection{name: "image", data: rbf(1)})
	begin := int64(len(sections)) - 1
	xclbin := func(size int64) []byte {
		stated := withUint64(sections, xclbinLength, uint64(size))
		return withUint64(stated, xclbinHeader+32, uint64(size-begin))
	}
	raw := strings.Replace(rawSidecar, "size: 100\n", "", 1)
	for _, test := range []struct {
		name    string
		head    []byte
		offset  int64 // where the image begins
		size    int64 // of the file with the longest image
		inspect func(sparse) (Bitstream, error)
	}{
		{"gbs", gbs, int64(len(gbs)), int64(len(gbs)) + most, nil},
		{"xclbin", nil, 0, most, func(s sparse) (Bitstream, error) { return Inspect(sparse{xclbin(s.size), s.size}, s.size) }},
		{"rbf", rbf(1), 0, most, func(s sparse) (Bitstream, error) { return InspectRaw(s, s.size, []byte(raw)) }},
		{"bin", rbf(1), 0, most, func(s sparse) (Bitstream, error) {
			return InspectRaw(s, s.size, []byte(strings.Replace(raw, "rbf", "bin", 1)))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.inspect == nil {
				test.inspect = func(s sparse) (Bitstream, error) { return Inspect(s, s.size) }
			}
			if b, err := test.inspect(sparse{test.head, test.size}); err != nil || b.Payload.Length != most {
				t.Errorf("the longest image: %+v, %v", b.Payload, err)
			}
			_, err := test.inspect(sparse{test.head, test.size + 1})
			wantError(t, err, test.offset, "an image of 0x100000000 bytes, want at most 0xffffffff: the kernel counts its bytes in 32 bits")
		})
	}
}
