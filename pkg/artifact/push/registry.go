// SPDX-License-Identifier: Apache-2.0

package push

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

// ErrRefused: the registry does not take the manifest as it is. Some refuse an artifactType.
var ErrRefused = errors.New("manifest refused")

// Registry is how a registry is reached to push to it.
type Registry struct {
	// Keys are the credentials; nil: none.
	Keys authn.Keychain
	// PlainHTTP are the hosts that are spoken to in plain http, as in registry.Config. Mirrors are not for pushing.
	PlainHTTP []string
	// Transport makes the requests. Nil: the library's.
	Transport http.RoundTripper
	// UserAgent is prepended to the library's own.
	UserAgent string
}

// Repository is the one of a reference, as a Target.
func (r Registry) Repository(ref artifact.Reference) (*Repository, error) {
	repository, err := name.NewRepository(ref.Repository())
	if err != nil {
		return nil, fmt.Errorf("push to %s: %w", ref, err)
	}
	pusher, err := remote.NewPusher(r.options(repository)...)
	if err != nil {
		return nil, fmt.Errorf("push to %s: %w", ref, err)
	}
	return &Repository{ref: ref, name: repository, pusher: pusher}, nil
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

// Repository is one of a registry. It is a Target.
type Repository struct {
	ref    artifact.Reference
	name   name.Repository
	pusher *remote.Pusher
}

// Blob is Target.
func (r *Repository) Blob(ctx context.Context, d artifact.Descriptor, open Opener) error {
	if err := r.pusher.Upload(ctx, r.name, layer{ctx, d, open}); err != nil {
		return r.explain(fmt.Errorf("blob %s: %w", d.Digest, err))
	}
	return nil
}

// PutManifest is Target. Where the registry has no list of referrers, the index at a tag is kept that clients look at instead.
func (r *Repository) PutManifest(ctx context.Context, m *artifact.Manifest) error {
	return r.put(ctx, r.name.Digest(m.Digest.String()), m)
}

// Tag is Target.
func (r *Repository) Tag(ctx context.Context, m *artifact.Manifest, tag string) error {
	if tag == "" {
		return r.PutManifest(ctx, m)
	}
	return r.put(ctx, r.name.Tag(tag), m)
}

func (r *Repository) put(ctx context.Context, to name.Reference, m *artifact.Manifest) error {
	if err := r.pusher.Put(ctx, to, document{m}); err != nil {
		return r.explain(refusedManifest(err, m.Digest))
	}
	return nil
}

// refusedManifest tells what another form of the manifest may change from everything else.
func refusedManifest(err error, d artifact.Digest) error {
	var told *transport.Error
	if errors.As(err, &told) && slices.Contains([]int{
		http.StatusBadRequest, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusNotAcceptable,
	}, told.StatusCode) {
		return fmt.Errorf("%w: %s: %w", ErrRefused, d, err)
	}
	return fmt.Errorf("manifest %s: %w", d, err)
}

// explain adds where, and what to do next.
func (r *Repository) explain(err error) error {
	var told *transport.Error
	switch {
	case errors.As(err, &told) && (told.StatusCode == http.StatusUnauthorized || told.StatusCode == http.StatusForbidden):
		err = fmt.Errorf("%w: log in to %s as somebody who may push there", err, r.ref.Registry())
	case errors.Is(err, http.ErrSchemeMismatch):
		err = fmt.Errorf("%w: %s speaks plain http; allow that for this host if it is meant to", artifact.ErrPlainHTTP, r.ref.Registry())
	}
	return fmt.Errorf("push to %s: %w", r.ref, err)
}

// layer is a blob as the library wants one, which may ask for its bytes several times.
type layer struct {
	ctx  context.Context //nolint:containedctx // the library's interface has none
	d    artifact.Descriptor
	open Opener
}

func (l layer) Digest() (v1.Hash, error) {
	return v1.Hash{Algorithm: "sha256", Hex: l.d.Digest.Hex()}, nil
}

func (l layer) DiffID() (v1.Hash, error) { return l.Digest() }

func (l layer) Compressed() (io.ReadCloser, error) { return l.open(l.ctx) }

func (l layer) Uncompressed() (io.ReadCloser, error) { return l.Compressed() }

func (l layer) Size() (int64, error) { return l.d.Size, nil }

func (l layer) MediaType() (types.MediaType, error) { return types.MediaType(l.d.MediaType), nil }

// document is a manifest as the library wants one.
type document struct{ manifest *artifact.Manifest }

func (d document) RawManifest() ([]byte, error) { return d.manifest.Raw, nil }

func (d document) MediaType() (types.MediaType, error) {
	return types.MediaType(d.manifest.MediaType), nil
}
