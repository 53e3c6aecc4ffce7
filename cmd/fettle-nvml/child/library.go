// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package child

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/rootfs"
)

const libraryName = "libnvidia-ml.so.1"

// libraryDirs are the directories below a driver root that distributions use, 64-bit only.
func libraryDirs() []string {
	return []string{
		"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "usr/local/nvidia/lib64",
		"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "usr/lib/nvidia/current", "run/opengl-driver/lib",
	}
}

// findLibrary finds the library's file below the root, or below the usual roots if that is empty. What has the name but is no
// shared library, such as the directory that a container runtime makes for a mount whose source was missing, is passed over.
func findLibrary(driverRoot string) (string, error) {
	roots := nvml.DriverRoots()
	if driverRoot != "" {
		roots = []string{driverRoot}
	}
	var rejected []error
	for _, root := range roots {
		file, err := findBelow(root)
		if file != "" {
			return file, nil
		}
		rejected = append(rejected, err)
	}
	err := fmt.Errorf("%w; looked below %s in %s", nvml.ErrNoLibrary, strings.Join(roots, ", "), strings.Join(libraryDirs(), ", "))
	return "", errors.Join(append([]error{err}, rejected...)...)
}

// findBelow finds the library below one root. Empty without an error means that nothing of that name is there. Links are followed inside
// the root, and no directory is listed: the child may not.
func findBelow(root string) (file string, err error) {
	tree, err := rootfs.Open(root)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer tree.Close()
	var rejected []error
	for _, dir := range libraryDirs() {
		name, err := checkLibrary(tree, path.Join(dir, libraryName))
		if err == nil {
			return filepath.Join(root, name), nil
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			rejected = append(rejected, fmt.Errorf("passed over %s: %w", filepath.Join(root, dir, libraryName), err))
		}
	}
	return "", errors.Join(rejected...)
}

// checkLibrary wants a plain file that is a 64-bit shared object, and returns where it is.
func checkLibrary(tree *rootfs.Root, name string) (string, error) {
	f, _, err := tree.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	object, err := elf.NewFile(f)
	if err != nil {
		return "", fmt.Errorf("not a shared library: %w", err)
	}
	if object.Class != elf.ELFCLASS64 || object.Type != elf.ET_DYN {
		return "", fmt.Errorf("not a 64-bit shared library but %s %s", object.Class, object.Type)
	}
	resolved, _, err := tree.Resolve(name)
	return resolved, err
}
