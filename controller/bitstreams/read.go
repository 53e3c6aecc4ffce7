// SPDX-License-Identifier: Apache-2.0

package bitstreams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/controller/artifacts"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/budget"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/oci"
)

// maxFiles bounds the sum of the files of one artifact, in bytes.
const maxFiles = 4 << 30

// Read finds the bitstreams of a namespace's object at a manifest or index and reads all their bytes. The result is sorted by interface id.
func Read(
	ctx context.Context, namespace string, src *registry.Source, d artifact.Descriptor, scratch *Scratch,
) ([]v1alpha1.BitstreamImage, error) {
	list, err := oci.List(ctx, src, d)
	if err != nil {
		return nil, withReason(err)
	}
	var total int64
	for _, entry := range list {
		total += entry.Layer.Size
	}
	if total > maxFiles {
		return nil, fmt.Errorf("the artifact is %w: its files have %d bytes, expected at most %d", artifact.ErrTooLarge, total, int64(maxFiles))
	}
	images := make([]v1alpha1.BitstreamImage, 0, len(list))
	for _, entry := range list {
		image, err := readFile(ctx, namespace, src, entry, scratch)
		if err != nil {
			return nil, withReason(fmt.Errorf("manifest %s: %w", entry.Manifest, err))
		}
		images = append(images, image)
	}
	slices.SortFunc(images, func(x, y v1alpha1.BitstreamImage) int {
		return cmp.Or(cmp.Compare(x.InterfaceID, y.InterfaceID), cmp.Compare(x.Manifest, y.Manifest))
	})
	return images, nil
}

// readFile reads one file and describes it by its bytes.
func readFile(
	ctx context.Context, namespace string, src *registry.Source, entry oci.Image, scratch *Scratch,
) (v1alpha1.BitstreamImage, error) {
	var b fpga.Bitstream
	err := scratch.File(ctx, namespace, src, entry.Layer, func(file io.ReaderAt) error {
		var err error
		b, err = entry.Config.Inspect(file, entry.Layer.Size)
		return explain(err)
	})
	if err != nil {
		return v1alpha1.BitstreamImage{}, err
	}
	if b.Payload == nil {
		return v1alpha1.BitstreamImage{}, fmt.Errorf("%w that can be loaded: blocks of a signature stand before its header, and it is not "+
			"known which bytes the card wants; sign the GBS so that they follow its metadata", oci.ErrNotBitstream)
	}
	return v1alpha1.BitstreamImage{
		Manifest: entry.Manifest.String(), Layer: entry.Layer.Digest.String(), Size: b.Size, Format: string(b.Format),
		ID: b.ID, AFUID: b.AFUID, InterfaceID: b.InterfaceID, Name: b.Name, CardSigned: b.Signature != nil,
	}, nil
}

// explain marks an error of a file's content. An error of the scratch directory's disk stays as it is.
func explain(err error) error {
	var disk *fs.PathError
	if err == nil || errors.Is(err, fpga.ErrContradiction) || errors.As(err, &disk) {
		return err
	}
	return fmt.Errorf("the file is %w: %w", oci.ErrNotBitstream, err)
}

// The reasons of the condition Resolved, beside those of package artifacts. They are stable.
const (
	// ReasonNotABitstream: the artifact or a file in it is something else.
	ReasonNotABitstream = "NotABitstream"
	// ReasonConfigMismatch: the artifact's config says other things than the bytes.
	ReasonConfigMismatch = "ConfigMismatch"
)

// withReason adds the reason that bitstreams have for an error.
func withReason(err error) error {
	switch {
	case errors.Is(err, fpga.ErrContradiction):
		return &artifacts.Fault{Reason: ReasonConfigMismatch, Err: err}
	case errors.Is(err, oci.ErrNotBitstream):
		return &artifacts.Fault{Reason: ReasonNotABitstream, Err: err}
	}
	return err
}

// Every file has quickRead first, alone in its lane. What is not read then goes on in the other lane, where it has slowRead and the time
// for its bytes at slowRate. So slow registries hold up only files that are slow, too. Each lane may take fpga.MaxFile of the disk.
const (
	quickRead = 10 * time.Second
	slowRead  = time.Minute
	slowRate  = 4 << 20 // bytes a second
)

// Scratch is a directory through which files are read, so that they need no memory.
type Scratch struct {
	dir   string
	empty func() error
	lanes *budget.Lanes
}

// NewScratch returns a directory that no other process may use: what lies in it is removed.
func NewScratch(dir string) *Scratch {
	one := budget.Limit{Node: 1}
	return &Scratch{
		dir: dir, lanes: budget.NewLanes(one, one, quickRead),
		empty: sync.OnceValue(func() error { return empty(dir) }),
	}
}

// empty removes what a killed process may have left. The directory itself may be a mount.
func empty(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	left, unread := os.ReadDir(dir)
	err = errors.Join(err, unread)
	for _, entry := range left {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return err
}

// File lets use read a layer of a namespace's object, compared with its digest, at any offset. The file is gone when use returns. It lies
// in a store of its own: a shared store would give an object the bytes that another object's credentials read.
func (s *Scratch) File(
	ctx context.Context, namespace string, src artifact.Puller, layer artifact.Descriptor, use func(io.ReaderAt) error,
) error {
	limit := slowRead + time.Duration(layer.Size/slowRate)*time.Second
	err := s.lanes.Do(ctx, namespace, budget.Pace{Most: limit}, func(ctx context.Context) error { return s.file(ctx, src, layer, use) })
	if errors.Is(err, budget.ErrSlow) {
		err = fmt.Errorf("the file of %d bytes is %w: %w", layer.Size, artifact.ErrUnavailable, err)
	}
	return err
}

func (s *Scratch) file(ctx context.Context, src artifact.Puller, layer artifact.Descriptor, use func(io.ReaderAt) error) (err error) {
	dir, err := "", s.empty()
	if err == nil {
		dir, err = os.MkdirTemp(s.dir, "")
	}
	if err != nil {
		return fmt.Errorf("make a directory for the file: %w", err)
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
