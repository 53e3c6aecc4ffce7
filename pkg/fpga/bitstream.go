// SPDX-License-Identifier: Apache-2.0

// Package fpga reads the files that FPGAs are programmed with: which image a file holds, for which region, and which of its bytes go
// to the device. It trusts no length that a file states, keeps a few KiB of a file of any size, and checks no signature.
package fpga

import (
	"encoding/json"
	"fmt"
	"io"
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

// Bitstream is what a file says of the image that it holds. All ids are lower-case hexadecimal without dashes.
type Bitstream struct {
	Format Format `json:"format"`
	// ID tells the image from others of its format: the AFU id of a GBS, the random hash of an AOCX, the uuid of an xclbin.
	ID string `json:"id"`
	// AFUID is what a region shows once the image is loaded, the uuid of an xclbin. All images of one OpenCL shell share it.
	AFUID string `json:"afuID,omitempty"`
	// InterfaceID is that of the regions that can take the image. An xclbin may have none.
	InterfaceID string `json:"interfaceID,omitempty"`
	Name        string `json:"name,omitempty"`
	// Contexts is how many users the image's one accelerator cluster serves at once.
	Contexts int `json:"contexts,omitempty"`
	// Platform is platform-name of a GBS, the platform's VBNV of an xclbin.
	Platform string   `json:"platform,omitempty"`
	OpenCL   *OpenCL  `json:"openCL,omitempty"`
	Clocks   Clocks   `json:"clocks,omitzero"`
	Power    *float64 `json:"power,omitempty"`
	// Size is the whole file's.
	Size int64 `json:"size"`
	// Payload is nil where it is not known which bytes the device wants; such an image cannot be programmed.
	Payload   *Payload   `json:"payload,omitempty"`
	Signature *Signature `json:"signature,omitempty"`
	// Sections are those of an xclbin, in the order of its table.
	Sections []Section `json:"sections,omitempty"`
}

// OpenCL is what an AOCX says of the compilation.
type OpenCL struct {
	Board   string `json:"board,omitempty"`
	Target  string `json:"target,omitempty"`
	Version string `json:"version,omitempty"`
}

// Clocks are the two user clocks, each nil where the image does not say.
type Clocks struct {
	High *Clock `json:"high,omitempty"`
	Low  *Clock `json:"low,omitempty"`
}

// Clock is a frequency in MHz, or auto: what the build found the image to hold.
type Clock struct {
	Auto bool
	MHz  float64
}

// String is the frequency as the metadata has it.
func (c Clock) String() string {
	if c.Auto {
		return "auto"
	}
	return strconv.FormatFloat(c.MHz, 'f', -1, 64)
}

// MarshalJSON is a number or "auto".
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

// Signature is where a file has what its maker signed it with. That it is there says nothing of its worth: signing tools write the same
// blocks without a key, and only the card, or the driver, knows whom to trust.
type Signature struct {
	// Offset is -1 where the place is not known.
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
	// Unpacked says that the offset is in what the payload's gzip unpacks to.
	Unpacked bool `json:"unpacked,omitempty"`
}

// How the files begin that are known.
const (
	gbsMagic    = "XeonFPGA\xb7GBSv001"
	elfMagic    = "\x7fELF"
	xclbinMagic = "xclbin2\x00"
	// legacyMagic begins files from before release 6.4, which have the interface id and then the image, and no AFU id.
	legacyMagic = "\x80\x86\x1f\x1d"
)

// maxUnpacked bounds what a compressed image may unpack to, and with it how long a small file can keep its reader busy.
const maxUnpacked = 512 << 20

// Inspect reads a GBS, an AOCX or an xclbin of the given size. What is wrong with a file is an *Error.
func Inspect(r io.ReaderAt, size int64) (Bitstream, error) {
	return inspect(r, size, maxUnpacked)
}

func inspect(r io.ReaderAt, size, maxUnpacked int64) (Bitstream, error) {
	w := window{r: r, size: size}
	if size < 8 {
		return Bitstream{}, w.errorf(0, "a file of %d bytes holds no image", size)
	}
	// That the last byte is there says that all are, although most are never looked at.
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
		return Bitstream{}, w.errorf(0, "want a GBS, an AOCX or an xclbin; a raw image needs a sidecar that says what it is")
	}
	if err != nil {
		return Bitstream{}, err
	}
	b.Format, b.Size = format, size
	return b, nil
}

// recognise tells a file's format by how it begins; none if it is not one that describes itself.
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
