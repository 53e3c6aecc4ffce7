// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/artifact"
)

const (
	// maxCandidates is how many signatures of one format are looked at, the first ones. Whoever may push to the repository may add some.
	maxCandidates = 32
	// maxBundle bounds a bundle, and the payload of a simple signature.
	maxBundle = 256 << 10

	bundleType      = "application/vnd.dev.sigstore.bundle.v0.3+json"
	signPredicate   = "https://sigstore.dev/cosign/sign/v1"
	predicateHint   = "dev.sigstore.bundle.predicateType"
	intotoStatement = "https://in-toto.io/Statement/v1"
)

// Source is where an image and what is said of it are read: a registry.Source.
type Source interface {
	Reference() artifact.Reference
	Manifest(ctx context.Context, d artifact.Descriptor) (*artifact.Manifest, error)
	ReadBlob(ctx context.Context, d artifact.Descriptor) ([]byte, error)
	Tagged(ctx context.Context, tag string) (*artifact.Manifest, error)
	Referrers(ctx context.Context, d artifact.Digest, artifactType string) ([]artifact.Descriptor, error)
}

// candidate is a signature that nobody has vouched for yet.
type candidate struct {
	format v1alpha1.SignatureFormat
	// name is the digest of the manifest or layer that has it.
	name   string
	bundle *bundle.Bundle
	// payload is what a simple signature is of, nil for a bundle that has its own.
	payload []byte
}

// found is what a repository has of one format.
type found struct {
	candidates []*candidate
	problems   []problem
}

// problem is something that looked like a signature and is none, or could not be read.
type problem struct {
	name string
	err  error
}

func (f *found) fail(name string, err error) { f.problems = append(f.problems, problem{name, err}) }

// find reads all signatures of one format.
func find(ctx context.Context, src Source, d artifact.Digest, format v1alpha1.SignatureFormat) *found {
	f := &found{}
	if format == v1alpha1.SignatureCosignV2 {
		findSimple(ctx, src, d, f)
	} else {
		findBundles(ctx, src, d, f)
	}
	return f
}

// findBundles looks among the referrers.
func findBundles(ctx context.Context, src Source, d artifact.Digest, f *found) {
	list, err := src.Referrers(ctx, d, bundleType)
	if err != nil {
		f.fail("", err)
		return
	}
	// What an annotation says is not believed, but one that says that this is no signature saves reading it.
	list = slices.DeleteFunc(list, func(r artifact.Descriptor) bool {
		predicate := r.Annotations[predicateHint]
		return predicate != "" && predicate != signPredicate
	})
	for _, r := range firstOf(f, list) {
		c, err := readBundle(ctx, src, r, d)
		switch {
		case err != nil:
			f.fail(r.Digest.String(), err)
		case c != nil:
			f.candidates = append(f.candidates, c)
		}
	}
}

// firstOf returns as many of what may be signatures as are looked at. What was added beyond that hides none of them, and if they do not
// satisfy the policy, the refusal tells of the others.
func firstOf[T any](f *found, list []T) []T {
	if len(list) <= maxCandidates {
		return list
	}
	f.fail("", fmt.Errorf("there are %d signatures, of which the first %d were looked at: remove those that are not needed",
		len(list), maxCandidates))
	return list[:maxCandidates]
}

// readBundle reads one referrer. It is nil where it is something else.
func readBundle(ctx context.Context, src Source, r artifact.Descriptor, d artifact.Digest) (*candidate, error) {
	m, err := src.Manifest(ctx, r)
	if err != nil {
		return nil, err
	}
	if m.ArtifactType != bundleType {
		return nil, nil //nolint:nilnil // a referrer of another type is nothing to tell of
	}
	switch {
	case m.Subject.Digest != d:
		return nil, fmt.Errorf("its manifest is about %q, not this image", m.Subject.Digest)
	case len(m.Layers) != 1 || m.Layers[0].MediaType != bundleType:
		return nil, fmt.Errorf("its manifest is not valid: expected one layer of type %s", bundleType)
	}
	data, err := readSmall(ctx, src, m.Layers[0])
	if err != nil {
		return nil, err
	}
	b, err := parseBundle(data)
	if err != nil {
		return nil, err
	}
	return &candidate{format: v1alpha1.SignatureCosignV3, name: r.Digest.String(), bundle: b}, nil
}

func readSmall(ctx context.Context, src Source, d artifact.Descriptor) ([]byte, error) {
	if d.Size > maxBundle {
		return nil, fmt.Errorf("it has %d bytes, expected at most %d: %w", d.Size, maxBundle, artifact.ErrTooLarge)
	}
	return src.ReadBlob(ctx, d)
}

// parseBundle reads a bundle with an envelope; a signature of plain bytes is of a file, not of an image.
func parseBundle(data []byte) (b *bundle.Bundle, err error) {
	defer func() {
		if r := recover(); r != nil { // the library reads foreign bytes in many forms
			b, err = nil, fmt.Errorf("the bundle cannot be read: %v", r)
		}
	}()
	if len(data) > maxBundle {
		return nil, fmt.Errorf("the bundle has %d bytes, expected at most %d: %w", len(data), maxBundle, artifact.ErrTooLarge)
	}
	b = &bundle.Bundle{}
	if err := b.UnmarshalJSON(data); err != nil {
		return nil, fmt.Errorf("the bundle is not valid: %s", clip(err.Error()))
	}
	if b.MediaType != bundleType {
		return nil, fmt.Errorf("the bundle is of type %s, expected %s", clip(b.MediaType), bundleType)
	}
	if b.GetDsseEnvelope() == nil {
		return nil, errors.New("the bundle has no envelope: expected a signature of an image, as cosign sign makes it")
	}
	return b, nil
}

// isOf says whether what was signed says that it is a signature of the digest. The library does not look at what kind of statement it is.
func (c *candidate) isOf(d artifact.Digest, s *intoto.Statement) error {
	if c.payload != nil {
		return checkPayload(c.payload, d)
	}
	switch {
	case s == nil:
		return errors.New("it has no statement")
	case s.GetType() != intotoStatement:
		return fmt.Errorf("its statement is of type %q, expected %s", clip(s.GetType()), intotoStatement)
	case s.GetPredicateType() != signPredicate:
		return fmt.Errorf("it says something of the image, but is no signature: predicate type %q, expected %s",
			clip(s.GetPredicateType()), signPredicate)
	}
	for _, subject := range s.GetSubject() {
		if value, err := hex.DecodeString(subject.GetDigest()["sha256"]); err == nil && bytes.Equal(value, d[:]) {
			return nil
		}
	}
	return fmt.Errorf("it is a signature of another image, not of %s", d)
}
