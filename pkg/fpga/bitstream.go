// SPDX-License-Identifier: Apache-2.0

// Package fpga reads the files that FPGAs are programmed with. It finds which image a file holds, which regions can take it, and which
// bytes go to the device. It trusts no length that a file states, keeps a few KiB of a file of any size, and checks no signature.
package fpga

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Format is how an image is packed.
type Format string

// The formats. RBF and BIN have nothing but the image and need a sidecar.
const (
	GBS    Format = "gbs"
	AOCX   Format = "aocx"
	Xclbin Format = "xclbin"
	RBF    Format = "rbf"
	BIN    Format = "bin"
)

// Bitstream describes the image in a file, as the file states it. All ids are lower-case hexadecimal without dashes.
type Bitstream struct {
	Format Format `json:"format"`
	// ID tells the image from others of its format: the AFU id of a GBS, the random hash of an AOCX, the uuid of an xclbin.
	ID string `json:"id"`
	// AFUID is the id that a region shows once the image is loaded; for an xclbin it is the uuid. All images of one OpenCL shell share it.
	AFUID string `json:"afuID,omitempty"`
	// InterfaceID is the interface id of the regions that can take the image. An xclbin may have none.
	InterfaceID string `json:"interfaceID,omitempty"`
	Name        string `json:"name,omitempty"`
	// Contexts is the number of users that the image's one accelerator cluster serves at once.
	Contexts int `json:"contexts,omitempty"`
	// Platform is the platform-name of a GBS, or the VBNV of an xclbin's platform.
	Platform string   `json:"platform,omitempty"`
	OpenCL   *OpenCL  `json:"openCL,omitempty"`
	Clocks   Clocks   `json:"clocks,omitzero"`
	Power    *float64 `json:"power,omitempty"`
	// Size is the size of the whole file.
	Size int64 `json:"size"`
	// Payload is nil if Fettle cannot tell which bytes the device expects. Such an image cannot be programmed.
	Payload   *Payload   `json:"payload,omitempty"`
	Signature *Signature `json:"signature,omitempty"`
	// Sections lists the sections of an xclbin, in the order of its table.
	Sections []Section `json:"sections,omitempty"`
}

// OpenCL holds what an AOCX states about its compilation.
type OpenCL struct {
	Board   string `json:"board,omitempty"`
	Target  string `json:"target,omitempty"`
	Version string `json:"version,omitempty"`
}

// Clocks are the two user clocks. Each is nil if the image does not state it.
type Clocks struct {
	High *Clock `json:"high,omitempty"`
	Low  *Clock `json:"low,omitempty"`
}

// Clock is a frequency in MHz, or auto: the frequency that the build found.
type Clock struct {
	Auto bool
	MHz  float64
}

// String returns the frequency as the metadata writes it.
func (c Clock) String() string {
	if c.Auto {
		return "auto"
	}
	return strconv.FormatFloat(c.MHz, 'f', -1, 64)
}

// MarshalJSON writes a number or "auto".
func (c Clock) MarshalJSON() ([]byte, error) {
	if c.Auto {
		return []byte(`"auto"`), nil
	}
	return json.Marshal(c.MHz)
}

// UnmarshalJSON reads a number that is not negative, or "auto".
func (c *Clock) UnmarshalJSON(data []byte) error {
	if string(data) == `"auto"` {
		*c = Clock{Auto: true}
		return nil
	}
	var mhz float64
	if err := json.Unmarshal(data, &mhz); err != nil || mhz < 0 {
		return fmt.Errorf(`clock %.40s: want a frequency in MHz or "auto"`, data)
	}
	*c = Clock{MHz: mhz}
	return nil
}

// Signature says where a file holds a signature. Its presence proves nothing: signing tools write the same blocks without a key, and only
// the card or its driver knows which keys to trust.
type Signature struct {
	// Offset is -1 if the place is not known.
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
	// Unpacked says that the offset counts in the unpacked payload.
	Unpacked bool `json:"unpacked,omitempty"`
}

// The first bytes of the known formats.
const (
	gbsMagic    = "XeonFPGA\xb7GBSv001"
	elfMagic    = "\x7fELF"
	xclbinMagic = "xclbin2\x00"
	// legacyMagic begins files from before release 6.4. They hold the interface id and the image, and no AFU id.
	legacyMagic = "\x80\x86\x1f\x1d"
)

// maxUnpacked limits the size of an unpacked image, and so the time that a small file can keep its reader busy.
const maxUnpacked = 512 << 20

// maxPayload is the longest image that a kernel takes: each interface counts its bytes in 32 bits. Sources: buffer_size of struct
// dfl_fpga_fme_port_pr (include/uapi/linux/fpga-dfl.h); the size that zynqmp_pm_fpga_load gives to the firmware
// (drivers/firmware/xilinx/zynqmp.c); BitstreamLength of XRT's struct XHwIcap_Bit_Header.
const maxPayload = math.MaxUint32

// checkPayload refuses an image that no kernel interface takes.
func (b *Bitstream) checkPayload(w window) error {
	if p := b.Payload; p != nil && p.Length > maxPayload {
		return w.errorf(p.Offset-w.base, "an image of 0x%x bytes, want at most 0x%x: the kernel counts its bytes in 32 bits", p.Length,
			int64(maxPayload))
	}
	return nil
}

// Inspect reads a GBS, an AOCX or an xclbin of the given size. If the file is wrong, the error is an *Error.
func Inspect(r io.ReaderAt, size int64) (Bitstream, error) {
	return inspect(r, size, maxUnpacked)
}

func inspect(r io.ReaderAt, size, maxUnpacked int64) (Bitstream, error) {
	w := window{r: r, size: size}
	if size < 8 {
		return Bitstream{}, w.errorf(0, "a file of %d bytes holds no image", size)
	}
	// A file with its last byte has all of them. Most are never read.
	if _, err := w.read(size-1, 1, "the last byte"); err != nil {
		return Bitstream{}, err
	}
	format, err := recognise(w)
	if err != nil {
		return Bitstream{}, err
	}
	w.format = format
	var b Bitstream
	switch format {
	case GBS:
		b, err = inspectGBS(w)
	case AOCX:
		b, err = inspectAOCX(w, maxUnpacked)
	case Xclbin:
		b, err = inspectXclbin(w)
	default:
		if err := checkOrder(w); err != nil {
			return Bitstream{}, err
		}
		return Bitstream{}, w.errorf(0, "want a GBS, an AOCX or an xclbin; a raw image needs a sidecar that says what it is")
	}
	if err != nil {
		return Bitstream{}, err
	}
	if err := b.checkPayload(w); err != nil {
		return Bitstream{}, err
	}
	b.Format, b.Size = format, size
	return b, nil
}

// recognise returns a file's format by its first bytes, or "" if the format does not describe itself.
func recognise(w window) (Format, error) {
	data, err := w.read(0, min(8, w.size), "the first bytes")
	if err != nil {
		return "", err
	}
	switch head := string(data); {
	case head == gbsMagic[:8]:
		return GBS, nil
	case strings.HasPrefix(head, elfMagic):
		return AOCX, nil
	case head == xclbinMagic:
		return Xclbin, nil
	case strings.HasPrefix(head, blockMagic):
		return recogniseSigned(w)
	case strings.HasPrefix(head, legacyMagic):
		return "", w.errorf(0, "a header from before release 6.4, which has no AFU id: want a GBS with metadata")
	}
	return "", nil
}

// Payload is the part of a file that goes to the device: bytes of the file, or bytes of a part of it that is unpacked first.
type Payload struct {
	// Offset and Length count in the file or, if Gzip is set, in the unpacked bytes.
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
	// Gzip is the part of the file that is unpacked first.
	Gzip *Range `json:"gzip,omitempty"`
}

// Range is a part of a file.
type Range struct {
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
}

// Open reads the payload from the file that Inspect read. The reader fails if the file has become shorter or longer since. It does not
// notice other changes.
func (p Payload) Open(file io.ReaderAt) (io.Reader, error) {
	if p.Gzip == nil {
		return &exactly{io.NewSectionReader(file, p.Offset, p.Length), p.Length}, nil
	}
	unpacked, err := openGzip(io.NewSectionReader(file, p.Gzip.Offset, p.Gzip.Length))
	if err != nil {
		return nil, fmt.Errorf("unpack the image at 0x%x: %w", p.Gzip.Offset, err)
	}
	if _, err := io.CopyN(io.Discard, unpacked, p.Offset); err != nil {
		return nil, fmt.Errorf("unpack the image at 0x%x up to 0x%x: %w", p.Gzip.Offset, p.Offset, err)
	}
	return &exactly{unpacked, p.Length}, nil
}

// exactly reads its source to the end, so that gzip compares its checksum, and fails unless it got the expected number of bytes.
type exactly struct {
	r    io.Reader
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.left -= int64(n)
	switch {
	case e.left < 0:
		return 0, fmt.Errorf("the image has become longer: inspect the file again")
	case err == io.EOF && e.left > 0:
		return n, fmt.Errorf("the image has become shorter by %d bytes: %w", e.left, io.ErrUnexpectedEOF)
	}
	return n, err
}
