// SPDX-License-Identifier: Apache-2.0

package hostlib

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strings"
)

// The formats of glibc's ld.so.cache (sysdeps/generic/dl-cache.h). A file holds the old one, the new one, or both in that order.
const (
	oldMagic     = "ld.so-1.7.0"
	oldHeader    = 16 // the magic padded to 12 bytes, the number of entries
	oldEntry     = 12 // flags, key, value
	newMagic     = "glibc-ld.so.cache1.1"
	newHeader    = 48
	newEntry     = 24 // flags, key, value, unused, hwcap (8)
	newAlignment = 8
	littleEndian = 2
)

// maxCache bounds a cache, and maxSearched one that is searched, which may be below a root that tenants write to. That of a machine with a
// full desktop has a quarter of a MiB.
const (
	maxCache    = 64 << 20
	maxSearched = 4 << 20
)

// Flags of an entry: an ELF library for glibc, and of which machine. The mask leaves out what is not about the machine.
const (
	flagType     = 0x00ff
	flagELFLibc6 = 0x0003
	flagMachine  = 0xff00
	flagX8664    = 0x0300
	flagAArch64  = 0x0a00
)

// ErrCache marks an ld.so.cache that cannot be understood.
var ErrCache = errors.New("is not an ld.so.cache of this machine")

// Entry is a library of an ld.so.cache: under which name a program asks for it, and the file.
type Entry struct {
	Name, Path string
	Flags      int32
	// Hwcap, where it is not zero, says which processors the file is for; the loader takes the best.
	Hwcap uint64
}

// For says whether the entry is a 64-bit library of a machine.
func (e Entry) For(machine elf.Machine) bool {
	want := map[elf.Machine]int32{elf.EM_X86_64: flagX8664, elf.EM_AARCH64: flagAArch64}[machine]
	return want != 0 && e.Flags&flagMachine == want && e.Flags&flagType == flagELFLibc6
}

// ParseCache reads an ld.so.cache. Where a file has both formats it is the new one that counts, as for the loader.
func ParseCache(data []byte) ([]Entry, error) {
	if len(data) > maxCache {
		return nil, fmt.Errorf("%w: it has %d bytes, want at most %d", ErrCache, len(data), maxCache)
	}
	if bytes.HasPrefix(data, []byte(newMagic)) {
		return parseNew(data)
	}
	if !bytes.HasPrefix(data, []byte(oldMagic)) || len(data) < oldHeader {
		return nil, fmt.Errorf("%w: it begins with %q", ErrCache, data[:min(len(data), len(newMagic))])
	}
	count := uint64(binary.LittleEndian.Uint32(data[oldHeader-4:]))
	end := oldHeader + count*oldEntry
	if end > uint64(len(data)) {
		return nil, fmt.Errorf("%w: %d entries in %d bytes", ErrCache, count, len(data))
	}
	if start := (end + newAlignment - 1) / newAlignment * newAlignment; start < uint64(len(data)) &&
		bytes.HasPrefix(data[start:], []byte(newMagic)) {
		return parseNew(data[start:])
	}
	// Strings of the old format are counted from the end of its entries.
	return parseEntries(data[oldHeader:end], oldEntry, data[end:])
}

func parseNew(data []byte) ([]Entry, error) {
	if len(data) < newHeader {
		return nil, fmt.Errorf("%w: it ends within the header", ErrCache)
	}
	count := uint64(binary.LittleEndian.Uint32(data[len(newMagic):]))
	if order := data[len(newMagic)+8]; order != 0 && order != littleEndian {
		return nil, fmt.Errorf("%w: byte order %d, want %d", ErrCache, order, littleEndian)
	}
	end := newHeader + count*newEntry
	if end > uint64(len(data)) {
		return nil, fmt.Errorf("%w: %d entries in %d bytes", ErrCache, count, len(data))
	}
	return parseEntries(data[newHeader:end], newEntry, data)
}

// parseEntries reads entries of a size whose strings are offsets in text.
func parseEntries(raw []byte, size int, text []byte) ([]Entry, error) {
	entries, texts := make([]Entry, 0, len(raw)/size), string(text) // of which names are parts: all may be the same long one
	for i := 0; len(raw) >= size; i, raw = i+1, raw[size:] {
		e := Entry{Flags: int32(binary.LittleEndian.Uint32(raw))}
		var errName, errPath error
		e.Name, errName = textAt(texts, binary.LittleEndian.Uint32(raw[4:]))
		e.Path, errPath = textAt(texts, binary.LittleEndian.Uint32(raw[8:]))
		if err := errors.Join(errName, errPath); err != nil {
			return nil, fmt.Errorf("%w: entry %d: %w", ErrCache, i, err)
		}
		if !path.IsAbs(e.Path) {
			return nil, fmt.Errorf("%w: entry %d: path %q, want an absolute one", ErrCache, i, e.Path)
		}
		if size == newEntry {
			e.Hwcap = binary.LittleEndian.Uint64(raw[16:])
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func textAt(text string, offset uint32) (string, error) {
	if uint64(offset) >= uint64(len(text)) {
		return "", fmt.Errorf("a name at %d of %d bytes", offset, len(text))
	}
	rest := text[offset:]
	name, _, ended := strings.Cut(rest[:min(len(rest), maxText)], "\x00")
	if !ended {
		return "", fmt.Errorf("a name at %d has no end", offset)
	}
	return name, nil
}
