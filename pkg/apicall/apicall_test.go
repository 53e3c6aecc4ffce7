// SPDX-License-Identifier: Apache-2.0

package apicall_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fettle-dev/fettle/pkg/apicall"
	"github.com/fettle-dev/fettle/test/check"
)

// api answers as its functions say.
type api func(*http.Request) (*http.Response, error)

func (a api) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

// body is read by its function.
type body func() error

func (b body) Read([]byte) (int, error) { return 0, b() }

func (body) Close() error { return nil }

// TestCallsEnd: a call that the API server, or what stands before it, never answers ends after a while, so that it does not hold up a queue
// for ever. So does one that breaks off in the midst of its answer. A watch goes on, and a short answer is read to its end.
func TestCallsEnd(t *testing.T) {
	silent := func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	cut := func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: body(func() error {
			<-r.Context().Done()
			return r.Context().Err()
		})}, nil
	}
	short := func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	}
	const hour = time.Hour
	for name, test := range map[string]struct {
		path        string
		server      api
		least, most time.Duration
		ok          bool
	}{
		"no answer":         {"/api/v1/pods?limit=25", silent, time.Minute, 5 * time.Minute, false},
		"half an answer":    {"/api/v1/pods?limit=25", cut, time.Minute, 5 * time.Minute, false},
		"a watch":           {"/api/v1/pods?watch=true", cut, hour, hour, false},
		"an answer":         {"/api/v1/pods", short, 0, 0, true},
		"answer to a watch": {"/api/v1/pods?watch=true", short, 0, 0, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := http.Client{Transport: apicall.Bounded(test.server)}
			ctx, cancel := context.WithTimeout(t.Context(), hour)
			defer cancel()
			begin := time.Now()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.example"+test.path, nil)
			check.Must(t, err)
			answer, err := calls.Do(request)
			if err == nil {
				_, err = io.ReadAll(answer.Body)
				check.Must(t, answer.Body.Close())
			}
			if took := time.Since(begin); took < test.least || took > test.most || (err == nil) != test.ok {
				t.Errorf("%s: ends after %s with %v, want between %s and %s", name, took, err, test.least, test.most)
			}
		})
	}
}
