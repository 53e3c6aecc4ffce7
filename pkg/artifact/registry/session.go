// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// maxRedirects is how many redirects a request may follow, those of token servers included.
const maxRedirects = 5

// session is an authenticated connection to one repository of one endpoint.
type session struct {
	// host is the endpoint's name. urlHost is the same as it stands in URLs, and base is where those of its repository begin.
	host, urlHost, base string
	mirror              bool
	http                *http.Client
	stall               time.Duration
	clock               clock.WithDelayedExecution
	// received counts the bytes of all answers.
	received *atomic.Int64
	// known: the endpoint has given an answer that only a registry gives.
	known atomic.Bool
}

// connect asks how the registry authenticates, and gets a token if the registry wants one. The bytes of all answers are added to received.
func (c *Client) connect(ctx context.Context, e endpoint, keys authn.Keychain, received *atomic.Int64) (*session, error) {
	registry, err := name.NewRegistry(e.host)
	if err != nil {
		return nil, told{fmt.Errorf("the registry %s is %w: %s", quote(e.host), artifact.ErrInvalid, clip(err.Error()))}
	}
	if err := c.destinations.checkName(ctx, registry.RegistryStr()); errors.Is(err, artifact.ErrDestination) {
		return nil, told{err} // nothing was asked, so it tells only the administrator's rules
	} else if err != nil {
		return nil, err
	}
	repository := registry.Repo(e.prefix)
	auth, err := e.credentials(ctx, keys, repository)
	if err != nil {
		return nil, told{err}
	}
	through := c.guardMirrors(e.host, c.transport)
	if e.mirror != nil {
		through = &mirrorTransport{mirrored: e.mirror, host: registry.RegistryStr(), inner: c.transport}
	}
	s := &session{
		host: e.host, mirror: e.mirror != nil, urlHost: registry.RegistryStr(), stall: c.config.Stall, clock: c.config.Clock, received: received,
		base: fmt.Sprintf("https://%s/v2/%s/", registry.RegistryStr(), repository.RepositoryStr()), // GuardScheme changes it for plain http
	}
	ctx, watch := s.watch(ctx)
	defer watch.stop()
	authenticated, err := transport.NewWithContext(ctx, registry, auth, through, []string{repository.Scope(transport.PullScope)})
	if err != nil {
		return nil, watch.explain(err)
	}
	s.http = &http.Client{Transport: &serialTransport{inner: authenticated, lock: make(chan struct{}, 1)}}
	return s, nil
}

// credentials returns those for the endpoint's own repository. If there are none, a mirror that is configured so gets those for the
// registry.
func (e endpoint) credentials(ctx context.Context, keys authn.Keychain, repository name.Repository) (authn.Authenticator, error) {
	if keys == nil {
		return authn.Anonymous, nil
	}
	auth, err := authn.Resolve(ctx, keys, repository)
	if err == nil && auth == authn.Anonymous && e.mirror != nil && e.mirror.forward {
		var registry name.Registry
		if registry, err = name.NewRegistry(e.mirror.registry); err == nil {
			repository = registry.Repo(e.path)
			auth, err = authn.Resolve(ctx, keys, repository)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("find credentials for %s: %w", repository, err)
	}
	return auth, nil
}

// serialTransport sends one request at a time, since the library's renewal of a token is not safe for concurrent use. The bodies of answers
// are read concurrently.
type serialTransport struct {
	inner http.RoundTripper
	lock  chan struct{}
}

func (t *serialTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case t.lock <- struct{}{}:
		defer func() { <-t.lock }()
		return t.inner.RoundTrip(r)
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
}

// ask sends one request. It returns an error unless the status is one of the expected ones. The caller closes the body.
func (s *session) ask(ctx context.Context, method, path string, header http.Header, expected ...int) (*http.Response, error) {
	ctx, watch := s.watch(ctx)
	r, err := http.NewRequestWithContext(ctx, method, s.base+path, http.NoBody)
	if err != nil {
		watch.stop()
		return nil, explain(s.host, err)
	}
	for key, values := range header {
		r.Header[key] = values
	}
	resp, err := s.http.Do(r)
	if err != nil {
		watch.stop()
		return nil, watch.explain(err)
	}
	watch.body, resp.Body = resp.Body, watch
	if slices.Contains(expected, resp.StatusCode) {
		return resp, nil
	}
	defer resp.Body.Close()
	text, certain := errorText(resp)
	return nil, s.tell(resp, certain, refusal(s.host, resp.StatusCode, text))
}

// A body that brings fewer than slowBytes while it was read for slowWindow fails, so that the next endpoint is asked. That is 16 KiB a
// second: a registry that sends a byte now and then would otherwise never be left.
const (
	slowWindow = time.Minute
	slowBytes  = 960 << 10
)

// watch cancels a request whose peer sends nothing for too long, or hardly anything. It is also the body of the answer.
type watch struct {
	host  string
	after time.Duration
	clock clock.WithDelayedExecution
	// outer is the context of the caller, inner that of the request.
	outer, inner context.Context
	cancel       context.CancelCauseFunc
	timer        clock.Timer
	body         io.ReadCloser
	received     *atomic.Int64
	// waited is how long Read waited for the peer in this window, and got what came. The time that the reader takes does not count.
	waited time.Duration
	got    int64
}

var errStalled = errors.New("nothing was sent")

func (s *session) watch(ctx context.Context) (context.Context, *watch) {
	w := &watch{host: s.host, after: s.stall, clock: s.clock, outer: ctx, received: s.received}
	w.inner, w.cancel = context.WithCancelCause(ctx)
	w.timer = s.clock.AfterFunc(w.after, func() { w.cancel(errStalled) })
	return w.inner, w
}

func (w *watch) Read(p []byte) (int, error) {
	w.timer.Reset(w.after)
	begun := w.clock.Now()
	n, err := w.body.Read(p)
	w.timer.Stop()
	w.received.Add(int64(n))
	switch {
	case err == nil:
		err = w.checkPace(n, w.clock.Since(begun))
	case !errors.Is(err, io.EOF):
		err = w.explain(err)
	}
	return n, err
}

// checkPace fails at the end of a window in which too little came.
func (w *watch) checkPace(n int, waited time.Duration) error {
	w.got, w.waited = w.got+int64(n), w.waited+waited
	if w.waited < slowWindow {
		return nil
	}
	if w.got < slowBytes {
		return fmt.Errorf("%s is %w: %d bytes came within %s, expected %d", w.host, artifact.ErrUnavailable, w.got,
			w.waited.Round(time.Second), slowBytes)
	}
	w.got, w.waited = 0, 0
	return nil
}

func (w *watch) Close() error {
	err := w.body.Close()
	w.stop()
	return err
}

func (w *watch) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// explain turns errors of the request and of its body into errors of package artifact.
func (w *watch) explain(err error) error {
	switch {
	case w.outer.Err() != nil:
		return fmt.Errorf("%s: %w", w.host, context.Cause(w.outer))
	case errors.Is(context.Cause(w.inner), errStalled):
		return fmt.Errorf("%s is %w: %w for %s", w.host, artifact.ErrUnavailable, errStalled, w.after)
	case w.body != nil:
		return fmt.Errorf("%s is %w: the answer broke off: %s", w.host, artifact.ErrUnavailable, clip(err.Error()))
	}
	return explain(w.host, err)
}
