// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/fettle-dev/fettle/pkg/admission"
)

// manifestsIn reads files, and the files *.yaml, *.yml and *.json of directories and all below them, each once and in the order of the
// paths. The path "-" is the standard input. It reads what it can: the error has all that it could not read.
func manifestsIn(paths []string, stdin io.Reader) ([]admission.Manifest, error) {
	var manifests []admission.Manifest
	var errs []error
	seen := map[string]bool{}
	for _, path := range paths {
		files, err := manifestFiles(path)
		if err != nil {
			errs = append(errs, err)
		}
		for _, file := range files {
			if seen[file] {
				continue
			}
			seen[file] = true
			m, err := openManifest(file, stdin)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			manifests = append(manifests, m)
		}
	}
	return manifests, errors.Join(errs...)
}

// manifestFiles returns the path itself, or the manifests of a directory, sorted.
func manifestFiles(path string) ([]string, error) {
	if path == "-" {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{filepath.Clean(path)}, nil
	}
	var files []string
	err = filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if suffixes := []string{".yaml", ".yml", ".json"}; !d.IsDir() && slices.Contains(suffixes, filepath.Ext(file)) {
			files = append(files, file)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("directory %s has no file *.yaml, *.yml or *.json", path)
	}
	return files, err
}

func openManifest(file string, stdin io.Reader) (admission.Manifest, error) {
	if file == "-" {
		return admission.ReadManifest(stdin, "stdin")
	}
	f, err := os.Open(file)
	if err != nil {
		return admission.Manifest{}, err
	}
	defer f.Close()
	return admission.ReadManifest(f, file)
}
