// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"regexp"
	"strings"
)

// An AOCX is an ELF file with a section that is an ELF file, with a section that is a GBS in a gzip.
const (
	sectionImage = ".acl.fpga.bin"
	sectionGBS   = ".acl.gbs.gz"
	sectionHash  = ".acl.rand_hash"
)

// randomHash matches the id that the compiler makes up for each image.
var randomHash = regexp.MustCompile(`^[0-9a-f]{40}$`)

func inspectAOCX(w window, maxUnpacked int64) (Bitstream, error) {
	outer, err := readELF(w, "the file")
	if err != nil {
		return Bitstream{}, err
	}
	image, err := outer.section(sectionImage)
	if err != nil {
		return Bitstream{}, err
	}
	inner, err := readELF(image, sectionImage)
	if err != nil {
		return Bitstream{}, err
	}
	packed, err := inner.section(sectionGBS)
	if err != nil {
		return Bitstream{}, err
	}
	b, err := inspectPacked(packed, maxUnpacked)
	if err != nil {
		return Bitstream{}, err
	}
	if b.ID, err = outer.hash(); err != nil {
		return Bitstream{}, err
	}
	b.OpenCL, err = outer.openCL()
	return b, err
}

// errMoreMembers says that a gzip holds more than one compressed file.
var errMoreMembers = errors.New("want one gzip member, but bytes follow the first")

// oneMember unpacks the first member of a gzip. A reader that goes on behind it would take the next member for a part of the image, and
// another tool would not: RFC 1952, section 2.2, allows any number of members.
type oneMember struct {
	packed *bufio.Reader
	member *gzip.Reader
}

// openGzip reads the header of a gzip. The reader fails at the end of the first member if bytes follow it.
func openGzip(r io.Reader) (*oneMember, error) {
	// A decompressor reads no further than its member only from a reader that gives it single bytes.
	packed := bufio.NewReader(r)
	member, err := gzip.NewReader(packed)
	if err != nil {
		return nil, err
	}
	member.Multistream(false)
	return &oneMember{packed, member}, nil
}

func (o *oneMember) Read(p []byte) (int, error) {
	n, err := o.member.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if _, more := o.packed.Peek(1); more == nil {
		return n, errMoreMembers
	} else if !errors.Is(more, io.EOF) {
		return n, more
	}
	return n, io.EOF
}

// inspectPacked reads a GBS in a gzip. It keeps only the head of the unpacked bytes.
func inspectPacked(packed window, maxUnpacked int64) (Bitstream, error) {
	unpacked, err := openGzip(io.NewSectionReader(packed.r, packed.base, packed.size))
	if err != nil {
		return Bitstream{}, packed.errorf(0, "%s: want a gzip: %w", sectionGBS, err)
	}
	var head bytes.Buffer
	size, err := io.Copy(&head, io.LimitReader(unpacked, min(maxHead, maxUnpacked+1)))
	if err == nil {
		var rest int64
		rest, err = io.Copy(io.Discard, io.LimitReader(unpacked, maxUnpacked+1-size))
		size += rest
	}
	if err != nil {
		return Bitstream{}, packed.errorf(0, "%s: unpacked 0x%x bytes and then: %w", sectionGBS, size, err)
	}
	if size > maxUnpacked {
		return Bitstream{}, packed.errorf(0, "%s unpacks to more than %d bytes", sectionGBS, maxUnpacked)
	}
	inside := window{r: bytes.NewReader(head.Bytes()), format: packed.format, in: "the unpacked " + sectionGBS, size: size}
	b, err := inspectGBS(inside)
	if err != nil {
		return Bitstream{}, err
	}
	if b.Payload != nil {
		b.Payload.Gzip = &Range{Offset: packed.base, Length: packed.size}
	}
	// Its offset counts in the unpacked bytes.
	if b.Signature != nil {
		b.Signature.Unpacked = true
	}
	return b, nil
}

// hash returns the id that tells an image from all others. Their AFU ids are equal.
func (f elfFile) hash() (string, error) {
	w, err := f.section(sectionHash)
	if err != nil {
		return "", err
	}
	text, err := w.text(sectionHash)
	if err != nil {
		return "", err
	}
	hash := strings.ToLower(text)
	if !randomHash.MatchString(hash) {
		return "", w.errorf(0, "%s %q, want 40 hexadecimal digits", sectionHash, text)
	}
	return hash, nil
}

// openCL reads the optional sections. It returns nil if none is there.
func (f elfFile) openCL() (*OpenCL, error) {
	var o OpenCL
	for _, part := range []struct {
		name  string
		value *string
	}{
		{".acl.board", &o.Board},
		{".acl.target", &o.Target},
		{".acl.version", &o.Version},
	} {
		if !f.has(part.name) {
			continue
		}
		w, err := f.section(part.name)
		if err != nil {
			return nil, err
		}
		if *part.value, err = w.text(part.name); err != nil {
			return nil, err
		}
	}
	if o == (OpenCL{}) {
		return nil, nil //nolint:nilnil // The sections of its compilation are optional.
	}
	return &o, nil
}

// text reads a section with a line of text.
func (w window) text(name string) (string, error) {
	data, err := w.readAll(maxText, name)
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(strings.TrimRight(string(data), "\x00"))
	if err := CheckText(text); err != nil {
		return "", w.errorf(0, "%s: %w", name, err)
	}
	return text, nil
}
