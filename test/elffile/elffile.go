// SPDX-License-Identifier: Apache-2.0

// Package elffile writes small ELF files for tests: shared objects that ldconfig takes for libraries, and a program that leaves a mark
// where it was executed. It needs no compiler.
package elffile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"runtime"
)

// File says what to write. The zero value is a shared object of this machine without a name.
type File struct {
	Soname      string
	Interpreter string
	// Machine is this one's where it is zero.
	Machine elf.Machine
	// Program makes an executable with this code at its entry point, and no dynamic section.
	Program []byte
}

const (
	headerSize  = 64
	programSize = 56
	dynamicSize = 16
	// base is where the file is in memory.
	base = 0x400000
)

// Bytes is the file's content.
func (f File) Bytes() []byte {
	header := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(f.machine()), Version: 1, Phoff: headerSize, Ehsize: headerSize, Phentsize: programSize,
	}
	copy(header.Ident[:], elf.ELFMAG+"\x02\x01\x01")
	programs := []elf.Prog64{{Type: uint32(elf.PT_LOAD), Flags: 5, Vaddr: base, Align: 0x1000}}
	if f.Interpreter != "" {
		programs = append(programs, elf.Prog64{Type: uint32(elf.PT_INTERP)})
	}
	if f.Program == nil {
		programs = append(programs, elf.Prog64{Type: uint32(elf.PT_DYNAMIC)})
	}
	body := f.fill(programs, uint64(headerSize+len(programs)*programSize))
	header.Phnum = uint16(len(programs))
	if f.Program != nil {
		header.Type, header.Entry = uint16(elf.ET_EXEC), base+uint64(headerSize+len(programs)*programSize)
	}
	programs[0].Filesz = uint64(headerSize + len(programs)*programSize + len(body))
	programs[0].Memsz = programs[0].Filesz
	var out bytes.Buffer
	for _, part := range []any{header, programs, body} {
		// A bytes.Buffer and values of fixed size do not fail.
		_ = binary.Write(&out, binary.LittleEndian, part)
	}
	return out.Bytes()
}

func (f File) machine() elf.Machine {
	switch {
	case f.Machine != 0:
		return f.Machine
	case runtime.GOARCH == "arm64":
		return elf.EM_AARCH64
	default:
		return elf.EM_X86_64
	}
}

// fill makes what comes after the program headers and tells them where it is.
func (f File) fill(programs []elf.Prog64, start uint64) []byte {
	body := bytes.Clone(f.Program)
	place := func(p *elf.Prog64, content []byte) {
		for len(body)%8 != 0 {
			body = append(body, 0)
		}
		p.Off, p.Filesz = start+uint64(len(body)), uint64(len(content))
		p.Vaddr, p.Memsz = base+p.Off, p.Filesz
		body = append(body, content...)
	}
	for i := range programs {
		switch elf.ProgType(programs[i].Type) {
		case elf.PT_INTERP:
			place(&programs[i], []byte(f.Interpreter+"\x00"))
		case elf.PT_DYNAMIC:
			var table elf.Prog64
			strings := "\x00" + f.Soname + "\x00"
			place(&table, []byte(strings))
			entries := []elf.Dyn64{
				{Tag: int64(elf.DT_STRTAB), Val: table.Vaddr},
				{Tag: int64(elf.DT_STRSZ), Val: uint64(len(strings))},
			}
			if f.Soname != "" {
				entries = append(entries, elf.Dyn64{Tag: int64(elf.DT_SONAME), Val: 1})
			}
			var dynamic bytes.Buffer
			_ = binary.Write(&dynamic, binary.LittleEndian, append(entries, elf.Dyn64{}))
			place(&programs[i], dynamic.Bytes())
		default:
		}
	}
	return body
}

// Mark is the file that the Canary makes.
const Mark = "/canary-was-run"

// Canary is a program that makes the file Mark in its root and exits. It is nil for machines that it was not written for.
func Canary() []byte {
	if runtime.GOARCH != "amd64" {
		return nil
	}
	code := []byte{
		0xb8, 2, 0, 0, 0, // mov eax, open
		0x48, 0x8d, 0x3d, 25, 0, 0, 0, // lea rdi, [the path below]
		0xbe, 0x41, 0, 0, 0, // mov esi, O_CREAT|O_WRONLY
		0xba, 0xa4, 1, 0, 0, // mov edx, 0644
		0x0f, 0x05, // syscall
		0x31, 0xff, // xor edi, edi
		0xb8, 60, 0, 0, 0, // mov eax, exit
		0x0f, 0x05, // syscall
		0x90, 0x90, 0x90, 0x90, // nop
	}
	return File{Program: append(code, Mark+"\x00"...)}.Bytes()
}
