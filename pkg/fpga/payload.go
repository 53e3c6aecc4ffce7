// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"compress/gzip"
	"fmt"
	"io"
)

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
	unpacked, err := gzip.NewReader(io.NewSectionReader(file, p.Gzip.Offset, p.Gzip.Length))
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
