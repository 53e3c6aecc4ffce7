// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// Source is a reference with the credentials to read it. It is safe for concurrent use. It keeps the registry's token, so make one for
// each pull, and a new one when the credentials change.
type Source struct {
	client    *Client
	ref       artifact.Reference
	keys      authn.Keychain
	endpoints []endpoint // the mirrors, and the registry itself

	turn     chan struct{} // guards sessions
	sessions map[endpoint]*session
}

// Reference is what is read.
func (s *Source) Reference() artifact.Reference { return s.ref }

// Resolve says which manifest the reference names now. It reads no blob, and succeeds only where these credentials may read it, so it
// also answers whether an object may have what the store holds already.
func (s *Source) Resolve(ctx context.Context) (d artifact.Descriptor, err error) {
	err = s.try(ctx, nothing, func(ctx context.Context, at *session) error {
		d, err = at.head(ctx, s.ref)
		return err
	})
	if err != nil {
		return artifact.Descriptor{}, fmt.Errorf("resolve %s: %w", s.ref, err)
	}
	return d, nil
}

// Manifest reads the manifest that Resolve returned, or one of an index's. Its bytes have d's digest and, where d says it, size.
func (s *Source) Manifest(ctx context.Context, d artifact.Descriptor) (m *artifact.Manifest, err error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	ref := s.ref.WithDigest(d.Digest)
	if d.Size > artifact.MaxManifest {
		return nil, fmt.Errorf("the manifest %s is %w: %d bytes, expected at most %d", ref, artifact.ErrTooLarge, d.Size, artifact.MaxManifest)
	}
	err = s.try(ctx, nothing, func(ctx context.Context, at *session) error {
		data, err := at.manifest(ctx, ref)
		if err == nil && d.Size > 0 && int64(len(data)) != d.Size {
			err = fmt.Errorf("%s: the manifest is %w: %d bytes, expected %d", at.host, artifact.ErrMismatch, len(data), d.Size)
		}
		if err == nil {
			m, err = artifact.ParseManifest(data)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the manifest %s: %w", ref, err)
	}
	return m, nil
}

// ReadBlob reads a blob of at most MaxSmall bytes, such as a config, into memory.
func (s *Source) ReadBlob(ctx context.Context, d artifact.Descriptor) ([]byte, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	if d.Size > artifact.MaxSmall {
		return nil, fmt.Errorf("the blob %s of %s is %w: %d bytes, expected at most %d",
			d.Digest, s.ref.Repository(), artifact.ErrTooLarge, d.Size, artifact.MaxSmall)
	}
	to := &memory{}
	if err := s.Pull(ctx, d, to); err != nil {
		return nil, err
	}
	return to.data, nil
}

func nothing() int64 { return 0 }

// gotOn is how much progress makes a failure the first one again. It keeps a registry that sends a little of a blob each time from
// being asked for ever.
const gotOn = 64 << 10

// try does something at the first endpoint where it succeeds, with pauses between the rounds. progress says how far it came.
func (s *Source) try(ctx context.Context, progress func() int64, act func(context.Context, *session) error) error {
	failed := make([]error, len(s.endpoints))
	furthest := progress()
	for round := 0; ; {
		for i, e := range s.endpoints {
			if failed[i] != nil && !artifact.IsRetryable(failed[i]) {
				continue
			}
			failed[i] = s.once(ctx, e, act)
			if failed[i] == nil || ctx.Err() != nil || artifact.IsLocal(failed[i]) {
				return failed[i]
			}
		}
		if n := progress(); n >= furthest+gotOn {
			furthest, round = n, 0
		}
		if round++; round >= s.client.config.Tries || !artifact.IsRetryable(joined(failed)) {
			return joined(failed)
		}
		if err := s.wait(ctx, round, failed); err != nil {
			return err
		}
	}
}

func (s *Source) once(ctx context.Context, e endpoint, act func(context.Context, *session) error) error {
	at, err := s.session(ctx, e)
	if err != nil {
		return err
	}
	if err = act(ctx, at); errors.Is(err, artifact.ErrUnauthorized) {
		s.forget(e, at) // with another token next time
	}
	return err
}

// session connects once for all who ask.
func (s *Source) session(ctx context.Context, e endpoint) (*session, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", e.host, context.Cause(ctx))
	}
	if at := s.sessions[e]; at != nil {
		return at, nil
	}
	at, err := s.client.connect(ctx, e, s.keys)
	if err == nil {
		s.sessions[e] = at
	}
	return at, err
}

func (s *Source) forget(e endpoint, at *session) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.sessions[e] == at {
		delete(s.sessions, e)
	}
}

// wait is the pause before the next round: longer each time, or as long as a registry asks for, and never exactly the same.
func (s *Source) wait(ctx context.Context, round int, failed []error) error {
	c := &s.client.config
	pause := c.MaxWait
	if shift := round - 1; shift < 16 {
		pause = min(c.Backoff<<shift, c.MaxWait)
	}
	pause -= time.Duration(rand.Int64N(int64(pause)/4 + 1)) //nolint:gosec // only spreads the load
	for _, err := range failed {
		pause = max(pause, RetryAfter(err))
	}
	if pause > c.MaxWait {
		return joined(failed)
	}
	timer := c.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w; before the next try: %w", joined(failed), context.Cause(ctx))
	}
}

// head asks for the manifest's digest, and reads the manifest where the registry does not say.
func (s *session) head(ctx context.Context, ref artifact.Reference) (artifact.Descriptor, error) {
	resp, err := s.ask(ctx, http.MethodHead, "manifests/"+ref.Identifier(), acceptManifests(), http.StatusOK, http.StatusMethodNotAllowed)
	if err != nil {
		return artifact.Descriptor{}, err
	}
	_ = resp.Body.Close()
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	digest, err := artifact.ParseDigest(resp.Header.Get("Docker-Content-Digest"))
	if resp.StatusCode != http.StatusOK || err != nil || resp.ContentLength <= 0 || mediaType == "" {
		data, err := s.manifest(ctx, ref)
		if err != nil {
			return artifact.Descriptor{}, err
		}
		m, err := artifact.ParseManifest(data)
		if err != nil {
			return artifact.Descriptor{}, err
		}
		return artifact.Descriptor{MediaType: m.MediaType, ArtifactType: m.ArtifactType, Digest: m.Digest, Size: int64(len(data))}, nil
	}
	if err := s.sameDigest(ref, digest); err != nil {
		return artifact.Descriptor{}, err
	}
	return artifact.Descriptor{MediaType: mediaType, Digest: digest, Size: resp.ContentLength}, nil
}

func acceptManifests() http.Header {
	return http.Header{"Accept": {
		string(types.OCIManifestSchema1), indexType, string(types.DockerManifestSchema2), string(types.DockerManifestList),
	}}
}

const indexType = string(types.OCIImageIndex)

func (s *session) manifest(ctx context.Context, ref artifact.Reference) ([]byte, error) {
	resp, err := s.ask(ctx, http.MethodGet, "manifests/"+ref.Identifier(), acceptManifests(), http.StatusOK)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, artifact.MaxManifest+1))
	if err != nil {
		return nil, err
	}
	if len(data) > artifact.MaxManifest {
		return nil, fmt.Errorf("%s: the manifest is %w: expected at most %d bytes", s.host, artifact.ErrTooLarge, artifact.MaxManifest)
	}
	return data, s.sameDigest(ref, artifact.DigestOf(data))
}

func (s *session) sameDigest(ref artifact.Reference, digest artifact.Digest) error {
	if want := ref.Digest(); !want.IsZero() && want != digest {
		return fmt.Errorf("%s: the manifest is %w: its digest is %s, expected %s", s.host, artifact.ErrMismatch, digest, want)
	}
	return nil
}
