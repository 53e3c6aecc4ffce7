// SPDX-License-Identifier: Apache-2.0

package bitstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/oci"
)

// Registry opens references. It asks nothing of anybody yet.
type Registry interface {
	Open(ref artifact.Reference, keys authn.Keychain) Artifact
}

// Artifact is one reference, read with one set of credentials. Its errors are those of package artifact.
type Artifact interface {
	oci.Source
	// Resolve says which manifest the reference names now, and that the credentials may read it.
	Resolve(ctx context.Context) (artifact.Descriptor, error)
	// File lets use read a layer, compared with its digest, at any offset. It is gone when use returns.
	File(ctx context.Context, layer artifact.Descriptor, use func(io.ReaderAt) error) error
}

// maxFiles is how many bytes the files of one artifact may have together.
const maxFiles = 4 << 30

// Read finds the bitstreams at a manifest or index and reads all their bytes. What it gives is sorted by interface id.
func Read(ctx context.Context, a Artifact, d artifact.Descriptor) ([]v1alpha1.BitstreamImage, error) {
	list, err := oci.List(ctx, a, d)
	if err != nil {
		return nil, err
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
		image, err := readFile(ctx, a, entry)
		if err != nil {
			return nil, fmt.Errorf("manifest %s: %w", entry.Manifest, err)
		}
		images = append(images, image)
	}
	slices.SortFunc(images, func(x, y v1alpha1.BitstreamImage) int {
		return cmp.Or(cmp.Compare(x.InterfaceID, y.InterfaceID), cmp.Compare(x.Manifest, y.Manifest))
	})
	return images, nil
}

// readFile lets the bytes of one file say what it is.
func readFile(ctx context.Context, a Artifact, entry oci.Image) (v1alpha1.BitstreamImage, error) {
	var b fpga.Bitstream
	err := a.File(ctx, entry.Layer, func(file io.ReaderAt) error {
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

// explain tells what a file holds from trouble with the disk that it was brought to.
func explain(err error) error {
	var disk *fs.PathError
	if err == nil || errors.Is(err, fpga.ErrContradiction) || errors.As(err, &disk) {
		return err
	}
	return fmt.Errorf("the file is %w: %w", oci.ErrNotBitstream, err)
}
