// SPDX-License-Identifier: Apache-2.0

package hostlib

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
)

// Bounds of what is read of an ELF file, far above what linkers write.
const (
	maxProgramHeaders = 256
	maxDynamic        = 1 << 16
	maxText           = 4096
)

// ErrNotELF marks a file that is no 64-bit little-endian ELF file, or a broken one.
var ErrNotELF = errors.New("is not a 64-bit little-endian ELF file")

// Object is what an ELF file says of itself.
type Object struct {
	Type    elf.Type
	Machine elf.Machine
	// Interpreter is the loader that the file asks for (PT_INTERP); empty in libraries and static programs.
	Interpreter string
	// Soname is the name that a program is linked against (DT_SONAME).
	Soname string
	// Dynamic says that there is a dynamic section.
	Dynamic bool
}

// Machine is the ELF machine that this program was built for.
func Machine() elf.Machine {
	switch runtime.GOARCH {
	case "amd64":
		return elf.EM_X86_64
	case "arm64":
		return elf.EM_AARCH64
	default:
		return elf.EM_NONE
	}
}

// ReadObject reads an ELF file by its program headers, as the loader does: section headers may be stripped. It reads a bounded
// amount, whatever the file says.
func ReadObject(r io.ReaderAt) (Object, error) {
	var header elf.Header64
	if err := readStruct(r, 0, &header); err != nil {
		return Object{}, fmt.Errorf("%w: it ends within the header", ErrNotELF)
	}
	ident := header.Ident
	if !bytes.HasPrefix(ident[:], []byte(elf.ELFMAG)) || elf.Class(ident[elf.EI_CLASS]) != elf.ELFCLASS64 ||
		elf.Data(ident[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return Object{}, ErrNotELF
	}
	if header.Phentsize != uint16(binary.Size(elf.Prog64{})) && header.Phnum > 0 || header.Phnum > maxProgramHeaders {
		return Object{}, fmt.Errorf("%w: %d program headers of %d bytes", ErrNotELF, header.Phnum, header.Phentsize)
	}
	programs := make([]elf.Prog64, header.Phnum)
	if err := readStruct(r, header.Phoff, programs); err != nil {
		return Object{}, fmt.Errorf("%w: read program headers: %w", ErrNotELF, err)
	}
	o := Object{Type: elf.Type(header.Type), Machine: elf.Machine(header.Machine)}
	for _, p := range programs {
		var err error
		switch elf.ProgType(p.Type) {
		case elf.PT_INTERP:
			o.Interpreter, err = readText(r, p.Off, p.Filesz)
		case elf.PT_DYNAMIC:
			o.Dynamic = true
			o.Soname, err = readSoname(r, p, programs)
		default:
		}
		if err != nil {
			return Object{}, fmt.Errorf("%w: %w", ErrNotELF, err)
		}
	}
	return o, nil
}

// readSoname finds the string that the dynamic section names; none is "".
func readSoname(r io.ReaderAt, dynamic elf.Prog64, programs []elf.Prog64) (string, error) {
	if dynamic.Filesz > maxDynamic {
		return "", fmt.Errorf("a dynamic section of %d bytes, want at most %d", dynamic.Filesz, maxDynamic)
	}
	entries := make([]elf.Dyn64, dynamic.Filesz/uint64(binary.Size(elf.Dyn64{})))
	if err := readStruct(r, dynamic.Off, entries); err != nil {
		return "", fmt.Errorf("read the dynamic section: %w", err)
	}
	var table stringTable
	var name uint64
	named := false
	if end := slices.IndexFunc(entries, func(e elf.Dyn64) bool { return elf.DynTag(e.Tag) == elf.DT_NULL }); end >= 0 {
		entries = entries[:end]
	}
	for _, e := range entries {
		switch elf.DynTag(e.Tag) {
		case elf.DT_STRTAB:
			table.address = e.Val
		case elf.DT_STRSZ:
			table.size = e.Val
		case elf.DT_SONAME:
			name, named = e.Val, true
		default:
		}
	}
	if !named {
		return "", nil
	}
	if name >= table.size {
		return "", fmt.Errorf("the soname is at %d of a string table of %d bytes", name, table.size)
	}
	return table.read(r, programs, name)
}

// stringTable is the table of a dynamic section with the names that it uses (DT_STRTAB, DT_STRSZ).
type stringTable struct {
	// address is where the loader has the table in memory.
	address, size uint64
}

// read reads the string at an offset that is within the table.
func (t stringTable) read(r io.ReaderAt, programs []elf.Prog64, offset uint64) (string, error) {
	for _, p := range programs {
		if elf.ProgType(p.Type) != elf.PT_LOAD || t.address < p.Vaddr {
			continue
		}
		if before := t.address - p.Vaddr; before < p.Filesz && offset < p.Filesz-before {
			return readText(r, p.Off+before+offset, t.size-offset)
		}
	}
	return "", fmt.Errorf("the string table at address %#x is in no segment", t.address)
}

// readText reads a string that ends with a NUL within size bytes.
func readText(r io.ReaderAt, offset, size uint64) (string, error) {
	raw := make([]byte, min(size, maxText))
	n, err := r.ReadAt(raw, int64(offset))
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read a name: %w", err)
	}
	text, _, ended := bytes.Cut(raw[:n], []byte{0})
	if !ended {
		return "", fmt.Errorf("a name at %d has no end", offset)
	}
	return string(text), nil
}

func readStruct(r io.ReaderAt, offset uint64, data any) error {
	return binary.Read(io.NewSectionReader(r, int64(offset), int64(binary.Size(data))), binary.LittleEndian, data)
}
