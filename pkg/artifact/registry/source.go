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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// Source reads one reference with one set of credentials. It is safe for concurrent use. It keeps the registry's token, so make a new
// Source for each pull and when the credentials change.
type Source struct {
	client    *Client
	ref       artifact.Reference
	keys      authn.Keychain
	endpoints []endpoint  // the mirrors, then the registry itself
	tenant    bool        // see TenantSource
	allowed   atomic.Bool // the owners were asked, see askOwners
	mirrored  atomic.Bool // a mirror was asked for a blob
	resumed   atomic.Bool // a stream began with bytes of the store
	mixed     atomic.Bool // see Mixed
	received  *atomic.Int64
	idle      sync.Map // endpoints of mirrors that failed after a long time

	lock     chan struct{} // locks sessions
	sessions map[endpoint]*session
}

// Reference returns the reference that the source reads.
func (s *Source) Reference() artifact.Reference { return s.ref }

// CountInto adds the bytes of all answers to n, so that a caller sees whether the source still brings something. It is called before the
// first request.
func (s *Source) CountInto(n *atomic.Int64) { s.received = n }

// Direct returns a source that asks no mirror, nil if this one has none. If the registry may not be asked, it returns one without the first
// mirror, nil if there is no other: a mirror that lies must not be all that is ever asked.
func (s *Source) Direct() *Source {
	u := s.client.Source(s.ref, s.keys)
	if s.client.mirrorsOnly[s.ref.Registry()] {
		u.endpoints = s.endpoints[min(1, len(s.endpoints)):]
	} else {
		u.endpoints = slices.DeleteFunc(u.endpoints, func(e endpoint) bool { return e.mirror != nil })
	}
	if len(u.endpoints) == 0 || len(u.endpoints) == len(s.endpoints) {
		return nil
	}
	u.tenant, u.received = s.tenant, s.received
	u.allowed.Store(s.allowed.Load())
	return u
}

// Resolve returns the manifest that the reference names now. It reads no blob. It succeeds only if the credentials may read the manifest,
// so it also tells whether an object may use content that the store already has. For a tenant no mirror answers that, see askOwners.
func (s *Source) Resolve(ctx context.Context) (d artifact.Descriptor, err error) {
	own, err := s.askOwners(ctx)
	switch {
	case err != nil:
	case own != nil:
		d = *own
	default:
		err = s.retryAt(ctx, s.endpoints, nothing, func(ctx context.Context, at *session) error {
			d, err = at.head(ctx, s.ref)
			return err
		})
	}
	if err != nil {
		return artifact.Descriptor{}, fmt.Errorf("resolve %s: %w", s.ref, err)
	}
	return d, nil
}

// Manifest reads the manifest that Resolve returned, or an entry of an index. It checks the digest of d and, if it is not 0, the size.
func (s *Source) Manifest(ctx context.Context, d artifact.Descriptor) (m *artifact.Manifest, err error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	ref := s.ref.WithDigest(d.Digest)
	if d.Size > artifact.MaxManifest {
		return nil, fmt.Errorf("the manifest %s is %w: %d bytes, expected at most %d", ref, artifact.ErrTooLarge, d.Size, artifact.MaxManifest)
	}
	err = s.retry(ctx, nothing, func(ctx context.Context, at *session) error {
		m, err = at.manifest(ctx, ref)
		if err == nil && d.Size > 0 && int64(len(m.Raw)) != d.Size {
			return told{fmt.Errorf("%s: the manifest is %w: %d bytes, expected %d", at.host, artifact.ErrMismatch, len(m.Raw), d.Size)}
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

// minProgress is how many bytes must arrive before failed tries are counted from the beginning again. So a registry that sends a few bytes
// each time is not asked forever.
const minProgress = 64 << 10

// retry asks the owners, once, and then calls act for each endpoint as retryAt does.
func (s *Source) retry(ctx context.Context, progress func() int64, act func(context.Context, *session) error) error {
	if !s.allowed.Load() {
		if _, err := s.askOwners(ctx); err != nil {
			return err
		}
	}
	return s.retryAt(ctx, s.endpoints, progress, act)
}

// retryAt calls act for each endpoint in turn until one call succeeds, with pauses between the rounds. progress returns how many bytes
// have arrived. All that a source asks is asked here.
func (s *Source) retryAt(
	ctx context.Context, endpoints []endpoint, progress func() int64, act func(context.Context, *session) error,
) error {
	if err := artifact.CheckNetwork(ctx); err != nil {
		return err
	}
	endpoints = s.ordered(endpoints)
	failed := make([]error, len(endpoints))
	furthest := progress()
	for round := 0; ; {
		for i, e := range endpoints {
			if failed[i] != nil && !s.askable(failed[i]) {
				continue
			}
			failed[i] = s.persist(ctx, e, i == len(endpoints)-1, progress, act)
			if failed[i] == nil {
				return nil
			}
			if ctx.Err() != nil || artifact.IsLocal(failed[i]) {
				s.report(ctx, failed[i:i+1])
				return failed[i]
			}
		}
		if n := progress(); n >= furthest+minProgress {
			furthest, round = n, 0
		}
		if round++; round >= s.client.config.Tries || !slices.ContainsFunc(failed, s.askable) {
			s.report(ctx, failed)
			return joinErrors(failed)
		}
		if err := s.wait(ctx, round, failed); err != nil {
			s.report(ctx, failed)
			return err
		}
	}
}

// persist calls act for one endpoint. A mirror that broke off after it brought something is asked for the rest, after a short pause: if
// all nodes went on at the registry whenever a peer goes away, the registry would have to bring most of it. The last endpoint is not asked
// again here, but in the next round.
func (s *Source) persist(
	ctx context.Context, e endpoint, last bool, progress func() int64, act func(context.Context, *session) error,
) error {
	for try := 1; ; try++ {
		before, begun := progress(), s.client.config.Clock.Now()
		err := s.attempt(ctx, e, act)
		if err != nil && e.mirror != nil && progress() <= before && s.client.config.Clock.Since(begun) >= idleMirror {
			s.idle.Store(e, true)
		}
		switch {
		case err == nil, last, try >= s.client.config.Tries, progress() < before+minProgress:
			return err
		case ctx.Err() != nil, artifact.IsLocal(err), !s.askable(err):
			return err
		}
		if err := s.wait(ctx, 1, []error{err}); err != nil {
			return err
		}
	}
}

// idleMirror is how long a mirror may take to fail without bringing anything. After that it is asked last for everything else of this
// source: a pull of an image has some ten requests, each of which would wait for it.
const idleMirror = 10 * time.Second

// ordered returns the endpoints with idle mirrors last.
func (s *Source) ordered(endpoints []endpoint) []endpoint {
	endpoints = slices.Clone(endpoints)
	slices.SortStableFunc(endpoints, func(a, b endpoint) int {
		_, first := s.idle.Load(a)
		_, second := s.idle.Load(b)
		switch {
		case first == second:
			return 0
		case first:
			return 1
		}
		return -1
	})
	return endpoints
}

func (s *Source) attempt(ctx context.Context, e endpoint, act func(context.Context, *session) error) error {
	at, err := s.session(ctx, e)
	if err != nil {
		return s.forReader(ctx, nil, err)
	}
	if err = act(ctx, at); errors.Is(err, artifact.ErrUnauthorized) {
		s.forget(e, at) // the next try gets another token
	}
	return s.forReader(ctx, at, err)
}

// session returns the connection to an endpoint. Concurrent callers share one.
func (s *Source) session(ctx context.Context, e endpoint) (*session, error) {
	select {
	case s.lock <- struct{}{}:
		defer func() { <-s.lock }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", e.host, context.Cause(ctx))
	}
	if at := s.sessions[e]; at != nil {
		return at, nil
	}
	at, err := s.client.connect(ctx, e, s.keys, s.received)
	if err == nil {
		s.sessions[e] = at
	}
	return at, err
}

func (s *Source) forget(e endpoint, at *session) {
	s.lock <- struct{}{}
	defer func() { <-s.lock }()
	if s.sessions[e] == at {
		delete(s.sessions, e)
	}
}

// askable reports whether an endpoint that failed so is asked again in this call: not if it asks for a longer pause than that waits. A
// mirror that does so would otherwise hold up the tries at the registry.
func (s *Source) askable(err error) bool {
	return mayPass(err) && RetryAfter(err) <= s.client.config.MaxWait
}

// wait pauses before the next round: longer each time, or as long as a registry asks for. A random half of the pause, and a quarter beyond
// what a registry asks for, keep nodes that failed at the same moment from asking again at the same moment.
func (s *Source) wait(ctx context.Context, round int, failed []error) error {
	c := &s.client.config
	pause := c.MaxWait
	if shift := round - 1; shift < 16 {
		pause = min(c.Backoff<<shift, c.MaxWait)
	}
	pause -= upTo(pause / 2)
	asked := time.Duration(0)
	for _, err := range failed {
		if s.askable(err) {
			asked = max(asked, RetryAfter(err))
		}
	}
	pause = max(pause, asked+upTo(asked/4))
	timer := c.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w; before the next try: %w", joinErrors(failed), context.Cause(ctx))
	}
}

// upTo returns a random duration of at most most.
func upTo(most time.Duration) time.Duration {
	return time.Duration(rand.Int64N(int64(most) + 1)) //nolint:gosec // only spreads the load
}

// head asks for the digest of the manifest, and reads the manifest if the answer has no digest. An answer to HEAD never says why it is a
// refusal, so then it asks by GET too.
func (s *session) head(ctx context.Context, ref artifact.Reference) (artifact.Descriptor, error) {
	resp, err := s.ask(ctx, http.MethodHead, "manifests/"+ref.Identifier(), acceptManifests(), http.StatusOK, http.StatusMethodNotAllowed,
		http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound)
	if err != nil {
		return artifact.Descriptor{}, err
	}
	_ = resp.Body.Close()
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	digest, err := artifact.ParseDigest(resp.Header.Get("Docker-Content-Digest"))
	if resp.StatusCode != http.StatusOK || err != nil || resp.ContentLength <= 0 || mediaType == "" {
		m, err := s.manifest(ctx, ref)
		if err != nil {
			return artifact.Descriptor{}, err
		}
		return artifact.Descriptor{MediaType: m.MediaType, ArtifactType: m.ArtifactType, Digest: m.Digest, Size: int64(len(m.Raw))}, nil
	}
	if err := s.tell(resp, true, s.sameDigest(ref, digest)); err != nil {
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

// manifest reads the manifest of a reference and compares it with the reference's digest.
func (s *session) manifest(ctx context.Context, ref artifact.Reference) (*artifact.Manifest, error) {
	return readManifest(ctx, s, ref, artifact.ParseManifest)
}

// readManifest reads a manifest as parse does.
func readManifest[T any](ctx context.Context, s *session, ref artifact.Reference, parse func([]byte) (T, error)) (m T, err error) {
	resp, err := s.ask(ctx, http.MethodGet, "manifests/"+ref.Identifier(), acceptManifests(), http.StatusOK)
	if err != nil {
		return m, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, artifact.MaxManifest+1))
	if err != nil {
		return m, err
	}
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err = s.checkManifest(ref, data); err == nil {
		m, err = parse(data)
	}
	return m, s.tell(resp, slices.Contains(acceptManifests()["Accept"], mediaType), err)
}

func (s *session) checkManifest(ref artifact.Reference, data []byte) error {
	if len(data) > artifact.MaxManifest {
		return fmt.Errorf("%s: the manifest is %w: expected at most %d bytes", s.host, artifact.ErrTooLarge, artifact.MaxManifest)
	}
	return s.sameDigest(ref, artifact.DigestOf(data))
}

func (s *session) sameDigest(ref artifact.Reference, digest artifact.Digest) error {
	if want := ref.Digest(); !want.IsZero() && want != digest {
		return fmt.Errorf("%s: the manifest is %w: its digest is %s, expected %s", s.host, artifact.ErrMismatch, digest, want)
	}
	return nil
}
