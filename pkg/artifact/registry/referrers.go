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
	"strings"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

const (
	// maxReferrerPages is how many answers a list of referrers may come in.
	maxReferrerPages = 16
	// maxReferrers is how many referrers they may name together.
	maxReferrers = 1024
)

// emptyType is the media type of a config that says nothing. Some registries give it as the artifact type of a manifest that has its own.
const emptyType = "application/vnd.oci.empty.v1+json"

// errNoReferrers is for an endpoint that knows of none; another may.
var errNoReferrers = fmt.Errorf("%w: no referrers", artifact.ErrNotFound)

// Tagged reads what a tag of the same repository names now, whatever the reference says.
func (s *Source) Tagged(ctx context.Context, tag string) (m *artifact.Manifest, err error) {
	ref, err := s.ref.WithTag(tag)
	if err != nil {
		return nil, err
	}
	err = s.try(ctx, nothing, func(ctx context.Context, at *session) error {
		data, err := at.manifest(ctx, ref)
		if err == nil {
			m, err = artifact.ParseManifest(data)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", ref, err)
	}
	return m, nil
}

// Referrers lists the manifests of the repository that say to be about the digest and may be of the artifact type, which only they
// themselves tell for sure: from the registry's list of referrers or, where it has none, the index that clients keep at the tag
// sha256-HEX. Nobody vouches for the list; it may lack some and name others. Of mirrors and the registry, the first that knows of any
// counts. There may be none.
func (s *Source) Referrers(ctx context.Context, d artifact.Digest, artifactType string) (list []artifact.Descriptor, err error) {
	err = s.try(ctx, nothing, func(ctx context.Context, at *session) error {
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
			return errNoReferrers
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

// referrers asks the registry's list, page by page, and then the tag.
func (s *session) referrers(
	ctx context.Context, ref artifact.Reference, d artifact.Digest, artifactType string,
) (list []artifact.Descriptor, err error) {
	query := url.Values{"artifactType": {artifactType}}.Encode()
	for range maxReferrerPages {
		page, next, err := s.referrersPage(ctx, "referrers/"+d.String(), query)
		if err != nil {
			return nil, err
		}
		if page == nil {
			return s.referrersTag(ctx, ref, d)
		}
		if list = append(list, page...); len(list) > maxReferrers {
			return nil, fmt.Errorf("%s: the list of referrers is %w: expected at most %d", s.host, artifact.ErrTooLarge, maxReferrers)
		}
		if query = next; query == "" {
			return list, nil
		}
	}
	return nil, fmt.Errorf("%s: the list of referrers is %w: expected at most %d pages", s.host, artifact.ErrTooLarge, maxReferrerPages)
}

// referrersPage reads one answer, and the query of the next. It is nil where the registry has no such list.
func (s *session) referrersPage(ctx context.Context, path, query string) (list []artifact.Descriptor, next string, err error) {
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
	data, err := io.ReadAll(io.LimitReader(resp.Body, artifact.MaxManifest+1))
	if err != nil {
		return nil, "", err
	}
	if next, err = nextPage(resp.Header.Get("Link")); err != nil {
		return nil, "", fmt.Errorf("%s: %w", s.host, err)
	}
	list, err = parseReferrers(data)
	return list, next, err
}

// referrersTag reads the index of registries without a list. It has whatever anybody with the right to push put there.
func (s *session) referrersTag(ctx context.Context, ref artifact.Reference, d artifact.Digest) ([]artifact.Descriptor, error) {
	ref, err := ref.WithTag(strings.Replace(d.String(), ":", "-", 1))
	if err != nil {
		return nil, err
	}
	data, err := s.manifest(ctx, ref)
	if err != nil {
		return nil, err
	}
	return parseReferrers(data)
}

// parseReferrers reads an index and never returns nil without an error.
func parseReferrers(data []byte) ([]artifact.Descriptor, error) {
	m, err := artifact.ParseManifest(data)
	if err != nil {
		return nil, fmt.Errorf("the list of referrers: %w", err)
	}
	if !m.IsIndex() {
		return nil, fmt.Errorf("the list of referrers is %w: expected an index, not %s", artifact.ErrInvalid, quote(m.MediaType))
	}
	return m.Manifests, nil
}

// nextPage takes the query out of a Link header. Where else it leads is not followed: the next page is of the same list.
func nextPage(link string) (string, error) {
	if link == "" {
		return "", nil
	}
	target, parameters, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(link), "<"), ">")
	if !ok || !strings.Contains(strings.ReplaceAll(parameters, `"`, ""), "rel=next") {
		return "", fmt.Errorf(`the link to more referrers is %w: %s: expected <URL>; rel="next"`, artifact.ErrInvalid, quote(link))
	}
	next, err := url.Parse(target)
	if err != nil || next.RawQuery == "" {
		return "", fmt.Errorf("the link to more referrers is %w: %s: expected a URL with a query", artifact.ErrInvalid, quote(link))
	}
	return next.Query().Encode(), nil
}
