// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/fettle-dev/fettle/pkg/disk"
)

const (
	filePrefix      = "fettle.dev-"
	claimFilePrefix = "fettle.dev-claim-"
	fileSuffix      = ".json"
	specMode        = 0o600 // it has names of devices, see Names; runtimes that use it are root
	dirMode         = 0o755
)

// Dir is the spec directory that the container runtime reads, /var/run/cdi unless it is configured otherwise. Only files of
// Fettle's own vendor prefix are ever touched.
type Dir struct {
	fs   disk.FS
	path string
}

// Open makes the directory where it is missing.
func Open(fsys disk.FS, path string) (*Dir, error) {
	d := &Dir{fs: fsys, path: path}
	if err := disk.MkdirAll(fsys, path, dirMode); err != nil {
		return nil, fmt.Errorf("make the CDI directory: %w", err)
	}
	return d, nil
}

// Ensure makes the spec's file be there with the spec's content, and writes nothing if it already is. The directory is usually
// on a tmpfs and may have been wiped since Open. Nothing is synced: what a power loss leaves is compared and written again before
// any container is told of it.
func (d *Dir) Ensure(spec Spec) error {
	path := filepath.Join(d.path, spec.File)
	if have, err := d.fs.ReadFile(path); err == nil && bytes.Equal(have, spec.Content) {
		return nil
	}
	err := disk.Replace(d.fs, path, spec.Content, specMode)
	if errors.Is(err, fs.ErrNotExist) {
		if err = disk.MkdirAll(d.fs, d.path, dirMode); err == nil {
			err = disk.Replace(d.fs, path, spec.Content, specMode)
		}
	}
	if err != nil {
		return &writeError{err}
	}
	return nil
}

// writeError is why a spec was not written. Tenants read it in Events, so its text has neither the name of a device nor of a file.
type writeError struct{ cause error }

// Error tells the kernel's reason.
func (e *writeError) Error() string {
	if errno, ok := errors.AsType[unix.Errno](e.cause); ok {
		return "a file cannot be written to the node's CDI directory: " + errno.Error()
	}
	return "a file cannot be written to the node's CDI directory"
}

// Unwrap returns the cause, which names the file.
func (e *writeError) Unwrap() error { return e.cause }

// Has says whether the file that defines the name of a common spec is there.
func (d *Dir) Has(qualified string) bool {
	file, err := fileOf(qualified)
	if err != nil {
		return false
	}
	_, err = d.fs.Lstat(filepath.Join(d.path, file))
	return err == nil
}

// Files are the names in the directory, none where it is missing.
func (d *Dir) Files() (map[string]bool, error) {
	entries, err := d.fs.ReadDir(d.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the CDI directory: %w", err)
	}
	files := make(map[string]bool, len(entries))
	for _, e := range entries {
		files[e.Name()] = true
	}
	return files, nil
}

// Sweep removes files. The caller makes sure that nobody needs them.
func (d *Dir) Sweep(files []string) error {
	var errs []error
	for _, name := range files {
		errs = append(errs, disk.RemoveIfThere(d.fs, filepath.Join(d.path, name)))
	}
	return errors.Join(errs...)
}

// Unwanted are the spec files of Fettle's that keep does not want, and what writes that were cut off left behind, sorted. A nil keep
// wants none.
func (d *Dir) Unwanted(keep func(file string) bool) ([]string, error) {
	entries, err := d.fs.ReadDir(d.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("sweep the CDI directory: %w", err)
	}
	var unwanted []string
	for _, e := range entries {
		name := e.Name()
		whole, temporary := strings.CutPrefix(name, disk.TemporaryPrefix)
		ours := strings.HasPrefix(whole, filePrefix) || strings.HasPrefix(whole, shownFilePrefix)
		if ours && (temporary || strings.HasSuffix(name, fileSuffix) && (keep == nil || !keep(name))) {
			unwanted = append(unwanted, name)
		}
	}
	return unwanted, nil
}

// ClaimOf is the UID of the claim whose own specs a file holds.
func ClaimOf(file string) (uid string, ok bool) {
	name, ours := strings.CutPrefix(file, claimFilePrefix)
	uid, ok = strings.CutSuffix(name, fileSuffix)
	return uid, ours && ok && uid != ""
}

// FileOf is the file that defines a qualified name of a common spec, empty where it cannot be one.
func FileOf(qualified string) string {
	file, err := fileOf(qualified)
	if err != nil {
		return ""
	}
	return file
}

// fileOf is the file that defines a qualified device name.
func fileOf(qualified string) (string, error) {
	vendor, class, name, err := parser.ParseQualifiedName(qualified)
	if err != nil {
		return "", fmt.Errorf("CDI device name %q: %w", qualified, err)
	}
	return fileName(vendor+"/"+class, name), nil
}
