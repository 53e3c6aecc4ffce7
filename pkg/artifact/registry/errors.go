// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/message"
)

// RetryAfter returns the pause that the registry asked for, or 0. Of several endpoints it is the shortest.
func RetryAfter(err error) time.Duration {
	if several, ok := errors.AsType[*joined](err); ok {
		return several.after
	}
	if e, ok := errors.AsType[*unreachable](err); ok {
		err = e.reason
	}
	if status, ok := errors.AsType[*statusError](err); ok {
		return status.after
	}
	return 0
}

// statusError is an answer that asks for another try, such as 503 or 429.
type statusError struct {
	text  string
	after time.Duration
	// certain: only a registry answers so.
	certain bool
}

func (e *statusError) Error() string { return e.text }

func (e *statusError) Unwrap() error { return artifact.ErrUnavailable }

// joined are the errors of several endpoints.
type joined struct {
	error
	// after is the shortest pause after which one of them may be asked again.
	after time.Duration
}

func (j *joined) Unwrap() error { return j.error }

// joinErrors combines the errors of several endpoints on one line.
func joinErrors(errs []error) (all error) {
	var pauses []time.Duration
	several := false
	for _, err := range errs {
		if err != nil && mayPass(err) {
			pauses = append(pauses, RetryAfter(err))
		}
		switch {
		case err == nil:
		case all == nil:
			all = err
		default:
			all, several = fmt.Errorf("%w; %w", all, err), true
		}
	}
	if several && len(pauses) > 0 {
		return &joined{error: all, after: slices.Min(pauses)}
	}
	return all
}

const longestQuote = 200

// clip makes the first line of foreign text fit for an error message.
func clip(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return message.Line(s, longestQuote)
}

func quote(s string) string { return `"` + clip(s) + `"` }

// retryTransport turns answers that ask for another try into errors. It is below everything that sends requests.
type retryTransport struct {
	inner http.RoundTripper
	now   func() time.Time
}

func (t *retryTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if redirects(r) > maxRedirects {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, fmt.Errorf("more than %d redirects", maxRedirects)
	}
	r = r.Clone(r.Context())
	// A transport decompresses what a registry compressed for the transfer. Then length and digest would not match.
	r.Header.Set("Accept-Encoding", "identity")
	resp, err := t.inner.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	switch code := resp.StatusCode; {
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500:
		defer resp.Body.Close()
		text, certain := errorText(resp)
		return nil, &statusError{
			text:    fmt.Sprintf("%s is %v (%s)", resp.Request.URL.Host, artifact.ErrUnavailable, text),
			after:   retryAfter(resp.Header.Get("Retry-After"), t.now()),
			certain: certain,
		}
	}
	return resp, nil
}

// redirects counts the answers that led to a request.
func redirects(r *http.Request) int {
	n := 0
	for r.Response != nil && r.Response.Request != nil {
		r = r.Response.Request
		n++
	}
	return n
}

// maxPause is the longest pause that a registry may ask for: who is told of one asks again after it.
const maxPause = 24 * time.Hour

func retryAfter(value string, now time.Time) (pause time.Duration) {
	if seconds, err := strconv.Atoi(value); err == nil {
		pause = time.Duration(min(max(seconds, 0), int(maxPause/time.Second))) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		pause = min(at.Sub(now), maxPause)
	}
	return max(0, pause)
}

// maxErrorBody is how many bytes of an error's body are read.
const maxErrorBody = 8 << 10

// errorText returns the status and the first message of the registry about it, and whether only a registry says so.
func errorText(resp *http.Response) (text string, certain bool) {
	text = fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	var said transport.Error
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err == nil && json.Unmarshal(data, &said) == nil && len(said.Errors) > 0 {
		text += ", " + firstOf(said.Errors)
	}
	return text, isRegistryError(said.Errors)
}

func firstOf(said []transport.Diagnostic) string {
	return clip(string(said[0].Code) + ": " + said[0].Message)
}

// explain turns the error of a request into one of package artifact. It leaves URLs out: after a redirect a URL may hold a signature that
// lets anyone read the blob.
func explain(host string, err error) error {
	var status *statusError
	var handshake *transport.Error
	switch {
	case errors.As(err, &status) && status.certain:
		return told{status}
	case errors.As(err, &status):
		return status
	case errors.As(err, &handshake):
		text := fmt.Sprintf("%d %s", handshake.StatusCode, http.StatusText(handshake.StatusCode))
		if len(handshake.Errors) > 0 {
			text += ", " + firstOf(handshake.Errors)
		}
		if isRegistryError(handshake.Errors) {
			return told{refusal(host, handshake.StatusCode, text)}
		}
		return refusal(host, handshake.StatusCode, text)
	case errors.Is(err, http.ErrSchemeMismatch):
		return PlainHTTPRefused(host)
	}
	var request *url.Error
	asked := false
	for errors.As(err, &request) { // the library tried https before http
		err, asked = request.Err, true
	}
	switch {
	case errors.Is(err, artifact.ErrPlainHTTP), errors.Is(err, artifact.ErrDestination):
		return err
	case asked:
		return fmt.Errorf("%s is %w: %s", host, artifact.ErrUnavailable, clip(err.Error()))
	}
	return fmt.Errorf("%s: the answer is %w: %s", host, artifact.ErrInvalid, clip(err.Error()))
}

// refusal returns the error for a status that another try does not change.
func refusal(host string, code int, text string) error {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%s: %w (%s): give a pull secret that may read it, or correct the one that is given",
			host, artifact.ErrUnauthorized, text)
	case http.StatusNotFound, http.StatusGone:
		return fmt.Errorf("%s: %w (%s): check the name, and whether the pull secret may see it", host, artifact.ErrNotFound, text)
	}
	return fmt.Errorf("%s: the answer is %w (%s): check that this is a registry", host, artifact.ErrInvalid, text)
}
