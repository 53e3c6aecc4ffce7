// SPDX-License-Identifier: Apache-2.0

// Package push writes images to the repository of a registry or to an OCI image layout, see package layout. Copy copies an image with its
// signatures from either to either. The bytes and so the digests stay the same, and are compared on the way.
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

// Target is where images are written: a Repository or a layout.Layout. Write blobs before the manifest that names them.
type Target interface {
	// Blob writes a blob, unless the target has it.
	Blob(ctx context.Context, d artifact.Descriptor, open Opener) error
	// PutManifest writes a manifest that has no tag.
	PutManifest(ctx context.Context, m *artifact.Manifest) error
	// Tag writes a manifest with a tag. A layout also takes an empty tag, a registry does not.
	Tag(ctx context.Context, m *artifact.Manifest, tag string) error
}

// Source is where images are read from: a registry.Source or a layout.Source.
type Source interface {
	Resolve(ctx context.Context) (artifact.Descriptor, error)
	Manifest(ctx context.Context, d artifact.Descriptor) (*artifact.Manifest, error)
	Open(ctx context.Context, d artifact.Descriptor) (io.ReadCloser, error)
	Tagged(ctx context.Context, tag string) (*artifact.Manifest, error)
	Referrers(ctx context.Context, d artifact.Digest, artifactType string) ([]artifact.Descriptor, error)
}

// BundleType is the artifact type of signatures that are referrers.
const BundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// maxSignatures is how many referrers are copied at most. Anyone who may push to the source can add some.
const maxSignatures = 32

// Copied is the result of Copy.
type Copied struct {
	Digest artifact.Digest `json:"digest"`
	// Signatures lists the manifests with signatures: referrers, and the manifest of the tag sha256-HEX.sig.
	Signatures []artifact.Digest `json:"signatures,omitempty"`
}

// Copy copies the image, or the index with all its images, that the source resolves to, with their signatures. It sets the tag last.
func Copy(ctx context.Context, from Source, to Target, tag string) (Copied, error) {
	d, err := from.Resolve(ctx)
	if err != nil {
		return Copied{}, err
	}
	c := copier{from: from, to: to, done: Copied{Digest: d.Digest}}
	root, err := c.content(ctx, d)
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

type copier struct {
	from Source
	to   Target
	done Copied
}

// content copies everything that a manifest names, and returns the manifest.
func (c *copier) content(ctx context.Context, d artifact.Descriptor) (*artifact.Manifest, error) {
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

func (c *copier) blobs(ctx context.Context, m *artifact.Manifest) error {
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
			}{layout.Verified(r, d), r}, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// signatures copies the signatures that cosign 3 and cosign 2 store of an image.
func (c *copier) signatures(ctx context.Context, d artifact.Digest) error {
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
		// The list is not trustworthy.
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
