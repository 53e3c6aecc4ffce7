// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// libraryDir is a directory of the build host and where its files go in the image, which must be on the search path that is
// compiled into the loader.
type libraryDir struct {
	host, image string
}

// libraryDirs lists where a build host keeps the C library of an architecture (a GOARCH). The first directory that has a file
// wins: Debian's multiarch directories, other distributions' lib64, and Debian's cross packages, whose loader still searches the
// native directory.
func libraryDirs(arch string) ([]libraryDir, error) {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[arch]
	if triplet == "" {
		return nil, fmt.Errorf("architecture %q: want amd64 or arm64", arch)
	}
	return []libraryDir{
		{"/lib/" + triplet, "/lib/" + triplet},
		{"/lib64", "/lib64"},
		{"/usr/" + triplet + "/lib", "/lib/" + triplet},
	}, nil
}

// machine is the ELF machine of a GOARCH.
func machine(arch string) elf.Machine {
	if arch == "arm64" {
		return elf.EM_AARCH64
	}
	return elf.EM_X86_64
}

// binary is what the loader would read of an ELF file.
type binary struct {
	machine elf.Machine
	// interpreter is empty for a static file and for a shared library that names none.
	interpreter string
	needed      []string
}

// readBinary opens an ELF file and reads its machine, PT_INTERP and DT_NEEDED.
func readBinary(path string) (binary, error) {
	file, err := elf.Open(path)
	if err != nil {
		return binary{}, fmt.Errorf("read %s: %w", path, err)
	}
	defer file.Close()
	needed, err := file.ImportedLibraries()
	if err != nil {
		return binary{}, fmt.Errorf("read the needed libraries of %s: %w", path, err)
	}
	result := binary{machine: file.Machine, needed: needed}
	for _, program := range file.Progs {
		if program.Type != elf.PT_INTERP {
			continue
		}
		name, err := io.ReadAll(program.Open())
		if err != nil {
			return binary{}, fmt.Errorf("read the interpreter of %s: %w", path, err)
		}
		result.interpreter = strings.TrimRight(string(name), "\x00")
	}
	return result, nil
}

// checkStatic refuses a binary that needs a loader or is of another architecture.
func checkStatic(path, arch string) error {
	b, err := readBinary(path)
	if err != nil {
		return err
	}
	if b.machine != machine(arch) {
		return fmt.Errorf("%s is for %s, want %s: build it with GOARCH=%s", path, b.machine, machine(arch), arch)
	}
	if b.interpreter != "" || len(b.needed) > 0 {
		return fmt.Errorf("%s is dynamically linked (interpreter %q, needs %q): build it with CGO_ENABLED=0", path, b.interpreter, b.needed)
	}
	return nil
}

// closure finds the loader of a dynamic binary and every library that it, or one of extra, needs. The result is sorted by path in
// the image.
func closure(path, arch string, extra []string) ([]file, error) {
	dirs, err := libraryDirs(arch)
	if err != nil {
		return nil, err
	}
	b, err := readBinary(path)
	if err != nil {
		return nil, err
	}
	if b.machine != machine(arch) {
		return nil, fmt.Errorf("%s is for %s, want %s", path, b.machine, machine(arch))
	}
	if b.interpreter == "" {
		return nil, nil
	}
	loader, err := find(filepath.Base(b.interpreter), arch, append([]libraryDir{{filepath.Dir(b.interpreter), ""}}, dirs...))
	if err != nil {
		return nil, fmt.Errorf("loader of %s: %w", path, err)
	}
	loader.path = b.interpreter
	libraries, err := resolve(append(slices.Clone(b.needed), extra...), filepath.Base(b.interpreter), arch, dirs)
	if err != nil {
		return nil, fmt.Errorf("libraries of %s: %w", path, err)
	}
	return sortFiles(append(libraries, loader)), nil
}

// resolve finds each named library and what it needs in turn. The loader, which the C library names too, is left out: it is
// already where the binary wants it.
func resolve(names []string, loader, arch string, dirs []libraryDir) ([]file, error) {
	found := map[string]bool{loader: true}
	var files []file
	for queue := names; len(queue) > 0; {
		name := queue[0]
		queue = queue[1:]
		if found[name] {
			continue
		}
		found[name] = true
		library, err := find(name, arch, dirs)
		if err != nil {
			return nil, err
		}
		files = append(files, library)
		b, err := readBinary(library.source)
		if err != nil {
			return nil, err
		}
		queue = append(queue, b.needed...)
	}
	return files, nil
}

// find looks for a library by name and takes the first file of the right architecture.
func find(name, arch string, dirs []libraryDir) (file, error) {
	var tried []string
	for _, dir := range dirs {
		candidate := filepath.Join(dir.host, name)
		tried = append(tried, dir.host)
		if _, err := os.Stat(candidate); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		b, err := readBinary(candidate)
		if err != nil {
			return file{}, err
		}
		if b.machine == machine(arch) {
			return file{path: filepath.Join(dir.image, name), source: candidate, mode: 0o755}, nil
		}
	}
	return file{}, fmt.Errorf("no %s for %s in %s: install the C library of that architecture", name, arch, strings.Join(tried, ", "))
}
