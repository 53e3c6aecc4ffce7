// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

const (
	// maxReferrerPages is how many pages a list of referrers may have.
	maxReferrerPages = 16
	// maxReferrers is how many referrers all pages may list together.
	maxReferrers = 1024
)

// emptyType is the media type of an empty config. Some registries report it as the artifact type of a manifest that has another one.
const emptyType = "application/vnd.oci.empty.v1+json"

// errNoReferrers means that this endpoint lists none. Another may.
var errNoReferrers = fmt.Errorf("%w: no referrers", artifact.ErrNotFound)

// Tagged reads the manifest that a tag of the same repository names now.
func (s *Source) Tagged(ctx context.Context, tag string) (m *artifact.Manifest, err error) {
	ref, err := s.ref.WithTag(tag)
	if err != nil {
		return nil, err
	}
	err = s.retry(ctx, nothing, func(ctx context.Context, at *session) error {
		m, err = at.manifest(ctx, ref)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ref, err)
	}
	return m, nil
}

// Referrers lists manifests of the repository whose subject is the digest and which may have the artifact type. It reads the list of
// referrers of the registry or, if the registry has no such list, the index at the tag sha256-HEX, which clients maintain. The first of
// mirrors and registry that lists any is used. The list may be empty.
//
// The list is not trustworthy: it may lack referrers and name others. The caller must read each manifest to know its subject and type.
func (s *Source) Referrers(ctx context.Context, d artifact.Digest, artifactType string) (list []artifact.Descriptor, err error) {
	err = s.retry(ctx, nothing, func(ctx context.Context, at *session) error {
		all, err := at.referrers(ctx, s.ref, d, artifactType)
		if err != nil {
			return err
		}
		list = list[:0]
		for _, r := range all {
			if r.ArtifactType == artifactType || r.ArtifactType == "" || r.ArtifactType == emptyType {
				list = append(list, r)
			}
		}
		if len(list) == 0 {
			return told{errNoReferrers}
		}
		return nil
	})
	switch {
	case err == nil:
		return list, nil
	case errors.Is(err, artifact.ErrNotFound) && !artifact.IsRetryable(err):
		return nil, nil
	}
	return nil, fmt.Errorf("list the referrers of %s: %w", s.ref.WithDigest(d), err)
}

// referrers reads the registry's list, page by page, or the tag.
func (s *session) referrers(
	ctx context.Context, ref artifact.Reference, d artifact.Digest, artifactType string,
) (list []artifact.Descriptor, err error) {
	query := url.Values{"artifactType": {artifactType}}.Encode()
	left := int64(artifact.MaxManifest) // of all pages, since the annotations of all are kept
	for n := range maxReferrerPages {
		page, next, err := s.referrersPage(ctx, "referrers/"+d.String(), query, &left)
		if err != nil {
			return nil, err
		}
		switch {
		case page == nil && n > 0:
			return nil, fmt.Errorf("%s is %w: its list of referrers broke off after %d pages", s.host, artifact.ErrUnavailable, n)
		case page == nil:
			return s.referrersTag(ctx, ref, d)
		}
		if list = append(list, page...); len(list) > maxReferrers {
			return nil, told{fmt.Errorf("%s: the list of referrers is %w: expected at most %d", s.host, artifact.ErrTooLarge, maxReferrers)}
		}
		if query = next; query == "" {
			return list, nil
		}
	}
	return nil, told{fmt.Errorf("%s: the list of referrers is %w: expected at most %d pages", s.host, artifact.ErrTooLarge, maxReferrerPages)}
}

// referrersPage reads one page, and the query of the next page. The page is nil if the registry has no list of referrers. left is how many
// bytes this page and the next ones may have.
func (s *session) referrersPage(
	ctx context.Context, path, query string, left *int64,
) (list []artifact.Descriptor, next string, err error) {
	resp, err := s.ask(ctx, http.MethodGet, path+"?"+query, http.Header{"Accept": {indexType}},
		http.StatusOK, http.StatusNotFound, http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK || mediaType != indexType {
		return nil, "", nil
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, *left+1))
	if err != nil {
		return nil, "", err
	}
	if *left -= int64(len(data)); *left < 0 {
		return nil, "", s.tell(resp, true, fmt.Errorf("%s: the list of referrers is %w: expected at most %d bytes",
			s.host, artifact.ErrTooLarge, artifact.MaxManifest))
	}
	if next, err = nextPage(resp.Header.Values("Link")); err != nil {
		return nil, "", s.tell(resp, true, fmt.Errorf("%s: %w", s.host, err))
	}
	list, err = parseReferrers(data)
	return list, next, s.tell(resp, true, err)
}

// referrersTag reads the index at the tag, for registries without a list of referrers. Anyone who may push can write it.
func (s *session) referrersTag(ctx context.Context, ref artifact.Reference, d artifact.Digest) ([]artifact.Descriptor, error) {
	ref, err := ref.WithTag(strings.Replace(d.String(), ":", "-", 1))
	if err != nil {
		return nil, err
	}
	return readManifest(ctx, s, ref, parseReferrers)
}

// parseReferrers reads an index and never returns nil without an error.
func parseReferrers(data []byte) ([]artifact.Descriptor, error) {
	list, err := artifact.ParseReferrers(data)
	if err != nil {
		return nil, fmt.Errorf("the list of referrers: %w", err)
	}
	return list, nil
}

// nextPage returns the query of the link to the next page among the Link headers of a page, or "" on the last page. It ignores host and
// path: the next page is of the same list.
func nextPage(headers []string) (string, error) {
	for _, header := range headers {
		links, err := parseLinks(header)
		if err != nil {
			return "", err
		}
		for _, l := range links {
			if !slices.Contains(l.relations, "next") {
				continue
			}
			next, err := url.Parse(l.target)
			if err != nil || next.RawQuery == "" {
				return "", fmt.Errorf("the link to more referrers is %w: %s: expected a URL with a query", artifact.ErrInvalid, quote(header))
			}
			return next.Query().Encode(), nil
		}
	}
	return "", nil
}
