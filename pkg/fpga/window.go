// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Error says where a file breaks its format.
type Error struct {
	Format Format // empty if no format was recognised
	// In names the data that the offset counts in, if that is not the file itself, such as "the unpacked .acl.gbs.gz".
	In     string
	Offset int64
	Err    error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("0x%x", e.Offset)
	if e.In != "" {
		text += " of " + e.In
	}
	text += ": " + e.Err.Error()
	if e.Format != "" {
		text = string(e.Format) + ": " + text
	}
	return text
}

// Unwrap returns the reason, which may be an error of the reader.
func (e *Error) Unwrap() error { return e.Err }

// window is a part of a file, or of data that was unpacked from one. It refuses reads beyond its bounds before it allocates anything for
// them.
type window struct {
	r      io.ReaderAt
	format Format
	in     string
	base   int64 // where the window begins, for the reader and for errors
	size   int64
}

// errorf makes an error at an offset in the window.
func (w window) errorf(offset int64, format string, args ...any) error {
	return &Error{Format: w.format, In: w.in, Offset: w.base + offset, Err: fmt.Errorf(format, args...)}
}

// sub narrows the window to an offset and a length that the file states, and refuses them if they lie outside.
func (w window) sub(offset, length uint64, what string) (window, error) {
	if size := uint64(max(0, w.size)); offset > size || length > size-offset {
		return window{}, w.errorf(int64(min(offset, size)), "%s: %w", what, beyond(offset, length, size))
	}
	w.base, w.size = w.base+int64(offset), int64(length)
	return w, nil
}

// beyond makes the error for a part that reaches beyond the data that it is in.
func beyond(offset, length, size uint64) error {
	return fmt.Errorf("want 0x%x bytes at 0x%x, but only 0x%x bytes are there", length, offset, size)
}

// read returns bytes whose number the caller has limited.
func (w window) read(offset, length int64, what string) ([]byte, error) {
	part, err := w.sub(uint64(offset), uint64(length), what)
	if err != nil {
		return nil, err
	}
	data := make([]byte, length)
	if _, err := io.ReadFull(io.NewSectionReader(part.r, part.base, length), data); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, part.errorf(0, "%s: %w", what, err)
	}
	return data, nil
}

// readAll returns all bytes of a window, which may have at most limit of them.
func (w window) readAll(limit int64, what string) ([]byte, error) {
	if w.size > limit {
		return nil, w.errorf(0, "%s has 0x%x bytes, want at most 0x%x", what, w.size, limit)
	}
	return w.read(0, w.size, what)
}

// maxText limits the length of names and versions.
const maxText = 256

// CheckText refuses a name, version or platform of a bitstream that is too long or cannot be shown on a terminal.
func CheckText(s string) error {
	if len(s) > maxText || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("%.40q: want at most %d bytes of printable text", s, maxText)
	}
	return nil
}

// canonicalID reads an id of 16 bytes, written with the dashes of a UUID or without them.
func canonicalID(s string) (string, error) {
	digits := s
	if len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' {
		digits = strings.ReplaceAll(s, "-", "")
	}
	if raw, err := hex.DecodeString(digits); err != nil || len(raw) != 16 {
		return "", fmt.Errorf("%.40q: want 32 hexadecimal digits, with the dashes of a UUID or without", s)
	}
	return strings.ToLower(digits), nil
}

// afuID reads the id of an accelerator. It refuses all f, which a port shows after its firmware has crashed.
func afuID(s string) (string, error) {
	id, err := canonicalID(s)
	if err == nil && allOf(id, 'f') {
		return "", errors.New("want an id, got all f, which ports show after a crash")
	}
	return id, err
}

// interfaceID reads the id of the regions that an image fits. It refuses all f and all 0, which stand for no interface.
func interfaceID(s string) (string, error) {
	id, err := canonicalID(s)
	if err == nil && (allOf(id, 'f') || allOf(id, '0')) {
		return "", fmt.Errorf("want an id, got all %c, which stands for no interface", id[0])
	}
	return id, err
}

func allOf(s string, digit byte) bool { return strings.Trim(s, string(digit)) == "" }
