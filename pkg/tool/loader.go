// SPDX-License-Identifier: Apache-2.0

package tool

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/hostlib"
	"github.com/fettle-dev/fettle/pkg/rootfs"
)

// findForLoader is Find for a root with a system of its own: links mean what they mean there, and the program says which loader it needs.
func (r Root) findForLoader(places []string) (Program, error) {
	dir, err := rootfs.Open(r.Dir)
	if err != nil {
		return Program{}, fmt.Errorf("open the driver root: %w", err)
	}
	defer dir.Close()
	var unfit []error
	for _, place := range places {
		p, err := r.program(dir, place)
		switch {
		case err == nil:
			return p, nil
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		default:
			unfit = append(unfit, fmt.Errorf("%s: %w", filepath.Join(r.Dir, place), err))
		}
	}
	return Program{}, r.notFound(places, unfit)
}

// program reads one ELF program, and finds its loader and its libraries.
func (r Root) program(dir *rootfs.Root, place string) (Program, error) {
	resolved, stat, err := dir.Resolve(place)
	if err != nil {
		return Program{}, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Mode&0o111 == 0 || stat.Mode&0o022 != 0 {
		return Program{}, fmt.Errorf("is %s with mode %#o, want a program that only its owner can write",
			rootfs.TypeName(stat.Mode), stat.Mode&0o7777)
	}
	f, _, err := dir.Open(resolved)
	if err != nil {
		return Program{}, err
	}
	defer f.Close()
	object, err := hostlib.ReadObject(f)
	if err != nil {
		return Program{}, err
	}
	if machine := hostlib.Machine(); object.Machine != machine {
		return Program{}, fmt.Errorf("is a program for %s, want %s", object.Machine, machine)
	}
	p := Program{root: r, place: resolved}
	if object.Interpreter == "" {
		return p, nil
	}
	// A root with nothing but a driver's own files has no loader. There the container's starts the program, as for any other.
	p.loader, _, err = dir.Resolve(object.Interpreter)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Program{}, fmt.Errorf("find its loader: %w", err)
	}
	p.libraries, err = r.libraryDirs(dir)
	return p, err
}

// libraryDirs lists the directories of the libraries that the program opens by itself, and those that the root's loader would search, as
// this process sees them. No name in them goes through a link to a directory, which might be absolute.
func (r Root) libraryDirs(dir *rootfs.Root) ([]string, error) {
	host, err := hostlib.Open(r.Dir, hostlib.Config{})
	if err != nil {
		return nil, err
	}
	defer host.Close()
	libraries, err := host.Libraries(r.Libraries)
	if err != nil {
		return nil, err
	}
	var out []string
	add := func(name string) {
		if name = filepath.Join(r.Dir, name); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	for _, library := range libraries.Found {
		add(path.Dir(library.HostPath))
	}
	for _, name := range hostlib.SystemDirs(hostlib.Machine()) {
		resolved, stat, err := dir.Resolve(name)
		if err == nil && stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			add(resolved)
		}
	}
	return out, nil
}
