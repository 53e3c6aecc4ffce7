// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/hostlib"
)

// maxProgram bounds the host's ldconfig, which has about one MiB.
const maxProgram = 64 << 20

// Program is the host's ldconfig in memory that nobody can change.
type Program struct {
	file *os.File
}

// Close releases the memory.
func (p *Program) Close() error { return p.file.Close() }

// OpenProgram copies the first of the files that is a static program of this machine. It is called before a container's root is
// looked at.
func OpenProgram(names []string) (*Program, error) {
	var errs []error
	for _, name := range names {
		p, err := openProgram(name)
		if err == nil {
			return p, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("find the host's ldconfig (looked for %s; name it with --ldconfig): %w",
		strings.Join(names, ", "), errors.Join(errs...))
}

func openProgram(name string) (_ *Program, err error) {
	// A runtime may start hooks in the container's root.
	if !filepath.IsAbs(name) {
		return nil, fmt.Errorf("%q: want an absolute path of the host", name)
	}
	source, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	fd, err := memory("ldconfig")
	if err != nil {
		return nil, err
	}
	p := &Program{file: os.NewFile(uintptr(fd), name)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	n, err := io.Copy(p.file, io.LimitReader(source, maxProgram+1))
	if err != nil {
		return nil, fmt.Errorf("copy %s: %w", name, err)
	}
	if n > maxProgram {
		return nil, fmt.Errorf("%s is larger than %d bytes, which no ldconfig is", name, maxProgram)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(p.file.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal the copy of %s: %w", name, err)
	}
	return p, p.check(name)
}

// check wants a program that needs nothing else: a loader or library would be the image's.
func (p *Program) check(name string) error {
	object, err := hostlib.ReadObject(p.file)
	switch {
	case err != nil:
		return fmt.Errorf("%s %w, want the program itself: where it is a script, the program is often beside it as ldconfig.real", name, err)
	case object.Machine != hostlib.Machine():
		return fmt.Errorf("%s is for %s, want %s", name, object.Machine, hostlib.Machine())
	case object.Interpreter != "":
		return fmt.Errorf("%s is linked against %s, want a static program, as distributions ship ldconfig", name, object.Interpreter)
	case object.Type != elf.ET_EXEC && object.Type != elf.ET_DYN:
		return fmt.Errorf("%s is %s, want a program", name, object.Type)
	}
	return nil
}

// memory makes an anonymous file that may be executed. Kernels before 6.3 do not know that this can be said.
func memory(name string) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if errors.Is(err, unix.EACCES) {
		return fd, fmt.Errorf("keep a program in memory: %w: the node's vm.memfd_noexec forbids it, want 0 or 1", err)
	}
	if err != nil {
		return fd, fmt.Errorf("keep a program in memory: %w", err)
	}
	return fd, nil
}
