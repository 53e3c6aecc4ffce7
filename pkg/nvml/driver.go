// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CUDALibrary is the library that every CUDA program needs of the driver. Its file has the driver's version behind the name.
const CUDALibrary = "libcuda.so"

// ErrNoDriver: there is no user-space driver of NVIDIA below the root.
var ErrNoDriver = errors.New("NVIDIA's driver is not installed")

// maxDriver bounds each list of a Driver: a driver has about 60 files.
const maxDriver = 1024

// Driver is what a container needs of the driver that is installed below a root, by NVIDIA's own list.
type Driver struct {
	// Version is that of the libraries: "580.95.05".
	Version string `json:"version"`
	// Files are libraries, programs, firmware, configuration and sockets, no two at one place of the container.
	Files []DriverFile `json:"files"`
	// Links are symbolic links to make in the container.
	Links []DriverLink `json:"links,omitempty"`
	// LibraryDirs are the directories of the container with libraries.
	LibraryDirs []string `json:"libraryDirs,omitempty"`
	// Env are NAME=VALUE.
	Env []string `json:"env,omitempty"`
}

// DriverFile is a file to bring into the container.
type DriverFile struct {
	// Path is below the driver's root, ContainerPath in the container.
	Path          string `json:"path"`
	ContainerPath string `json:"containerPath"`
}

// DriverLink is a symbolic link.
type DriverLink struct {
	Path   string `json:"path"`
	Target string `json:"target"`
}

// DecodeDriver reads one answer of at most 1 MiB: strict JSON, nothing after it, and fit for a container.
func DecodeDriver(r io.Reader) (Driver, error) { return decode[Driver](r, "driver") }

// Validate wants clean paths, which stay out of what the runtime itself mounts, and the library without which there is no driver.
func (d Driver) Validate() error {
	if n := max(len(d.Files), len(d.Links), len(d.LibraryDirs), len(d.Env)); n > maxDriver {
		return fmt.Errorf("%d entries, want at most %d", n, maxDriver)
	}
	faults := []error{d.validateFiles()}
	check := func(name string, i int, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("%s[%d]: %w", name, i, err))
		}
	}
	for i, l := range d.Links {
		check("links", i, inContainer(l.Path))
		if !plainText(l.Target) {
			check("links", i, fmt.Errorf("target %.80q, want a path", l.Target))
		}
	}
	for i, dir := range d.LibraryDirs {
		check("libraryDirs", i, inContainer(dir))
	}
	for i, env := range d.Env {
		if name, _, ok := strings.Cut(env, "="); !ok || name == "" || !plainText(env) {
			check("env", i, fmt.Errorf("%.80q, want NAME=VALUE", env))
		}
	}
	return errors.Join(faults...)
}

func (d Driver) validateFiles() error {
	var faults []error
	places := map[string]bool{}
	cuda := false
	for i, f := range d.Files {
		err := errors.Join(cleanPath(f.Path), inContainer(f.ContainerPath))
		if err == nil && places[f.ContainerPath] {
			err = fmt.Errorf("%s appears twice", f.ContainerPath)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("files[%d]: %w", i, err))
		}
		places[f.ContainerPath] = true
		cuda = cuda || d.Version != "" && path.Base(f.ContainerPath) == CUDALibrary+"."+d.Version
	}
	if !cuda {
		faults = append(faults, fmt.Errorf("files: no %s of version %.40q", CUDALibrary, d.Version))
	}
	return errors.Join(faults...)
}

// inContainer wants a path that a preset could name.
func inContainer(name string) error {
	if err := cleanPath(name); err != nil {
		return err
	}
	switch tree, _, _ := strings.Cut(name[1:], "/"); tree {
	case "dev", "proc", "sys":
		return fmt.Errorf("%.80q is in /%s", name, tree)
	}
	return nil
}

func cleanPath(name string) error {
	if !path.IsAbs(name) || path.Clean(name) != name || name == "/" || !plainText(name) {
		return fmt.Errorf("%.80q, want an absolute, clean path", name)
	}
	return nil
}

// plainText is fit for a message, and for what stands between two colons or behind an equals sign: a link is TARGET::PATH.
func plainText(text string) bool {
	bad := func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }
	return text != "" && len(text) <= 4096 && !strings.ContainsFunc(text, bad) && !strings.Contains(text, "::")
}
