// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// ErrRefused: the registry does not take the manifest as it is. Some refuse an artifactType; see About.Untyped.
var ErrRefused = errors.New("manifest refused")

// Registry is how a registry is reached to push to it.
type Registry struct {
	// Keys are the credentials; nil: none.
	Keys authn.Keychain
	// PlainHTTP are the hosts that are spoken to in plain http, as in artifact.ClientConfig. Mirrors are not for pushing.
	PlainHTTP []string
	// Transport makes the requests. Nil: the library's.
	Transport http.RoundTripper
	// UserAgent is prepended to the library's own.
	UserAgent string
}

// Push brings an artifact to the reference, which has a tag: first the blobs, then the manifests, the root last, so that a tag never
// names what is not there.
func (r Registry) Push(ctx context.Context, a *Artifact, ref artifact.Reference) error {
	if ref.Tag() == "" {
		return fmt.Errorf("push to %s: expected a tag; the digest is what a push gives", ref)
	}
	if err := r.push(ctx, a, ref); err != nil {
		return fmt.Errorf("push to %s: %w", ref, r.explain(err, ref))
	}
	return nil
}

func (r Registry) push(ctx context.Context, a *Artifact, ref artifact.Reference) error {
	repository, err := name.NewRepository(ref.Repository())
	if err != nil {
		return err
	}
	pusher, err := remote.NewPusher(r.options(repository)...)
	if err != nil {
		return err
	}
	for _, b := range a.Blobs {
		if err := pusher.Upload(ctx, repository, layer{b}); err != nil {
			return fmt.Errorf("blob %s: %w", b.Digest, err)
		}
	}
	for _, m := range a.Manifests {
		var to name.Reference = repository.Digest(m.Digest.String())
		if m.Digest == a.Root.Digest {
			to = repository.Tag(ref.Tag())
		}
		if err := pusher.Put(ctx, to, document{m}); err != nil {
			return refusedManifest(err, m)
		}
	}
	return nil
}

func (r Registry) options(repository name.Repository) []remote.Option {
	keys, inner := r.Keys, r.Transport
	if keys == nil {
		keys = authn.NewMultiKeychain()
	}
	if inner == nil {
		inner = remote.DefaultTransport
	}
	secure := &schemes{inner: inner, host: repository.RegistryStr(), plain: r.isPlain}
	return []remote.Option{remote.WithAuthFromKeychain(keys), remote.WithTransport(secure), remote.WithUserAgent(r.UserAgent)}
}

// isPlain says whether a host is one of the list.
func (r Registry) isPlain(host string) bool {
	address := func(host string) string { return strings.TrimSuffix(strings.ToLower(host), ":80") }
	return slices.ContainsFunc(r.PlainHTTP, func(listed string) bool { return address(listed) == address(host) })
}

// schemes decides between http and https, which the library guesses: a host on loopback or in a private network gets its password in
// plain http otherwise.
type schemes struct {
	inner http.RoundTripper
	host  string
	plain func(host string) bool
}

func (s *schemes) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	switch {
	case s.plain(req.URL.Host):
		req.URL.Scheme = "http"
	case req.URL.Host == s.host:
		req.URL.Scheme = "https"
	case req.URL.Scheme != "https":
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, fmt.Errorf("%s: %w", req.URL.Host, artifact.ErrPlainHTTP)
	}
	return s.inner.RoundTrip(req)
}

// refusedManifest tells what another form of the manifest may change from everything else.
func refusedManifest(err error, m Manifest) error {
	var told *transport.Error
	if errors.As(err, &told) && slices.Contains([]int{
		http.StatusBadRequest, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusNotAcceptable,
	}, told.StatusCode) {
		return fmt.Errorf("%w: %s: %w", ErrRefused, m.Digest, err)
	}
	return fmt.Errorf("manifest %s: %w", m.Digest, err)
}

// explain adds what to do next.
func (r Registry) explain(err error, ref artifact.Reference) error {
	var told *transport.Error
	switch {
	case errors.As(err, &told) && (told.StatusCode == http.StatusUnauthorized || told.StatusCode == http.StatusForbidden):
		return fmt.Errorf("%w: log in to %s as somebody who may push there", err, ref.Registry())
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("%w: %s speaks plain http; allow that for this host if it is meant to", artifact.ErrPlainHTTP, ref.Registry())
	}
	return err
}

// layer is a blob as the library wants one.
type layer struct{ blob Blob }

func (l layer) Digest() (v1.Hash, error) {
	return v1.Hash{Algorithm: "sha256", Hex: l.blob.Digest.Hex()}, nil
}

func (l layer) DiffID() (v1.Hash, error) { return l.Digest() }

func (l layer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(io.NewSectionReader(l.blob.Content, 0, l.blob.Size)), nil
}

func (l layer) Uncompressed() (io.ReadCloser, error) { return l.Compressed() }

func (l layer) Size() (int64, error) { return l.blob.Size, nil }

func (l layer) MediaType() (types.MediaType, error) { return types.MediaType(l.blob.MediaType), nil }

// document is a manifest as the library wants one.
type document struct{ manifest Manifest }

func (d document) RawManifest() ([]byte, error) { return d.manifest.Raw, nil }

func (d document) MediaType() (types.MediaType, error) {
	return types.MediaType(d.manifest.MediaType), nil
}
