// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// refNameAnnotation names an entry of an OCI layout's index (image spec, annotations.md).
const refNameAnnotation = "org.opencontainers.image.ref.name"

// writeArchive writes OUT/NAME.tar for one architecture in the form of docker save, which container runtimes import without a
// registry.
func writeArchive(a assembled, arch, out string, tag name.Tag) (string, error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(out, a.spec.Name+".tar")
	if err := tarball.WriteToFile(path, tag, a.images[arch]); err != nil {
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	return path, nil
}

// writeLayout writes all images as a fresh OCI layout in dir, each an index under its full name.
func writeLayout(images []assembled, dir string, tagOf func(imageSpec) (name.Tag, error)) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	root := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, a := range images {
		tag, err := tagOf(a.spec)
		if err != nil {
			return err
		}
		root = mutate.AppendManifests(root, mutate.IndexAddendum{
			Add:        a.index,
			Descriptor: v1.Descriptor{Annotations: map[string]string{refNameAnnotation: tag.Name()}},
		})
	}
	if _, err := layout.Write(dir, root); err != nil {
		return fmt.Errorf("write the OCI layout %s: %w", dir, err)
	}
	return nil
}

// push uploads the index of one image, with the credentials of the user's registry configuration, and returns its digest.
func push(ctx context.Context, a assembled, tag name.Tag) (v1.Hash, error) {
	if err := remote.WriteIndex(tag, a.index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return v1.Hash{}, fmt.Errorf("push %s: %w", tag, err)
	}
	return a.index.Digest()
}
