// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/fettle-dev/fettle/pkg/artifact/unpack"
)

// ReadTree lets use read what a tree holds, without mounting it.
func (s *Store) ReadTree(t *Tree, use func(fs.FS) error) error {
	fsys, closing, err := s.treeFS(t)
	if err != nil {
		return fmt.Errorf("open the tree of the image %s: %w", t.Digest, onDisk(err))
	}
	defer closing()
	return use(fsys)
}

// Form is how trees should lie in this store: as images, where mount says that the kernel takes one from this disk. It makes a small one to
// ask with, and removes it.
func (s *Store) Form(mount func(index, data string) error) (TreeForm, error) {
	dir, err := os.MkdirTemp(s.path(tmpDir), "form-")
	if err != nil {
		return "", onDisk(err)
	}
	below, _, closing, err := s.within(tmpDir + "/" + dir[len(s.path(tmpDir))+1:])
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	image := &unpack.Image{Files: below}
	err = errors.Join(image.Finish(&unpack.Tree{}), image.Close())
	closing()
	form := TreeDirectory
	if err == nil && mount(dir+"/"+unpack.ImageIndex, dir+"/"+unpack.ImageData) == nil {
		form = TreeImage
	}
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		return "", fmt.Errorf("find out how trees are kept: %w", onDisk(err))
	}
	return form, nil
}
