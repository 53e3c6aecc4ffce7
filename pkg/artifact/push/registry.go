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

// ErrRefused means that the registry refuses this form of the manifest. Some refuse an artifactType.
var ErrRefused = errors.New("manifest refused")

// NewRepository returns the repository of a reference as a Target. Nil keys mean no credentials. Mirrors are not used. Without a transport
// in the configuration, the library's own sends the requests. Either way they go through the proxy of the environment.
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

// Repository is a repository of a registry. It is a Target.
type Repository struct {
	ref    artifact.Reference
	name   name.Repository
	pusher *remote.Pusher
}

// Blob implements Target.
func (r *Repository) Blob(ctx context.Context, d artifact.Descriptor, open Opener) error {
	if err := r.pusher.Upload(ctx, r.name, layerAdapter{ctx, d, open}); err != nil {
		return r.explain(fmt.Errorf("blob %s: %w", d.Digest, err))
	}
	return nil
}

// PutManifest implements Target. If the registry has no list of referrers, it updates the index at a tag that clients read instead.
func (r *Repository) PutManifest(ctx context.Context, m *artifact.Manifest) error {
	return r.put(ctx, r.name.Digest(m.Digest.String()), m)
}

// Tag implements Target. It refuses an empty tag, since readers would find the manifest only by its digest.
func (r *Repository) Tag(ctx context.Context, m *artifact.Manifest, tag string) error {
	if tag == "" {
		return fmt.Errorf("push to %s: expected a tag; the digest is what a push gives", r.ref)
	}
	return r.put(ctx, r.name.Tag(tag), m)
}

func (r *Repository) put(ctx context.Context, to name.Reference, m *artifact.Manifest) error {
	if err := r.pusher.Put(ctx, to, manifestAdapter{m}); err != nil {
		return r.explain(refusedManifest(err, m.Digest))
	}
	return nil
}

// refusedManifest marks the errors that another form of the manifest may avoid.
func refusedManifest(err error, d artifact.Digest) error {
	var told *transport.Error
	if errors.As(err, &told) && slices.Contains([]int{
		http.StatusBadRequest, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusNotAcceptable,
	}, told.StatusCode) {
		return fmt.Errorf("%w: %s: %w", ErrRefused, d, err)
	}
	return fmt.Errorf("manifest %s: %w", d, err)
}

// explain adds the repository and the next step.
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

// layerAdapter is a blob in the form of the library, which may read its bytes several times.
type layerAdapter struct {
	ctx  context.Context //nolint:containedctx // the library's interface has none
	d    artifact.Descriptor
	open Opener
}

func (l layerAdapter) Digest() (v1.Hash, error) {
	return v1.Hash{Algorithm: "sha256", Hex: l.d.Digest.Hex()}, nil
}

func (l layerAdapter) DiffID() (v1.Hash, error) { return l.Digest() }

func (l layerAdapter) Compressed() (io.ReadCloser, error) { return l.open(l.ctx) }

func (l layerAdapter) Uncompressed() (io.ReadCloser, error) { return l.Compressed() }

func (l layerAdapter) Size() (int64, error) { return l.d.Size, nil }

func (l layerAdapter) MediaType() (types.MediaType, error) {
	return types.MediaType(l.d.MediaType), nil
}

// manifestAdapter is a manifest in the form of the library.
type manifestAdapter struct{ manifest *artifact.Manifest }

func (d manifestAdapter) RawManifest() ([]byte, error) { return d.manifest.Raw, nil }

func (d manifestAdapter) MediaType() (types.MediaType, error) {
	return types.MediaType(d.manifest.MediaType), nil
}
