// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"context"
	"fmt"
	"io"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/push"
)

// Push brings an artifact to the reference, which has a tag: first the blobs, then the manifests, the root last, so that a tag never
// names what is not there. An error that is push.ErrRefused may pass with About.Untyped.
func Push(ctx context.Context, a *Artifact, registry push.Registry, ref artifact.Reference) error {
	if ref.Tag() == "" {
		return fmt.Errorf("push to %s: expected a tag; the digest is what a push gives", ref)
	}
	to, err := registry.Repository(ref)
	if err != nil {
		return err
	}
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
			err = to.Tag(ctx, manifest, ref.Tag())
		} else {
			err = to.PutManifest(ctx, manifest)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
