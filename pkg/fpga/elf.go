// SPDX-License-Identifier: Apache-2.0

package fpga

import (
	"bytes"
	"encoding/binary"
)

// Bounds of the section table and of the sections' names; compilers write a few dozen sections.
const (
	maxSections     = 1024
	maxSectionNames = 64 << 10
)

const sectionNoBits = 8 // the type of a section that has no bytes in the file

// elfLayout gives the offsets of the needed fields for a class of ELF, 32 or 64 bits.
type elfLayout struct {
	header, table, entrySize                         int64 // the header's size, its field for the table, the size of an entry
	offset, size                                     int64 // fields of an entry
	headerEntrySize, headerEntries, headerNamesIndex int64
	word                                             func([]byte) uint64
}

// layoutOf returns the layout of the class that a file states.
func layoutOf(class byte) (elfLayout, bool) {
	switch class {
	case 1:
		return elfLayout{
			header: 52, table: 32, entrySize: 40, offset: 16, size: 20, headerEntrySize: 46, headerEntries: 48, headerNamesIndex: 50,
			word: func(b []byte) uint64 { return uint64(binary.LittleEndian.Uint32(b)) },
		}, true
	case 2:
		return elfLayout{
			header: 64, table: 40, entrySize: 64, offset: 24, size: 32, headerEntrySize: 58, headerEntries: 60, headerNamesIndex: 62,
			word: binary.LittleEndian.Uint64,
		}, true
	}
	return elfLayout{}, false
}

// elfFile holds the sections of an ELF file by name. A name that several sections have cannot be used.
type elfFile struct {
	window
	name     string // for errors
	table    int64  // where the table is
	sections map[string][]elfSection
}

// elfSection is an entry of the section table, unchecked.
type elfSection struct {
	entry        int64 // where the entry is
	kind         uint32
	offset, size uint64
}

// readELF reads the section table. It does not read the sections, and checks the place of a section only when it is asked for.
func readELF(w window, name string) (elfFile, error) {
	ident, err := w.read(0, 16, "the identification of the ELF in "+name)
	if err != nil {
		return elfFile{}, err
	}
	layout, ok := layoutOf(ident[4])
	if !bytes.HasPrefix(ident, []byte(elfMagic)) || !ok || ident[5] != 1 {
		return elfFile{}, w.errorf(0, "%s begins with %x, want a little-endian ELF", name, ident[:6])
	}
	header, err := w.read(0, layout.header, "the header of the ELF in "+name)
	if err != nil {
		return elfFile{}, err
	}
	half := func(at int64) int64 { return int64(binary.LittleEndian.Uint16(header[at:])) }
	entries, names := half(layout.headerEntries), half(layout.headerNamesIndex)
	switch {
	case half(layout.headerEntrySize) != layout.entrySize:
		return elfFile{}, w.errorf(layout.headerEntrySize, "section entries of %d bytes, want %d",
			half(layout.headerEntrySize), layout.entrySize)
	case entries == 0 || entries > maxSections:
		return elfFile{}, w.errorf(layout.headerEntries, "%d sections, want 1 to %d", entries, maxSections)
	case names >= entries:
		return elfFile{}, w.errorf(layout.headerNamesIndex, "names in section %d of %d", names, entries)
	}
	offset, length := layout.word(header[layout.table:]), entries*layout.entrySize
	table, err := w.sub(offset, uint64(length), "the section table")
	if err != nil {
		return elfFile{}, w.errorf(layout.table, "the section table of %s: %w", name, beyond(offset, uint64(length), uint64(w.size)))
	}
	data, err := table.read(0, length, "the section table")
	if err != nil {
		return elfFile{}, err
	}
	f := elfFile{window: w, name: name, table: int64(offset), sections: map[string][]elfSection{}}
	return f, f.addSections(layout, data, names)
}

// addSections adds the entries of a table by their names. namesIndex is the index of the section that holds the names.
func (f elfFile) addSections(layout elfLayout, table []byte, namesIndex int64) error {
	entry := func(i int64) elfSection {
		b := table[i*layout.entrySize:]
		return elfSection{
			entry: f.table + i*layout.entrySize, kind: binary.LittleEndian.Uint32(b[4:]),
			offset: layout.word(b[layout.offset:]), size: layout.word(b[layout.size:]),
		}
	}
	holder, err := f.bytesOf(entry(namesIndex), "the section names")
	if err != nil {
		return err
	}
	names, err := holder.readAll(maxSectionNames, "the section names")
	if err != nil {
		return err
	}
	for i := range int64(len(table)) / layout.entrySize {
		start := int64(binary.LittleEndian.Uint32(table[i*layout.entrySize:]))
		if start == 0 {
			continue // the empty name
		}
		if start >= int64(len(names)) {
			return f.errorf(f.table+i*layout.entrySize, "section %d has its name at 0x%x of 0x%x", i, start, len(names))
		}
		name, _, ended := bytes.Cut(names[start:], []byte{0})
		if !ended {
			return holder.errorf(start, "the name of section %d does not end", i)
		}
		// The names may overlap, so that their sum has no limit. The names that matter are short.
		if len(name) <= maxText {
			f.sections[string(name)] = append(f.sections[string(name)], entry(i))
		}
	}
	return nil
}

// bytesOf returns a section's part of the file.
func (f elfFile) bytesOf(s elfSection, what string) (window, error) {
	if s.kind == sectionNoBits {
		return window{}, f.errorf(s.entry, "%s: the section has no bytes in the file", what)
	}
	w, err := f.sub(s.offset, s.size, what)
	if err != nil {
		return window{}, f.errorf(s.entry, "%s: %w", what, beyond(s.offset, s.size, uint64(f.size)))
	}
	return w, nil
}

func (f elfFile) has(name string) bool { return len(f.sections[name]) > 0 }

// section returns the one section of a name. It refuses names that no section or several sections have.
func (f elfFile) section(name string) (window, error) {
	found := f.sections[name]
	if len(found) != 1 {
		return window{}, f.errorf(f.table, "%s has %d sections %s, want one", f.name, len(found), name)
	}
	return f.bytesOf(found[0], name)
}
