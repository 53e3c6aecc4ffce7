// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fettle-dev/fettle/pkg/message"
)

// maxFile bounds what is read of one file. An attribute is at most a page (Documentation/filesystems/sysfs.rst), and the files
// that are read from proc are smaller still on the largest machines.
const maxFile = 64 << 10

// ErrMalformed marks what could be read but is not what it should be: garbage bytes, a word where a number belongs.
var ErrMalformed = errors.New("malformed")

// ReadString reads a text file without the white space around it. Not a plain file, larger than 64 KiB, with NUL or not UTF-8 is
// ErrMalformed; an absent one is fs.ErrNotExist.
func (t *Tree) ReadString(name string) (string, error) {
	// Looked at before it is opened: to open a device node may wake hardware, and a pipe would block.
	info, err := t.root.stat(name)
	if err != nil {
		return "", failed("read", name, err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("read %s: %w: %s, want a plain file", HostPath(name), ErrMalformed, info.Mode().Type())
	}
	f, err := t.root.file(name)
	if err != nil {
		return "", failed("read", name, err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", failed("read", name, err)
	}
	if err := checkText(raw); err != nil {
		return "", fmt.Errorf("read %s: %w", HostPath(name), err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// ReadInt reads a decimal number: "-1", "16".
func (t *Tree) ReadInt(name string) (int64, error) {
	text, err := t.ReadString(name)
	if err != nil {
		return 0, err
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, malformed(name, text, "a decimal number")
	}
	return value, nil
}

// ReadHex reads a hexadecimal number with or without 0x: "0x10de".
func (t *Tree) ReadHex(name string) (uint64, error) {
	text, err := t.ReadString(name)
	if err != nil {
		return 0, err
	}
	value, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 64)
	if err != nil {
		return 0, malformed(name, text, "a hexadecimal number")
	}
	return value, nil
}

// ReadFixedHex reads a hexadecimal number that is always written with so many digits, as PCI identifiers are: "0x10de". With fewer it is
// what is left of another number.
func (t *Tree) ReadFixedHex(name string, digits int) (uint64, error) {
	text, err := t.ReadString(name)
	if err != nil {
		return 0, err
	}
	bare := strings.TrimPrefix(text, "0x")
	value, err := strconv.ParseUint(bare, 16, 64)
	if err != nil || len(bare) != digits {
		return 0, malformed(name, text, strconv.Itoa(digits)+" hexadecimal digits")
	}
	return value, nil
}

// ReadDev reads a dev attribute, the numbers of a device node: "226:128".
func (t *Tree) ReadDev(name string) (major, minor int64, err error) {
	text, err := t.ReadString(name)
	if err != nil {
		return 0, 0, err
	}
	major, minor, ok := parseDev(text)
	if !ok {
		return 0, 0, malformed(name, text, "MAJOR:MINOR")
	}
	return major, minor, nil
}

// parseDev reads MAJOR:MINOR within the kernel's 12 and 20 bits (include/linux/kdev_t.h). Major 0 names no device.
func parseDev(text string) (major, minor int64, ok bool) {
	left, right, found := strings.Cut(text, ":")
	ma, errMajor := strconv.ParseUint(left, 10, 12)
	mi, errMinor := strconv.ParseUint(right, 10, 20)
	if !found || errMajor != nil || errMinor != nil || ma == 0 {
		return 0, 0, false
	}
	return int64(ma), int64(mi), true
}

func checkText(raw []byte) error {
	switch {
	case len(raw) > maxFile:
		return fmt.Errorf("%w: larger than %d bytes", ErrMalformed, maxFile)
	case bytes.IndexByte(raw, 0) >= 0:
		return fmt.Errorf("%w: contains NUL", ErrMalformed)
	case !utf8.Valid(raw):
		return fmt.Errorf("%w: not UTF-8", ErrMalformed)
	}
	return nil
}

// malformed quotes the head of what was read, so that the message stays short whatever the file holds.
func malformed(name, text, want string) error {
	const head = 40
	return fmt.Errorf("read %s: %w: %q, want %s", HostPath(name), ErrMalformed, message.Clip(text, head), want)
}
