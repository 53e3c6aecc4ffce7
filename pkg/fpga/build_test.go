// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/hex"
	"path/filepath"
	"testing"

	"github.com/fettle-dev/fettle/test/check"
)

// Ids of real shells and images, so that the files look like theirs.
const (
	shell      = "9926ab6d6c925a68aabca7d84c545738"
	nlb0       = "d8424dc4a4a3c413f89e433683f9040b"
	openCLAFU  = "18b79ffa2ee54aa096ef4230dafacb5f"
	vectorHash = "00112233445566778899aabbccddeeff01234567"
	helloUUID  = "5005e1b0c0de4a6f9a1d2b3c4d5e6f70"
)

var le = binary.LittleEndian

const nlb0Metadata = `{"version":1,"platform-name":"DCP","afu-image":{"clock-frequency-high":"auto","clock-frequency-low":200,"power":50,` +
	`"interface-uuid":"9926AB6D-6C92-5A68-AABC-A7D84C545738","magic-no":488605312,"accelerator-clusters":[{"total-contexts":1,` +
	`"name":"nlb_400","accelerator-type-uuid":"D8424DC4-A4A3-C413-F89E-433683F9040B"}]}}`

// edited replaces a part of the metadata, which must have it.
func edited(t testing.TB, old, new string) string {
	t.Helper()
	if !bytes.Contains([]byte(nlb0Metadata), []byte(old)) {
		t.Fatalf("the metadata has no %s", old)
	}
	return string(bytes.Replace([]byte(nlb0Metadata), []byte(old), []byte(new), 1))
}

func concat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// rbf is an image that looks like nothing else.
func rbf(size int) []byte { return bytes.Repeat([]byte{0xa5}, size) }

func buildGBS(metadata string, image []byte) []byte {
	length := le.AppendUint32(nil, uint32(len(metadata)))
	return concat([]byte(gbsMagic), length, []byte(metadata), image)
}

// buildBlocks are the two blocks of a signature, with nothing in them but the magic.
func buildBlocks() []byte {
	b := make([]byte, blocks)
	copy(b, blockMagic)
	return b
}

// signedGBS has its blocks after the metadata.
func signedGBS(t testing.TB) []byte {
	return buildGBS(edited(t, `"version":1`, `"version":1,"signature":"test"`), concat(buildBlocks(), rbf(100)))
}

// buildSection is a part of an ELF file or an xclbin.
type buildSection struct {
	name string
	kind uint32
	data []byte
}

// buildELF writes a header, the sections, their names and the table, for 64 or 32 bits.
func buildELF(bits int, sections ...buildSection) []byte {
	layout, class := elfLayout{}, byte(1)
	if bits == 64 {
		class = 2
	}
	layout, _ = layoutOf(class)
	word := func(b []byte, v int) {
		if bits == 64 {
			le.PutUint64(b, uint64(v))
			return
		}
		le.PutUint32(b, uint32(v))
	}
	out := make([]byte, layout.header)
	copy(out, elfMagic)
	out[4], out[5], out[6] = class, 1, 1
	names := []byte{0}
	table := make([]byte, layout.entrySize) // the first entry is empty
	add := func(s buildSection) {
		entry := make([]byte, layout.entrySize)
		le.PutUint32(entry, uint32(len(names)))
		le.PutUint32(entry[4:], s.kind)
		names = append(append(names, s.name...), 0)
		if s.data == nil {
			s.data = names
		}
		word(entry[layout.offset:], len(out))
		word(entry[layout.size:], len(s.data))
		out, table = append(out, s.data...), append(table, entry...)
	}
	for _, s := range sections {
		s.kind = 1
		add(s)
	}
	add(buildSection{name: ".shstrtab", kind: 3})
	word(out[layout.table:], len(out))
	le.PutUint16(out[layout.headerEntrySize:], uint16(layout.entrySize))
	le.PutUint16(out[layout.headerEntries:], uint16(len(sections)+2))
	le.PutUint16(out[layout.headerNamesIndex:], uint16(len(sections)+1))
	return append(out, table...)
}

// pack stores without compressing, which every release of the compressor does alike.
func pack(t testing.TB, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.NoCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func vectorGBS(t testing.TB) []byte {
	return buildGBS(edited(t, "D8424DC4-A4A3-C413-F89E-433683F9040B", openCLAFU), rbf(64))
}

// buildAOCX is an AOCX around what is already packed.
func buildAOCX(bits int, packed []byte) []byte {
	return buildELF(bits,
		buildSection{name: ".acl.board", data: []byte("pac_a10\x00")},
		buildSection{name: ".acl.target", data: []byte("fpga")},
		buildSection{name: ".acl.version", data: []byte("19.4.0 Build 64\n")},
		buildSection{name: sectionHash, data: []byte(vectorHash)},
		buildSection{name: sectionImage, data: buildELF(bits, buildSection{name: sectionGBS, data: packed})},
	)
}

// buildXclbin is an unsigned xclbin.
func buildXclbin(t testing.TB, sections ...buildSection) []byte {
	t.Helper()
	header := make([]byte, xclbinHeader)
	copy(header, xclbinMagic)
	le.PutUint32(header[xclbinSignatureLength:], 0xffffffff)
	copy(header[xclbinPlatform:], "xilinx_u50_gen3x16_xdma_base_5")
	putID(t, header[xclbinInterface:], shell)
	putID(t, header[xclbinUUID:], helloUUID)
	le.PutUint32(header[xclbinCount:], uint32(len(sections)))
	var table, data []byte
	begin := xclbinHeader + xclbinEntry*len(sections)
	for _, s := range sections {
		entry := make([]byte, xclbinEntry)
		le.PutUint32(entry, s.kind)
		copy(entry[4:20], s.name)
		le.PutUint64(entry[24:], uint64(begin+len(data)))
		le.PutUint64(entry[32:], uint64(len(s.data)))
		table, data = append(table, entry...), append(data, s.data...)
	}
	out := concat(header, table, data)
	le.PutUint64(out[xclbinLength:], uint64(len(out)))
	return out
}

func putID(t testing.TB, field []byte, id string) {
	t.Helper()
	raw, err := hex.DecodeString(id)
	if err != nil {
		t.Fatal(err)
	}
	copy(field, raw)
}

func helloXclbin(t testing.TB) []byte {
	return buildXclbin(t,
		buildSection{name: "primary", kind: 0, data: rbf(80)},
		buildSection{name: "build", kind: 14, data: []byte("{}")},
		buildSection{name: "empty", kind: 7},
	)
}

// signedXclbin has its signature behind the length that its header says.
func signedXclbin(t testing.TB) []byte {
	out := helloXclbin(t)
	le.PutUint32(out[xclbinSignatureLength:], 48)
	return append(out, rbf(48)...)
}

const rawSidecar = `# The image of the loopback for Arria 10.
format: rbf
id: d8424dc4-a4a3-c413-f89e-433683f9040b
interfaceID: 9926ab6d-6c92-5a68-aabc-a7d84c545738
name: nlb_400
platform: DCP
clocks:
  high: 312.5
  low: auto
power: 50
size: 100
`

// corpus is a file of each kind.
func corpus(t testing.TB) map[string][]byte {
	return map[string][]byte{
		"nlb0.gbs":            buildGBS(nlb0Metadata, rbf(100)),
		"nlb0-signed.gbs":     signedGBS(t),
		"nlb0-prepended.gbs":  concat(buildBlocks(), buildGBS(nlb0Metadata, rbf(100))),
		"vector.aocx":         buildAOCX(64, pack(t, vectorGBS(t))),
		"hello.xclbin":        helloXclbin(t),
		"hello-signed.xclbin": signedXclbin(t),
		"nlb0.rbf":            rbf(100),
		"nlb0.yaml":           []byte(rawSidecar),
	}
}

// TestTestdata: the files that other packages' tests read are those which the tests here make.
func TestTestdata(t *testing.T) {
	for name, want := range corpus(t) {
		path := filepath.Join("testdata", name)
		check.Golden(t, path, want)
	}
}
