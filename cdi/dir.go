// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
)

const (
	filePrefix = "fettle.dev-"
	fileSuffix = ".json"
	// tmpPrefix has no suffix that a runtime watches for, so that only the rename makes it look.
	tmpPrefix = ".fettle.dev-"
	specMode  = 0o644
)

// Dir is the spec directory that the container runtime reads, /var/run/cdi unless it is configured otherwise. Only files of
// Fettle's own vendor prefix are ever touched.
type Dir struct {
	path string
}

// Open makes the directory where it is missing.
func Open(path string) (*Dir, error) {
	d := &Dir{path: path}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("make the CDI directory: %w", err)
	}
	return d, nil
}

// Ensure makes the spec's file be there with the spec's content, and writes nothing if it already is. The directory is usually
// on a tmpfs and may have been wiped since Open.
func (d *Dir) Ensure(spec Spec) error {
	path := filepath.Join(d.path, spec.File)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, spec.Content) {
		return nil
	}
	if err := os.MkdirAll(d.path, 0o755); err != nil {
		return fmt.Errorf("make the CDI directory: %w", err)
	}
	f, err := os.CreateTemp(d.path, tmpPrefix+"*")
	if err != nil {
		return fmt.Errorf("write CDI spec %s: %w", spec.Device, err)
	}
	_, err = f.Write(spec.Content)
	err = errors.Join(err, f.Chmod(specMode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write CDI spec %s: %w", spec.Device, err), removeIfThere(f.Name()))
	}
	return nil
}

// Has says whether the file that defines a qualified device name is there.
func (d *Dir) Has(qualified string) bool {
	file, err := fileOf(qualified)
	if err != nil {
		return false
	}
	_, err = os.Lstat(filepath.Join(d.path, file))
	return err == nil
}

// Sweep removes Fettle's spec files whose device is not in keep, and temporary files of writes that were cut off. The caller
// makes sure that no claim is being prepared meanwhile. It returns how many specs it removed.
func (d *Dir) Sweep(keep map[string]bool) (int, error) {
	kept := make(map[string]bool, len(keep))
	for qualified := range keep {
		file, err := fileOf(qualified)
		if err != nil {
			return 0, err
		}
		kept[file] = true
	}
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("sweep the CDI directory: %w", err)
	}
	var (
		removed int
		errs    []error
	)
	for _, e := range entries {
		name := e.Name()
		spec := strings.HasPrefix(name, filePrefix) && strings.HasSuffix(name, fileSuffix)
		if !strings.HasPrefix(name, tmpPrefix) && (!spec || kept[name]) {
			continue
		}
		err := removeIfThere(filepath.Join(d.path, name))
		errs = append(errs, err)
		if err == nil && spec {
			removed++
		}
	}
	return removed, errors.Join(errs...)
}

// fileOf is the file that defines a qualified device name.
func fileOf(qualified string) (string, error) {
	vendor, class, name, err := parser.ParseQualifiedName(qualified)
	if err != nil {
		return "", fmt.Errorf("CDI device name %q: %w", qualified, err)
	}
	return fileName(vendor, class, name), nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
