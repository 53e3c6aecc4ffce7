// SPDX-License-Identifier: Apache-2.0

// Package apicall has calls of an API server end, whatever client makes them, and tells which answers are none.
package apicall

import (
	"context"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// timeout is how long a call may take. The API server itself gives up after a minute, unless it was told otherwise. What stands before it,
// and is alive, may never answer.
const timeout = 90 * time.Second

// Bounded ends calls that take too long, but for watches: a queue has few workers, and each waits for its calls.
func Bounded(next http.RoundTripper) http.RoundTripper { return bounded{next} }

type bounded struct{ next http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") == "true" {
		return b.next.RoundTrip(r)
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	answer, err := b.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return answer, err
	}
	answer.Body = body{answer.Body, cancel}
	return answer, nil
}

// body is that of an answer, which may be read until the call ends.
type body struct {
	io.ReadCloser

	cancel func()
}

// Close implements [io.Closer].
func (b body) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// Unanswered says whether the API server answers that something does not which it asks: a webhook, or what converts or serves a kind.
func Unanswered(err error) bool {
	return apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)
}
