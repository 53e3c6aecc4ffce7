// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/fault"
)

func TestTransport(t *testing.T) {
	var served atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
	defer server.Close()
	in := fault.New(fault.Fail(2, syscall.ECONNREFUSED), fault.Lose(3, syscall.ECONNRESET), fault.Delay(4, time.Hour))
	brief, pass := check.Deadline(t)
	client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		if r.Context() == brief {
			pass()
		}
		return in.Transport(http.DefaultTransport).RoundTrip(r)
	})}
	patch := func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPatch, server.URL+"/apis/x?dryRun=All", strings.NewReader("body"))
		check.Must(t, err)
		response, err := client.Do(request)
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	for i, test := range []struct {
		ctx    context.Context
		want   error
		served int32
	}{
		{t.Context(), nil, 1},
		{t.Context(), syscall.ECONNREFUSED, 1},
		{t.Context(), syscall.ECONNRESET, 2},
		{brief, context.DeadlineExceeded, 2},
		{t.Context(), nil, 3},
	} {
		if err := patch(test.ctx); !errors.Is(err, test.want) || served.Load() != test.served {
			t.Errorf("call %d: %v after %d were served, want %v and %d", i+1, err, served.Load(), test.want, test.served)
		}
	}
	in.Set(fault.Lose(6, syscall.ECONNRESET))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	check.Must(t, err)
	response, err := in.Transport(http.DefaultTransport).RoundTrip(request)
	if response != nil || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a lost answer arrived: %v, %v", response, err)
	}
	if op := in.Log()[0]; op.Kind != fault.Call || op.Path != "PATCH /apis/x?dryRun=All" || !op.Done {
		t.Errorf("logged %+v", op)
	}
}

// transport is a function as an http.RoundTripper.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
