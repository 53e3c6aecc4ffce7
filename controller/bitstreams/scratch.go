// SPDX-License-Identifier: Apache-2.0

package bitstreams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// slots is how many files are read at once. Each may take fpga.MaxFile of the disk.
const slots = 2

// Scratch is a directory through which files are read, so that they need no memory.
type Scratch struct {
	dir  string
	free chan int
}

// NewScratch returns a directory that no other process may use: what lies in it is removed.
func NewScratch(dir string) *Scratch {
	s := &Scratch{dir: dir, free: make(chan int, slots)}
	for i := range slots {
		s.free <- i
	}
	return s
}

// File lets use read a layer, compared with its digest, at any offset. The file is gone when use returns. It lies in a store of its own: a
// shared store would give an object the bytes that another object's credentials read.
func (s *Scratch) File(ctx context.Context, src *registry.Source, layer artifact.Descriptor, use func(io.ReaderAt) error) (err error) {
	var slot int
	select {
	case slot = <-s.free:
	case <-ctx.Done():
		return fmt.Errorf("wait until another file is read: %w", context.Cause(ctx))
	}
	defer func() { s.free <- slot }()
	dir := filepath.Join(s.dir, strconv.Itoa(slot))
	if err := os.RemoveAll(dir); err != nil { // a killed process may have left files
		return fmt.Errorf("empty the directory for files: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := artifact.OpenStore(dir, artifact.StoreConfig{})
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // it is removed
	if err := store.Fetch(ctx, src, layer); err != nil {
		return err
	}
	file, err := store.Open(layer.Digest)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it was only read
	return use(file)
}
