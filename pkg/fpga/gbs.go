// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	sigsjson "sigs.k8s.io/json"
)

// A GBS is a magic of 16 bytes, the length of the metadata as a 32-bit number, the metadata as JSON and then the image to the end of
// the file. Only the image goes to the device.
//
// Signed images have two blocks of authentication, of 1,024 bytes together. Block 0 is 128 bytes long and begins with a magic. The signing
// tool's source shows their place: after the metadata of a GBS, whose JSON then has the key "signature", or before an image that came
// without metadata. Fettle checks only the magic, and that the blocks are whole.
//
// Two things are assumed and were not seen on a card (docs/design/hardware.md). The blocks go to the device together with the image, since
// the card checks them. A GBS with the blocks before its header is possible, as a vendor's text can be read; such a file is described but
// has no payload. A block 0 of 4 KiB, which one card is said to have, is not recognised.
const (
	gbsHeader   = 0x14
	maxMetadata = 4096 // the first length that is refused
	blocks      = 1024
	magicNumber = 0x1d1f8680
)

// blockMagic begins block 0: 0xb6eafd19.
const blockMagic = "\x19\xfd\xea\xb6"

// metadata holds the keys of a GBS's JSON that Fettle reads. Other keys are ignored. A key that stands twice is refused.
type metadata struct {
	Platform  string          `json:"platform-name"`
	Image     *afuImage       `json:"afu-image"`
	Signature json.RawMessage `json:"signature"`
}

type afuImage struct {
	ClockHigh   *Clock    `json:"clock-frequency-high"`
	ClockLow    *Clock    `json:"clock-frequency-low"`
	Power       *float64  `json:"power"`
	InterfaceID string    `json:"interface-uuid"`
	Magic       *int64    `json:"magic-no"`
	Clusters    []cluster `json:"accelerator-clusters"`
}

type cluster struct {
	Contexts int    `json:"total-contexts"`
	Name     string `json:"name"`
	AFUID    string `json:"accelerator-type-uuid"`
}

// recogniseSigned tells a GBS with the blocks before its header from a signed image without a header.
func recogniseSigned(w window) (Format, error) {
	if w.size < blocks+int64(len(gbsMagic)) {
		return "", nil
	}
	head, err := w.read(blocks, int64(len(gbsMagic)), "the header after the blocks of the signature")
	if err != nil || string(head) != gbsMagic {
		return "", err
	}
	return GBS, nil
}

// inspectGBS reads a GBS. It needs only the first maxHead bytes.
func inspectGBS(w window) (Bitstream, error) {
	head, err := w.read(0, 4, "the magic")
	if err != nil {
		return Bitstream{}, err
	}
	if string(head) != blockMagic {
		return inspectUnwrapped(w)
	}
	inner, err := w.sub(blocks, uint64(max(0, w.size-blocks)), "the GBS after the blocks of the signature")
	if err != nil {
		return Bitstream{}, err
	}
	b, err := inspectUnwrapped(inner)
	if err != nil {
		return Bitstream{}, err
	}
	if b.Signature != nil {
		return Bitstream{}, w.errorf(b.Signature.Offset-w.base, "a second signature: want the blocks before the header or after the metadata")
	}
	b.Payload, b.Signature = nil, &Signature{Offset: w.base, Length: blocks}
	return b, nil
}

// maxHead limits how much of a GBS is read.
const maxHead = blocks + gbsHeader + maxMetadata + blocks

// inspectUnwrapped reads a GBS that begins with its header.
func inspectUnwrapped(w window) (Bitstream, error) {
	header, err := w.read(0, gbsHeader, "the header")
	if err != nil {
		return Bitstream{}, err
	}
	if string(header[:16]) != gbsMagic {
		return Bitstream{}, w.errorf(0, "magic %q, want %q", header[:16], gbsMagic)
	}
	length := int64(binary.LittleEndian.Uint32(header[16:]))
	if length == 0 || length >= maxMetadata {
		return Bitstream{}, w.errorf(16, "metadata of %d bytes, want 1 to %d", length, maxMetadata-1)
	}
	text, err := w.read(gbsHeader, length, "the metadata")
	if err != nil {
		return Bitstream{}, err
	}
	m, at, err := decodeMetadata(text)
	if err != nil {
		return Bitstream{}, w.errorf(gbsHeader+at, "metadata: %w", err)
	}
	b, err := m.bitstream()
	if err != nil {
		return Bitstream{}, w.errorf(gbsHeader, "metadata: %w", err)
	}
	image, err := w.sub(uint64(gbsHeader+length), uint64(w.size-gbsHeader-length), "the image")
	if err != nil {
		return Bitstream{}, err
	}
	b.Payload = &Payload{Offset: image.base, Length: image.size}
	return b, b.findBlocks(image, m.signed())
}

// findBlocks looks for the blocks at the start of an image. They must be there if the metadata says so.
func (b *Bitstream) findBlocks(image window, must bool) error {
	if image.size == 0 {
		return image.errorf(0, "want an image, but the file ends")
	}
	head, err := image.read(0, min(4, image.size), "the image")
	if err != nil {
		return err
	}
	switch found := string(head) == blockMagic; {
	case found && image.size <= blocks:
		return image.errorf(0, "want %d bytes of signature and then an image, got %d bytes together", blocks, image.size)
	case found:
		b.Signature = &Signature{Offset: image.base, Length: blocks}
	case must:
		return image.errorf(0, "want the magic %x of a signature, since the metadata says that there is one; got %x", blockMagic, head)
	}
	return nil
}

// decodeMetadata reads the metadata. For a mistake it also returns the offset in the text, if that is known.
func decodeMetadata(text []byte) (metadata, int64, error) {
	var m metadata
	strict, err := sigsjson.UnmarshalStrict(text, &m, sigsjson.DisallowDuplicateFields)
	if err != nil {
		_, at := sigsjson.SyntaxErrorOffset(err)
		return metadata{}, min(max(0, at-1), int64(len(text))), fmt.Errorf("want JSON as in a GBS of version 1: %w", err)
	}
	return m, 0, errors.Join(strict...)
}

// signed reports whether the metadata has the key that the signing tool adds.
func (m metadata) signed() bool {
	return len(m.Signature) > 0 && string(m.Signature) != "null"
}

// bitstream checks the metadata and returns what it states.
func (m metadata) bitstream() (Bitstream, error) {
	if m.Image == nil {
		return Bitstream{}, errors.New("afu-image: want an object")
	}
	if n := len(m.Image.Clusters); n != 1 {
		return Bitstream{}, fmt.Errorf("afu-image.accelerator-clusters: got %d, want exactly one", n)
	}
	if magic := m.Image.Magic; magic != nil && *magic != magicNumber {
		return Bitstream{}, fmt.Errorf("afu-image.magic-no: got %d, want %d", *magic, magicNumber)
	}
	if power := m.Image.Power; power != nil && *power < 0 {
		return Bitstream{}, fmt.Errorf("afu-image.power: got %g, want no negative number", *power)
	}
	only := m.Image.Clusters[0]
	if only.Contexts < 0 {
		return Bitstream{}, fmt.Errorf("afu-image.accelerator-clusters[0].total-contexts: got %d, want no negative number", only.Contexts)
	}
	afu, afuErr := afuID(only.AFUID)
	iface, ifaceErr := interfaceID(m.Image.InterfaceID)
	err := firstFault(
		fault{"afu-image.accelerator-clusters[0].accelerator-type-uuid", afuErr},
		fault{"afu-image.accelerator-clusters[0].name", CheckText(only.Name)},
		fault{"afu-image.interface-uuid", ifaceErr},
		fault{"platform-name", CheckText(m.Platform)},
	)
	return Bitstream{
		ID: afu, AFUID: afu, InterfaceID: iface, Name: only.Name, Contexts: only.Contexts, Platform: m.Platform,
		Clocks: Clocks{High: m.Image.ClockHigh, Low: m.Image.ClockLow}, Power: m.Image.Power,
	}, err
}
