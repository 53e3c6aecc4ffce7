// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"context"
	"io"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/push"
)

// Push writes the artifact to a registry or a layout: first the blobs, then the manifests, and last the root with the tag, so a tag never
// names a missing blob. If the error is push.ErrRefused, try again with About.Untyped.
func (a *Artifact) Push(ctx context.Context, to push.Target, tag string) error {
	for _, b := range a.Blobs {
		err := to.Blob(ctx, b.Descriptor, func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(io.NewSectionReader(b.Content, 0, b.Size)), nil
		})
		if err != nil {
			return err
		}
	}
	for _, m := range a.Manifests {
		manifest := &artifact.Manifest{Raw: m.Raw, Digest: m.Digest, MediaType: m.MediaType}
		if m.Digest == a.Root.Digest {
			return to.Tag(ctx, manifest, tag)
		}
		if err := to.PutManifest(ctx, manifest); err != nil {
			return err
		}
	}
	return nil
}
