// SPDX-License-Identifier: Apache-2.0

package bitstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// slots is how many files are read at once. Each may take fpga.MaxFile of the disk.
const slots = 2

// Puller is the registries as they are.
type Puller struct {
	client *registry.Client
	dir    string
	free   chan int
}

// NewPuller reads files by way of a directory, which no other process may use: what lies in it is removed.
func NewPuller(client *registry.Client, dir string) *Puller {
	p := &Puller{client: client, dir: dir, free: make(chan int, slots)}
	for i := range slots {
		p.free <- i
	}
	return p
}

// Open implements Registry.
func (p *Puller) Open(ref artifact.Reference, keys authn.Keychain) Artifact {
	return pulled{Source: p.client.Source(ref, keys), puller: p}
}

type pulled struct {
	*registry.Source
	puller *Puller
}

// File brings the layer into a store of its own. Sharing one would give an object the bytes that another object's credentials read.
func (p pulled) File(ctx context.Context, layer artifact.Descriptor, use func(io.ReaderAt) error) (err error) {
	var slot int
	select {
	case slot = <-p.puller.free:
	case <-ctx.Done():
		return fmt.Errorf("wait until another file is read: %w", context.Cause(ctx))
	}
	defer func() { p.puller.free <- slot }()
	dir := filepath.Join(p.puller.dir, strconv.Itoa(slot))
	if err := os.RemoveAll(dir); err != nil { // what a process left that was killed
		return fmt.Errorf("empty the directory for files: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := artifact.OpenStore(dir, artifact.StoreConfig{})
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // it is removed
	if err := store.Fetch(ctx, p.Source, layer); err != nil {
		return err
	}
	file, err := store.Open(layer.Digest)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it was only read
	return use(file)
}
