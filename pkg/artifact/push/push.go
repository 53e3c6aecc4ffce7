// SPDX-License-Identifier: Apache-2.0

// Package push writes images: to the repository of a registry, or to an OCI image layout, which package layout has. Copy brings one with
// its signatures from either to either. What is copied keeps its bytes and so its digest, and is compared with it on the way.
package push

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/layout"
)

// Opener opens a blob, each time from its beginning.
type Opener = func(ctx context.Context) (io.ReadCloser, error)

// Target is where images are written: a Repository or a layout.Layout. What something names is written before it.
type Target interface {
	// Blob writes a blob, unless it is there.
	Blob(ctx context.Context, d artifact.Descriptor, open Opener) error
	// PutManifest writes a manifest that has no tag.
	PutManifest(ctx context.Context, m *artifact.Manifest) error
	// Tag writes one that readers are to find by a tag. A layout also has images without a tag; a registry refuses an empty one.
	Tag(ctx context.Context, m *artifact.Manifest, tag string) error
}

// Source is where images are copied from: an registry.Source that can open blobs, or a layout.Source.
type Source interface {
	Resolve(ctx context.Context) (artifact.Descriptor, error)
	Manifest(ctx context.Context, d artifact.Descriptor) (*artifact.Manifest, error)
	Open(ctx context.Context, d artifact.Descriptor) (io.ReadCloser, error)
	Tagged(ctx context.Context, tag string) (*artifact.Manifest, error)
	Referrers(ctx context.Context, d artifact.Digest, artifactType string) ([]artifact.Descriptor, error)
}

// BundleType is the artifact type of signatures that are referrers.
const BundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// maxSignatures is how many referrers are copied; whoever may push to the source may add some.
const maxSignatures = 32

// Copied is what Copy brought.
type Copied struct {
	Digest artifact.Digest `json:"digest"`
	// Signatures are the manifests that hold some: referrers, and that of the tag sha256-HEX.sig.
	Signatures []artifact.Digest `json:"signatures,omitempty"`
}

// Copy brings the image, or the index with all its images, that the source resolves to, with their signatures. The image gets its tag last.
func Copy(ctx context.Context, from Source, to Target, tag string) (Copied, error) {
	d, err := from.Resolve(ctx)
	if err != nil {
		return Copied{}, err
	}
	c := copying{from: from, to: to, done: Copied{Digest: d.Digest}}
	root, err := c.below(ctx, d)
	if err != nil {
		return Copied{}, err
	}
	all := append([]artifact.Descriptor{d}, root.Manifests...)
	for _, one := range all {
		if err := c.signatures(ctx, one.Digest); err != nil {
			return Copied{}, fmt.Errorf("copy the signatures of %s: %w", one.Digest, err)
		}
	}
	return c.done, to.Tag(ctx, root, tag)
}

type copying struct {
	from Source
	to   Target
	done Copied
}

// below copies all that a manifest names, and gives the manifest.
func (c *copying) below(ctx context.Context, d artifact.Descriptor) (*artifact.Manifest, error) {
	m, err := c.from.Manifest(ctx, d)
	if err != nil {
		return nil, err
	}
	for _, entry := range m.Manifests {
		part, err := c.from.Manifest(ctx, entry)
		if err != nil {
			return nil, err
		}
		if part.IsIndex() {
			return nil, fmt.Errorf("%s: %w: expected images in the index %s, not another index", part.Digest, artifact.ErrInvalid, d.Digest)
		}
		if err := c.blobs(ctx, part); err != nil {
			return nil, err
		}
		if err := c.to.PutManifest(ctx, part); err != nil {
			return nil, err
		}
	}
	return m, c.blobs(ctx, m)
}

func (c *copying) blobs(ctx context.Context, m *artifact.Manifest) error {
	if m.IsIndex() {
		return nil
	}
	for _, d := range append([]artifact.Descriptor{m.Config}, m.Layers...) {
		err := c.to.Blob(ctx, d, func(ctx context.Context) (io.ReadCloser, error) {
			r, err := c.from.Open(ctx, d)
			if err != nil {
				return nil, err
			}
			return struct {
				io.Reader
				io.Closer
			}{layout.Checked(r, d), r}, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// signatures copies what cosign 3 and cosign 2 keep of an image.
func (c *copying) signatures(ctx context.Context, d artifact.Digest) error {
	list, err := c.from.Referrers(ctx, d, BundleType)
	if err != nil {
		return err
	}
	if len(list) > maxSignatures {
		return fmt.Errorf("there are %d, expected at most %d: %w", len(list), maxSignatures, artifact.ErrTooLarge)
	}
	for _, r := range list {
		m, err := c.from.Manifest(ctx, r)
		if err != nil {
			return err
		}
		// Nobody vouches for the list.
		if m.IsIndex() || m.ArtifactType != BundleType || m.Subject.Digest != d {
			continue
		}
		if err := c.blobs(ctx, m); err != nil {
			return err
		}
		if err := c.to.PutManifest(ctx, m); err != nil {
			return err
		}
		c.done.Signatures = append(c.done.Signatures, m.Digest)
	}
	tag := strings.Replace(d.String(), ":", "-", 1) + ".sig"
	m, err := c.from.Tagged(ctx, tag)
	switch {
	case errors.Is(err, artifact.ErrNotFound) && !artifact.IsRetryable(err):
		return nil
	case err != nil:
		return err
	case m.IsIndex():
		return fmt.Errorf("the tag %s: %w: expected a manifest, not an index", tag, artifact.ErrInvalid)
	}
	if err := c.blobs(ctx, m); err != nil {
		return err
	}
	c.done.Signatures = append(c.done.Signatures, m.Digest)
	return c.to.Tag(ctx, m, tag)
}
