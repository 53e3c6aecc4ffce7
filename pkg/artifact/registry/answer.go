// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/fettle-dev/fettle/pkg/artifact"
)

// answers is below everything that makes requests. It makes errors of the answers that ask for another try.
type answers struct {
	inner http.RoundTripper
	now   func() time.Time
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	// A transport would unpack what a registry packs for the transfer; then the length and the digest are of something else.
	r.Header.Set("Accept-Encoding", "identity")
	resp, err := a.inner.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	switch code := resp.StatusCode; {
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500:
		defer resp.Body.Close()
		return nil, &statusError{
			text:  fmt.Sprintf("%s is %v (%s)", resp.Request.URL.Host, artifact.ErrUnavailable, answer(resp)),
			after: retryAfter(resp.Header.Get("Retry-After"), a.now()),
		}
	}
	return resp, nil
}

func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(value); err == nil {
		return max(0, time.Duration(min(seconds, 24*60*60))*time.Second)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// maxAnswer is how much of an error's body is read.
const maxAnswer = 8 << 10

// answer is the status and the first thing that the registry says about it.
func answer(resp *http.Response) string {
	text := fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	var said transport.Error
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && json.Unmarshal(data, &said) == nil && len(said.Errors) > 0 {
		text += ", " + firstOf(said.Errors)
	}
	return text
}

func firstOf(said []transport.Diagnostic) string {
	return clip(string(said[0].Code) + ": " + said[0].Message)
}

// explain makes the error of a request fit to be read, and one of this package. URLs are left out: after a redirect they may hold a
// signature that opens the blob to anyone.
func explain(host string, err error) error {
	var status *statusError
	var told *transport.Error
	switch {
	case errors.As(err, &status):
		return status
	case errors.As(err, &told): // of the handshake
		text := fmt.Sprintf("%d %s", told.StatusCode, http.StatusText(told.StatusCode))
		if len(told.Errors) > 0 {
			text += ", " + firstOf(told.Errors)
		}
		return refusal(host, told.StatusCode, text)
	case errors.Is(err, http.ErrSchemeMismatch):
		return RefusedPlain(host)
	}
	var request *url.Error
	asked := false
	for errors.As(err, &request) { // where the library tried both, the first is that of https
		err, asked = request.Err, true
	}
	switch {
	case errors.Is(err, artifact.ErrPlainHTTP):
		return err
	case asked:
		return fmt.Errorf("%s is %w: %s", host, artifact.ErrUnavailable, clip(err.Error()))
	}
	return fmt.Errorf("%s: the answer is %w: %s", host, artifact.ErrInvalid, clip(err.Error()))
}

// refusal is the error for a status that trying again does not change.
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
