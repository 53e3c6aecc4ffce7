// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
)

// An xclbin is a header of 456 bytes, a table of sections and the sections. The whole file goes to the driver, which picks what it
// needs. Where the signature of a signed file lies was not confirmed. Fettle accepts files that end with the sections, or exactly one
// signature later.
const (
	xclbinSignatureLength = 8
	xclbinLength          = 304
	xclbinInterface       = 336
	xclbinPlatform        = 352
	xclbinUUID            = 416
	xclbinCount           = 448
	xclbinHeader          = 456
	xclbinEntry           = 40
)

// Section is a part of an xclbin.
type Section struct {
	Kind   SectionKind `json:"kind"`
	Name   string      `json:"name,omitempty"`
	Offset int64       `json:"offset"`
	Length int64       `json:"length"`
}

// SectionKind says what a section holds. Only some kinds have a name here.
type SectionKind uint32

// The kinds that hold an image, or what an image must match.
const (
	SectionBitstream         SectionKind = 0
	SectionClearingBitstream SectionKind = 1
	SectionBuildMetadata     SectionKind = 14
	SectionPDI               SectionKind = 18
	SectionPartialPDI        SectionKind = 19
	SectionPartitionMetadata SectionKind = 20
	SectionDTBO              SectionKind = 36
)

// String returns the kind's name, or its number.
func (k SectionKind) String() string {
	switch k {
	case SectionBitstream:
		return "BITSTREAM"
	case SectionClearingBitstream:
		return "CLEARING_BITSTREAM"
	case SectionBuildMetadata:
		return "BUILD_METADATA"
	case SectionPDI:
		return "PDI"
	case SectionPartialPDI:
		return "PARTIAL_PDI"
	case SectionPartitionMetadata:
		return "PARTITION_METADATA"
	case SectionDTBO:
		return "DTBO"
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// MarshalText returns what String returns.
func (k SectionKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

func inspectXclbin(w window) (Bitstream, error) {
	header, err := w.read(0, xclbinHeader, "the header")
	if err != nil {
		return Bitstream{}, err
	}
	b := Bitstream{Payload: &Payload{Offset: w.base, Length: w.size}}
	file, err := b.xclbinEnd(w, header)
	if err != nil {
		return Bitstream{}, err
	}
	if b.ID, err = canonicalID(hex.EncodeToString(header[xclbinUUID:][:16])); err != nil || allOf(b.ID, '0') {
		return Bitstream{}, w.errorf(xclbinUUID, "uuid: want an id that is not all 0")
	}
	b.AFUID = b.ID // the card shows it
	// Zeros stand for no interface.
	if text := hex.EncodeToString(header[xclbinInterface:][:16]); !allOf(text, '0') {
		if b.InterfaceID, err = interfaceID(text); err != nil {
			return Bitstream{}, w.errorf(xclbinInterface, "interface_uuid: %w", err)
		}
	}
	b.Platform = padded(header[xclbinPlatform:][:64])
	if err := CheckText(b.Platform); err != nil {
		return Bitstream{}, w.errorf(xclbinPlatform, "platformVBNV: %w", err)
	}
	if b.Sections, err = xclbinSections(file, int64(binary.LittleEndian.Uint32(header[xclbinCount:]))); err != nil {
		return Bitstream{}, err
	}
	return b, checkImages(file, b.Sections)
}

// checkImages wants an image to load, and no doubt about which. An image is a section BITSTREAM or, on Versal, PDI or PARTIAL_PDI. XRT
// takes the first section of a kind (xrt_xclbin_section_info), and another tool may take another.
func checkImages(file window, sections []Section) error {
	first := map[SectionKind]int{}
	for i, s := range sections {
		if s.Kind != SectionBitstream && s.Kind != SectionPDI && s.Kind != SectionPartialPDI {
			continue
		}
		at := xclbinHeader + int64(i)*xclbinEntry
		if before, twice := first[s.Kind]; twice {
			return file.errorf(at, "sections %d and %d are both %s, want one", before, i, s.Kind)
		}
		if s.Length == 0 {
			return file.errorf(at+32, "section %d, %s, is empty", i, s.Kind)
		}
		first[s.Kind] = i
	}
	if len(first) == 0 {
		return file.errorf(xclbinCount, "none of %d sections is an image, want one %s, %s or %s", len(sections), SectionBitstream,
			SectionPDI, SectionPartialPDI)
	}
	return nil
}

// xclbinEnd compares the length in the header with the file's, and returns the file without a signature at its end.
func (b *Bitstream) xclbinEnd(w window, header []byte) (window, error) {
	length := binary.LittleEndian.Uint64(header[xclbinLength:])
	signature := int64(int32(binary.LittleEndian.Uint32(header[xclbinSignatureLength:])))
	if length < xclbinHeader {
		return window{}, w.errorf(xclbinLength, "length 0x%x, want at least the header's 0x%x", length, xclbinHeader)
	}
	if length > uint64(w.size) {
		return window{}, w.errorf(xclbinLength, "length 0x%x, but the file has only 0x%x bytes", length, w.size)
	}
	rest := w.size - int64(length)
	switch {
	case signature < -1:
		return window{}, w.errorf(xclbinSignatureLength, "signature of %d bytes, want -1 for none or a length", signature)
	case signature > int64(length):
		return window{}, w.errorf(xclbinSignatureLength, "signature of 0x%x bytes in a file of 0x%x", signature, w.size)
	case rest != 0 && rest != signature:
		return window{}, w.errorf(xclbinLength, "length 0x%x, but the file has 0x%x bytes more", length, rest)
	case rest != 0:
		b.Signature = &Signature{Offset: w.base + int64(length), Length: rest}
	case signature > 0:
		b.Signature = &Signature{Offset: -1, Length: signature}
	}
	return w.sub(0, length, "the file")
}

// xclbinSections reads the table. The sections must lie behind it, within the file, and not overlap.
func xclbinSections(file window, count int64) ([]Section, error) {
	if count > maxSections {
		return nil, file.errorf(xclbinCount, "%d sections, want at most %d", count, maxSections)
	}
	table, err := file.read(xclbinHeader, count*xclbinEntry, "the section table")
	if err != nil {
		return nil, err
	}
	sections := make([]Section, 0, count)
	for i := range count {
		at, entry := xclbinHeader+i*xclbinEntry, table[i*xclbinEntry:][:xclbinEntry]
		s := Section{Kind: SectionKind(binary.LittleEndian.Uint32(entry)), Name: padded(entry[4:20])}
		if err := CheckText(s.Name); err != nil {
			return nil, file.errorf(at+4, "the name of section %d: %w", i, err)
		}
		offset, size := binary.LittleEndian.Uint64(entry[24:]), binary.LittleEndian.Uint64(entry[32:])
		part, err := file.sub(offset, size, fmt.Sprintf("section %d", i))
		if err != nil {
			return nil, file.errorf(at+24, "section %d has 0x%x bytes at 0x%x, but the file ends at 0x%x", i, size, offset, file.size)
		}
		s.Offset, s.Length = part.base, part.size
		if s.Length > 0 && offset < uint64(xclbinHeader+len(table)) {
			return nil, file.errorf(at+24, "section %d begins at 0x%x, within the section table", i, offset)
		}
		sections = append(sections, s)
	}
	return sections, checkOverlap(file, sections)
}

// checkOverlap refuses sections that share bytes. The error names the later entry.
func checkOverlap(file window, sections []Section) error {
	order := make([]int, 0, len(sections))
	for i, s := range sections {
		if s.Length > 0 {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(sections[i].Offset, sections[j].Offset), cmp.Compare(i, j))
	})
	for k := 1; k < len(order); k++ {
		before, after := order[k-1], order[k]
		if sections[before].Offset+sections[before].Length > sections[after].Offset {
			first, second := min(before, after), max(before, after)
			return file.errorf(xclbinHeader+int64(second)*xclbinEntry+24, "section %d overlaps section %d", second, first)
		}
	}
	return nil
}

// padded returns a text without the zeros that fill its field.
func padded(field []byte) string {
	text, _, _ := bytes.Cut(field, []byte{0})
	return string(text)
}
