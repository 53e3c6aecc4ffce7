// SPDX-License-Identifier: Apache-2.0

// Package treesum lists what a tree of files holds, so that a test can compare a tree in a store with what its image has.
package treesum

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// Of reads a tree: for each path the mode and, of a file, the sha256 of its content.
func Of(fsys fs.FS) (map[string]string, error) {
	all := map[string]string{}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		// The reader of EROFS leaves the bits of stat(2) in, which mean nothing in a FileMode.
		mode := info.Mode() & (fs.ModeType | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky | fs.ModePerm)
		all[name] = mode.String()
		if !mode.IsRegular() {
			return nil
		}
		content, err := fs.ReadFile(fsys, name)
		if err == nil && info.Size() != int64(len(content)) {
			err = fmt.Errorf("%s has %d bytes, expected %d", name, len(content), info.Size())
		}
		all[name] = file(mode, content)
		return err
	})
	return all, err
}

func file(mode fs.FileMode, content []byte) string {
	return fmt.Sprintf("%v %x", mode, sha256.Sum256(content))
}

// OfTars lists what the tars of an image's layers are unpacked to, the lowest first. They must have no whiteouts.
func OfTars(layers ...[]byte) (map[string]string, error) {
	all := map[string]string{}
	for _, layer := range layers {
		if err := add(all, layer); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func add(all map[string]string, layer []byte) error {
	r := tar.NewReader(bytes.NewReader(layer))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(h.Name, "/")
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			all[dir] = (fs.ModeDir | 0o777).String()
		}
		if h.Typeflag == tar.TypeDir {
			all[name] = (fs.ModeDir | 0o777).String()
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o666)
		if h.Mode&0o111 != 0 {
			mode = 0o777
		}
		all[name] = file(mode, content)
	}
}
