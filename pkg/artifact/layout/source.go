// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// Source is one entry of a layout, with the methods of a registry.Source.
type Source struct {
	*Layout
	tag    string
	digest artifact.Digest
	as     artifact.Reference
}

// Source returns the entry with the digest. A zero digest means the entry with the tag, and no tag the only image. as is the repository
// that the image has or will have in a registry, which decides which policies apply. It may be zero if no policy is asked.
func (l *Layout) Source(tag string, digest artifact.Digest, as artifact.Reference) *Source {
	return &Source{Layout: l, tag: tag, digest: digest, as: as}
}

// Reference returns the repository of the image, for policies.
func (s *Source) Reference() artifact.Reference { return s.as }

// Resolve returns the manifest of the entry.
func (s *Source) Resolve(_ context.Context) (artifact.Descriptor, error) {
	d, err := s.resolve()
	if err != nil {
		return artifact.Descriptor{}, s.wrap(err)
	}
	return d, nil
}

func (s *Source) resolve() (artifact.Descriptor, error) {
	x, err := s.index()
	if err != nil {
		return artifact.Descriptor{}, err
	}
	if !s.digest.IsZero() {
		return s.byDigest(x)
	}
	found, err := s.named(x, s.tag)
	if err != nil {
		return artifact.Descriptor{}, err
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case s.tag != "":
		return artifact.Descriptor{}, fmt.Errorf("tag %q: %w among %d entries of %s: name one by its tag or digest",
			s.tag, artifact.ErrNotFound, len(x.entries), indexFile)
	}
	return artifact.Descriptor{}, fmt.Errorf("%w: %d images in %s: name one by its tag or digest",
		artifact.ErrNotFound, len(found), indexFile)
}

// byDigest finds a manifest that index.json names, or one that is only an entry of an index.
func (s *Source) byDigest(x *index) (artifact.Descriptor, error) {
	for _, d := range x.entries {
		if d.Digest == s.digest {
			return d, nil
		}
	}
	data, err := s.content(artifact.Descriptor{Digest: s.digest}, artifact.MaxManifest)
	if err != nil {
		return artifact.Descriptor{}, err
	}
	m, err := artifact.ParseManifest(data)
	if err != nil {
		return artifact.Descriptor{}, err
	}
	return artifact.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: int64(len(data))}, nil
}

// signatureTag matches tags of manifests that are about another one: its signatures, or the list of its referrers.
var signatureTag = regexp.MustCompile(`^sha256-[0-9a-f]{64}(\.[a-z]+)?$`)

// named returns the distinct manifests with the tag. Without a tag it returns the images that have none or, if all have one, all images.
func (s *Source) named(x *index, tag string) ([]artifact.Descriptor, error) {
	var with, without []artifact.Descriptor
	for _, d := range x.entries {
		name := d.Annotations[refName]
		if tag != "" && name == tag {
			with = appendUnique(with, d)
		}
		if tag != "" || signatureTag.MatchString(name) || !d.IsManifest() {
			continue
		}
		subject, err := s.subjectOf(d)
		if err != nil {
			return nil, err
		}
		if !subject.IsZero() {
			continue
		}
		if name == "" {
			without = appendUnique(without, d)
		}
		with = appendUnique(with, d)
	}
	if len(with) > 1 && tag != "" {
		return nil, invalid("%s: %d manifests have the tag %q: name one by its digest", indexFile, len(with), tag)
	}
	if len(without) > 0 {
		return without, nil
	}
	return with, nil
}

func appendUnique(list []artifact.Descriptor, d artifact.Descriptor) []artifact.Descriptor {
	if slices.ContainsFunc(list, func(other artifact.Descriptor) bool { return other.Digest == d.Digest }) {
		return list
	}
	return append(list, d)
}

// subjectOf returns the subject of an entry's manifest. It is zero if the manifest is not in the layout.
func (l *Layout) subjectOf(d artifact.Descriptor) (artifact.Digest, error) {
	m, err := l.manifest(d)
	switch {
	case errors.Is(err, artifact.ErrNotFound):
		return artifact.Digest{}, nil
	case err != nil:
		return artifact.Digest{}, err
	}
	return m.Subject.Digest, nil
}

func (l *Layout) manifest(d artifact.Descriptor) (*artifact.Manifest, error) {
	data, err := l.content(d, artifact.MaxManifest)
	if err != nil {
		return nil, l.wrap(fmt.Errorf("manifest %s: %w", d.Digest, err))
	}
	m, err := artifact.ParseManifest(data)
	if err != nil {
		return nil, l.wrap(fmt.Errorf("manifest %s: %w", d.Digest, err))
	}
	return m, nil
}

// Manifest reads a manifest or index.
func (l *Layout) Manifest(_ context.Context, d artifact.Descriptor) (*artifact.Manifest, error) {
	return l.manifest(d)
}

// ReadBlob reads a blob of at most artifact.MaxSmall bytes into memory.
func (l *Layout) ReadBlob(_ context.Context, d artifact.Descriptor) ([]byte, error) {
	data, err := l.content(d, artifact.MaxSmall)
	if err != nil {
		return nil, l.wrap(fmt.Errorf("blob %s: %w", d.Digest, err))
	}
	return data, nil
}

// Open opens a blob of any size to be read from its beginning. The caller must compare the digest.
func (l *Layout) Open(_ context.Context, d artifact.Descriptor) (io.ReadCloser, error) {
	return l.File(d)
}

// File opens a blob of any size, and checks the size. The caller must compare the digest.
func (l *Layout) File(d artifact.Descriptor) (*os.File, error) {
	f, size, err := l.open(blobPath(d.Digest))
	if err != nil {
		return nil, l.wrap(fmt.Errorf("blob %s: %w", d.Digest, err))
	}
	if size != d.Size {
		err := fmt.Errorf("blob %s is %w: %d bytes, expected %d", d.Digest, artifact.ErrMismatch, size, d.Size)
		return nil, l.wrap(errors.Join(err, f.Close()))
	}
	return f, nil
}

// Tagged reads the manifest with the tag.
func (l *Layout) Tagged(_ context.Context, tag string) (*artifact.Manifest, error) {
	x, err := l.index()
	if err != nil {
		return nil, l.wrap(err)
	}
	var found []artifact.Descriptor
	for _, d := range x.entries {
		if d.Annotations[refName] == tag && tag != "" {
			found = appendUnique(found, d)
		}
	}
	switch len(found) {
	case 1:
		return l.manifest(found[0])
	case 0:
		return nil, l.wrap(fmt.Errorf("tag %q: %w", tag, artifact.ErrNotFound))
	}
	return nil, l.wrap(invalid("%s: %d manifests have the tag %q", indexFile, len(found), tag))
}

// maxScan is how many bytes of manifests are read to find those that have a subject.
const maxScan = 64 << 20

// Referrers lists manifests whose subject is the digest and which may have the artifact type, as registry.Source does.
func (l *Layout) Referrers(ctx context.Context, d artifact.Digest, artifactType string) ([]artifact.Descriptor, error) {
	x, err := l.index()
	if err != nil {
		return nil, l.wrap(err)
	}
	var list []artifact.Descriptor
	left := int64(maxScan)
	for _, entry := range x.entries {
		if err := ctx.Err(); err != nil {
			return nil, l.wrap(err)
		}
		if left -= entry.Size; left < 0 {
			return nil, l.wrap(fmt.Errorf("the manifests that %s names are %w: expected at most %d bytes", indexFile, artifact.ErrTooLarge, maxScan))
		}
		m, err := l.manifest(entry)
		if err != nil {
			// A manifest that cannot be read is passed over: a missing signature leads to a refusal, never to an approval.
			continue
		}
		if m.Subject.Digest == d && m.ArtifactType == artifactType {
			list = appendUnique(list, artifact.Descriptor{
				MediaType: m.MediaType, ArtifactType: m.ArtifactType, Digest: m.Digest, Size: int64(len(m.Raw)), Annotations: m.Annotations,
			})
		}
	}
	m, err := l.Tagged(ctx, strings.Replace(d.String(), ":", "-", 1))
	switch {
	case errors.Is(err, artifact.ErrNotFound):
		return list, nil
	case err != nil:
		return nil, err
	}
	for _, r := range m.Manifests {
		if r.ArtifactType == artifactType || r.ArtifactType == "" {
			list = appendUnique(list, r)
		}
	}
	return list, nil
}
