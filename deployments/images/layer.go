// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// file is one regular file of a layer: a path in the image and the host file whose bytes it gets.
type file struct {
	path, source string
	mode         int64
}

// sortFiles orders files by their path in the image.
func sortFiles(files []file) []file {
	return slices.SortedFunc(slices.Values(files), func(a, b file) int { return cmp.Compare(a.path, b.path) })
}

// layer packs files with their parent directories, in order of path, owned by root, all with the same time. The same files give
// the same bytes on every machine.
func layer(files []file, modified time.Time) (v1.Layer, error) {
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	seen := map[string]bool{}
	for _, f := range sortFiles(files) {
		if err := writeParents(archive, f.path, seen, modified); err != nil {
			return nil, fmt.Errorf("add the directories of %s: %w", f.path, err)
		}
		if err := writeFile(archive, f, modified); err != nil {
			return nil, fmt.Errorf("add %s: %w", f.path, err)
		}
	}
	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("close the layer: %w", err)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// writeParents adds the directories above name that are not in the archive yet, outermost first.
func writeParents(archive *tar.Writer, name string, seen map[string]bool, modified time.Time) error {
	dir := path.Dir(name)
	if dir == "/" || seen[dir] {
		return nil
	}
	if err := writeParents(archive, dir, seen, modified); err != nil {
		return err
	}
	seen[dir] = true
	return archive.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: 0o755, ModTime: modified, Format: tar.FormatUSTAR,
	})
}

// writeFile adds the content that source has now; a symbolic link on the host becomes the file that it names.
func writeFile(archive *tar.Writer, f file, modified time.Time) error {
	content, err := os.ReadFile(f.source)
	if err != nil {
		return err
	}
	err = archive.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: strings.TrimPrefix(f.path, "/"), Mode: f.mode, Size: int64(len(content)),
		ModTime: modified, Format: tar.FormatUSTAR,
	})
	if err != nil {
		return err
	}
	_, err = archive.Write(content)
	return err
}
