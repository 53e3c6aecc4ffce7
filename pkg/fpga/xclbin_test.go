// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"bytes"
	"testing"
)

func TestInspectXclbinRefuses(t *testing.T) {
	good := helloXclbin(t)
	const first, second, third = xclbinHeader, xclbinHeader + xclbinEntry, xclbinHeader + 2*xclbinEntry
	image := func(kind SectionKind) buildSection {
		return buildSection{name: "image", kind: uint32(kind), data: rbf(8)}
	}
	for _, test := range []struct {
		name   string
		file   []byte
		offset int64
		want   string
	}{
		{
			"length below the header",
			withUint64(good, xclbinLength, 455), xclbinLength, "xclbin: 0x130: length 0x1c7, want at least the header's 0x1c8",
		},
		{"length beyond the file", withUint64(good, xclbinLength, 1<<63), xclbinLength, "length 0x8000000000000000, but the file has only 0x292"},
		{"length before the end", withUint64(good, xclbinLength, uint64(len(good)-1)), xclbinLength, "but the file has 0x1 bytes more"},
		{"bytes behind the end", concat(good, rbf(4)), xclbinLength, "but the file has 0x4 bytes more"},
		{"negative signature", withUint32(good, xclbinSignatureLength, 0xfffffffe), xclbinSignatureLength, "signature of -2 bytes"},
		{
			"signature longer than the file",
			withUint32(good, xclbinSignatureLength, 0x7fffffff), xclbinSignatureLength, "signature of 0x7fffffff bytes",
		},
		{"half a signature", signedXclbin(t)[:len(good)+24], xclbinLength, "but the file has 0x18 bytes more"},
		{"no uuid", withBytes(good, xclbinUUID, make([]byte, 16)), xclbinUUID, "uuid: want an id that is not all 0"},
		{
			"interface of f",
			withBytes(good, xclbinInterface, bytes.Repeat([]byte{0xff}, 16)), xclbinInterface, "interface_uuid: want an id, got all f",
		},
		{"platform for a terminal", withBytes(good, xclbinPlatform, []byte("\x1b[2J")), xclbinPlatform, "platformVBNV: "},
		{"too many sections", withUint32(good, xclbinCount, 1025), xclbinCount, "1025 sections, want at most 1024"},
		{"more sections than there are", withUint32(good, xclbinCount, 1000), xclbinHeader, "the section table: want 0x9c40 bytes at 0x1c8"},
		{"name for a terminal", withBytes(good, first+4, []byte{7}), first + 4, "the name of section 0"},
		{"section beyond the file", withUint64(good, second+32, 3), second + 24, "section 1 has 0x3 bytes at 0x290, but the file ends at 0x292"},
		{"section that wraps", withUint64(good, second+24, 1<<64-1), second + 24, "section 1 has 0x2 bytes at 0xffffffffffffffff"},
		{"section in the table", withUint64(good, first+24, 575), first + 24, "section 0 begins at 0x23f, within the section table"},
		{"section in another", withUint64(good, second+24, 655), second + 24, "section 1 overlaps section 0"},
		{"section over another", withUint64(withUint64(good, second+24, 576), second+32, 82), second + 24, "section 1 overlaps section 0"},
		{"no sections", buildXclbin(t), xclbinCount, "none of 0 sections is an image, want one BITSTREAM, PDI or PARTIAL_PDI"},
		{"no image", withUint32(good, first, uint32(SectionClearingBitstream)), xclbinCount, "none of 3 sections is an image"},
		{"empty image", withUint64(good, first+32, 0), first + 32, "section 0, BITSTREAM, is empty"},
		{"two images", withUint32(good, second, 0), second, "sections 0 and 1 are both BITSTREAM, want one"},
		{"an empty image beside another", withUint32(good, third, 0), third, "sections 0 and 2 are both BITSTREAM, want one"},
		{"two images for Versal", buildXclbin(t, image(SectionPDI), image(SectionPDI)), second, "sections 0 and 1 are both PDI, want one"},
		{"an empty image for Versal", withUint32(good, third, uint32(SectionPartialPDI)), third + 32, "section 2, PARTIAL_PDI, is empty"},
		{"section in the signature", withUint64(signedXclbin(t), second+32, 3), second + 24, "section 1 has 0x3 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := inspectBytes(test.file)
			wantError(t, err, test.offset, test.want)
		})
	}
}

func TestSectionKind(t *testing.T) {
	for kind, want := range map[SectionKind]string{
		0: "BITSTREAM", 1: "CLEARING_BITSTREAM", 14: "BUILD_METADATA", 18: "PDI", 19: "PARTIAL_PDI", 20: "PARTITION_METADATA", 36: "DTBO",
		1 << 31: "kind 2147483648",
	} {
		if got, err := kind.MarshalText(); err != nil || string(got) != want {
			t.Errorf("%d is %s, %v, want %s", uint32(kind), got, err, want)
		}
	}
}

// TestInspectXclbinVersal takes the two kinds of images that cards with a Versal chip load.
func TestInspectXclbinVersal(t *testing.T) {
	for _, kind := range []SectionKind{SectionPDI, SectionPartialPDI} {
		file := buildXclbin(t, buildSection{name: "image", kind: uint32(kind), data: rbf(8)})
		b, err := inspectBytes(file)
		if err != nil || len(b.Sections) != 1 || b.Sections[0].Kind != kind {
			t.Errorf("%s: got %+v, %v", kind, b.Sections, err)
		}
	}
}
