// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// unread is a body that fails the test if it is read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// TestGuard: only a request that has the secret, and a length, reaches the reviews.
func TestGuard(t *testing.T) {
	token := ""
	reached := 0
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ })
	g := newGuard(func() string { return token }, map[string]http.Handler{PathPrefix: next, PodsPathPrefix: next})
	status := func(path string, length int64, body io.Reader) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", body)
		r.URL.Path, r.ContentLength = path, length
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		return w.Code
	}
	if got := status(PathPrefix, 2, unread{t}); got != http.StatusNotFound {
		t.Errorf("without a certificate yet: %d", got)
	}
	token = strings.Repeat("s", 64)
	for path, want := range map[string]int{
		PathPrefix: 404, "/validate-config": 404, "/": 404, PathPrefix + token[1:]: 404, PathPrefix + token + "/": 404, "/" + token: 404,
		PodsPathPrefix: 404, PodsPathPrefix + token[1:]: 404,
		PathPrefix + strings.Repeat("0", 64): 404,
	} {
		if got := status(path, 2, unread{t}); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	for length, want := range map[int64]int{-1: 413, maxReview + 1: 413} {
		if got := status(PathPrefix+token, length, unread{t}); got != want {
			t.Errorf("length %d: %d, want %d", length, got, want)
		}
	}
	if reached != 0 {
		t.Errorf("%d requests got through", reached)
	}
	if got := status(PathPrefix+token, 2, strings.NewReader("{}")); got != http.StatusOK || reached != 1 {
		t.Errorf("the API server: %d, %d", got, reached)
	}
	if got := status(PodsPathPrefix+token, 2, strings.NewReader("{}")); got != http.StatusOK || reached != 2 {
		t.Errorf("the API server, with a pod: %d, %d", got, reached)
	}
}

// TestGuardTurns: reviews that do not fit into memory together wait for their turn, and not longer than the API server does.
func TestGuardTurns(t *testing.T) { synctest.Test(t, testTurns) }

func testTurns(t *testing.T) {
	t.Helper()
	entered, leave := make(chan struct{}), make(chan struct{})
	token := func() string { return "secret" }
	g := newGuard(token, map[string]http.Handler{PathPrefix: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-leave
	})})
	answers := make(chan int, 2)
	send := func() {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, PathPrefix+"secret", http.NoBody)
		r.ContentLength = maxReview
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		answers <- w.Code
	}
	go send()
	<-entered
	begin := time.Now()
	send()
	if got, took := <-answers, time.Since(begin); got != http.StatusServiceUnavailable || took != patience {
		t.Errorf("answered %d after %s, want %d after %s", got, took, http.StatusServiceUnavailable, patience)
	}
	close(leave)
	if got := <-answers; got != http.StatusOK {
		t.Errorf("the first was answered %d", got)
	}
}
