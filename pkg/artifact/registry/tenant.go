// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// TenantSource is Source for a reference that a tenant chose, and whose errors the tenant reads. Otherwise a tenant could find out by
// references what listens where: "connection refused", "no route", "unknown authority" and "404" of some web server differ.
//
// An error tells what a registry answered only if it is an answer that only a registry gives. All else is one text, is retryable, and is
// given to Config.Report with its reason.
func (c *Client) TenantSource(ref artifact.Reference, keys authn.Keychain) *Source {
	s := c.Source(ref, keys)
	s.tenant = true
	return s
}

// told marks an error that tells nothing but what the reference or the registry's own answer says. Tenants may read it.
type told struct{ error }

func (t told) Unwrap() error { return t.error }

// unreachable is what tenants read of everything else.
type unreachable struct {
	registry, program string
	// reason is for the administrator. It is not in the chain of errors, so nothing that a tenant sees depends on it.
	reason error
	// ended is the end of the context, if that is why.
	ended error
	// final: another try would only read the same bytes again.
	final bool
}

func (e *unreachable) Error() string {
	where := ""
	if e.program != "" {
		where = " of " + e.program
	}
	return fmt.Sprintf("registry %s is %v: it could not be reached, or did not answer as a registry does; check the reference and its pull "+
		"secrets; an administrator finds the reason in the log%s, by this reference", e.registry, artifact.ErrUnavailable, where)
}

func (e *unreachable) Unwrap() []error {
	if e.ended != nil {
		return []error{artifact.ErrUnavailable, e.ended}
	}
	return []error{artifact.ErrUnavailable}
}

// forReader returns the error of one endpoint as the source's reader may have it. The session is nil if there is none.
func (s *Source) forReader(ctx context.Context, at *session, err error) error {
	if err == nil || !s.tenant || artifact.IsLocal(err) {
		return err
	}
	if _, ok := errors.AsType[told](err); ok {
		return err
	}
	if _, ok := errors.AsType[ownAnswer](err); ok && at != nil && at.isRegistry(ctx, s.ref) {
		return err
	}
	e := &unreachable{
		registry: s.ref.Registry(), program: s.client.config.UserAgent, reason: err, final: errors.Is(err, artifact.ErrMismatch),
	}
	if ctx.Err() != nil {
		e.ended = context.Cause(ctx)
	}
	return e
}

// report gives the administrator the reasons that the errors of all endpoints leave out.
func (s *Source) report(ctx context.Context, failed []error) {
	var reasons []error
	for _, err := range failed {
		if e, ok := errors.AsType[*unreachable](err); ok {
			reasons = append(reasons, e.reason)
		}
	}
	if len(reasons) > 0 && s.client.config.Report != nil {
		s.client.config.Report(ctx, s.ref, joinErrors(reasons))
	}
}

// mayPass says whether another try may succeed.
func mayPass(err error) bool {
	e, ok := errors.AsType[*unreachable](err)
	return artifact.IsRetryable(err) && (!ok || !e.final)
}

// isRegistryError says whether an answer is an error as the distribution specification has it.
func isRegistryError(said []transport.Diagnostic) bool {
	known := []transport.ErrorCode{
		transport.BlobUnknownErrorCode, transport.DigestInvalidErrorCode, transport.ManifestBlobUnknownErrorCode,
		transport.ManifestInvalidErrorCode, transport.ManifestUnknownErrorCode, transport.ManifestUnverifiedErrorCode,
		transport.NameInvalidErrorCode, transport.NameUnknownErrorCode, transport.SizeInvalidErrorCode, transport.TagInvalidErrorCode,
		transport.UnauthorizedErrorCode, transport.DeniedErrorCode, transport.UnsupportedErrorCode, transport.TooManyRequestsErrorCode,
		transport.UnavailableErrorCode,
	}
	return len(said) > 0 && slices.Contains(known, said[0].Code)
}

// ownAnswer marks an error about an answer of the endpoint itself. It is told once the endpoint is known to be a registry.
type ownAnswer struct{ error }

func (a ownAnswer) Unwrap() error { return a.error }

// tell marks an error about an answer for tenants. Certain: only a registry answers so.
func (s *session) tell(resp *http.Response, certain bool, err error) error {
	own := resp.Request == nil || resp.Request.URL.Host == s.urlHost // and not from where the endpoint sent the request to
	if certain && own {
		s.known.Store(true)
	}
	switch {
	case err == nil:
		return nil
	case certain:
		return told{err}
	case own:
		return ownAnswer{err}
	}
	return err
}

// isRegistry says whether the endpoint has given an answer that only a registry gives. If it had no occasion to, it is asked for the
// manifest.
func (s *session) isRegistry(ctx context.Context, ref artifact.Reference) bool {
	if !s.known.Load() {
		_, _ = s.manifest(ctx, ref)
	}
	return s.known.Load()
}
