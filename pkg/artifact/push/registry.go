// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
)

// ErrRefused: the registry does not take the manifest as it is. Some refuse an artifactType.
var ErrRefused = errors.New("manifest refused")

// NewRepository is the repository of a reference, as a Target. Without keys there are no credentials. Mirrors are not for pushing, and
// without a transport the requests go as the library sends them, through the proxy of the environment.
func NewRepository(ref artifact.Reference, config registry.Config, keys authn.Keychain) (*Repository, error) {
	repository, err := name.NewRepository(ref.Repository())
	if err != nil {
		return nil, fmt.Errorf("push to %s: %w", ref, err)
	}
	inner := config.Transport
	if keys == nil {
		keys = authn.NewMultiKeychain()
	}
	if inner == nil {
		inner = remote.DefaultTransport
	}
	secure := registry.GuardScheme(inner, config.PlainHTTP, repository.RegistryStr())
	pusher, err := remote.NewPusher(remote.WithAuthFromKeychain(keys), remote.WithTransport(secure), remote.WithUserAgent(config.UserAgent))
	if err != nil {
		return nil, fmt.Errorf("push to %s: %w", ref, err)
	}
	return &Repository{ref: ref, name: repository, pusher: pusher}, nil
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

// Tag is Target. In a registry readers find nothing without a tag but by its digest.
func (r *Repository) Tag(ctx context.Context, m *artifact.Manifest, tag string) error {
	if tag == "" {
		return fmt.Errorf("push to %s: expected a tag; the digest is what a push gives", r.ref)
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
		err = registry.PlainHTTPRefused(r.ref.Registry())
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
