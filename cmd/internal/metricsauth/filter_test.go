// SPDX-License-Identifier: Apache-2.0

package metricsauth

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/fettle-dev/fettle/pkg/httpserver"
)

// api answers TokenReviews and SubjectAccessReviews: tokens that begin with "good" are a reader's. It counts the others.
type api struct{ wrong atomic.Int64 }

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if strings.HasSuffix(r.URL.Path, "/subjectaccessreviews") {
		review := authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}
		review.APIVersion, review.Kind = "authorization.k8s.io/v1", "SubjectAccessReview"
		_ = json.NewEncoder(w).Encode(review)
		return
	}
	var review authenticationv1.TokenReview
	_ = json.NewDecoder(r.Body).Decode(&review)
	if review.Status.Authenticated = strings.HasPrefix(review.Spec.Token, "good"); review.Status.Authenticated {
		review.Status.User.Username = "reader"
	} else {
		a.wrong.Add(1)
	}
	review.APIVersion, review.Kind = "authentication.k8s.io/v1", "TokenReview"
	_ = json.NewEncoder(w).Encode(review)
}

// serve serves metrics behind the filter and returns the address.
func serve(t *testing.T, a *api) string {
	t.Helper()
	reviews := httptest.NewServer(a)
	t.Cleanup(reviews.Close)
	filter, err := Filter(&rest.Config{Host: reviews.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	handler, err := filter(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "metrics") }))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- (&httpserver.Server{Listener: listener, Handler: handler}).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// from returns a client with an address of its own.
func from(t *testing.T, address string) *http.Client {
	t.Helper()
	transport := &http.Transport{
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext, MaxIdleConnsPerHost: 100,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func get(ctx context.Context, client *http.Client, address, token string) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return 0
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := client.Do(request)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	return response.StatusCode
}

// TestRandomTokens: four pods send random tokens, 48 at once each. A new reader waits for a review or two of each, and not for those of all
// requests.
func TestRandomTokens(t *testing.T) {
	a := &api{}
	address := serve(t, a)
	const sources, each = 4, 48
	ctx, stop := context.WithCancel(t.Context())
	var attackers sync.WaitGroup
	defer attackers.Wait()
	defer stop()
	asked := make(chan struct{}, sources*each)
	for i := range sources {
		client := from(t, fmt.Sprintf("127.4.0.%d", i+1))
		for range each {
			attackers.Go(func() {
				for first := true; ctx.Err() == nil; first = false {
					if first {
						asked <- struct{}{}
					}
					_ = get(ctx, client, address, rand.Text())
				}
			})
		}
	}
	for range sources * each {
		<-asked
	}
	for a.wrong.Load() <= strangerBurst { // what is free at the beginning is used up
		if code := get(ctx, from(t, "127.4.1.1"), address, "wrong"); code == http.StatusOK {
			t.Fatal("a wrong token was let in")
		}
	}
	before, reader := a.wrong.Load(), from(t, "127.4.2.1")
	if code := get(t.Context(), reader, address, "good"); code != http.StatusOK {
		t.Errorf("a reader got %d", code)
	}
	if reviews := a.wrong.Load() - before; reviews > 8*sources {
		t.Errorf("a new reader waited for %d reviews of wrong tokens", reviews)
	}
	before = a.wrong.Load()
	for range 5 {
		if code := get(t.Context(), reader, address, "good"); code != http.StatusOK {
			t.Errorf("a reader who is known got %d", code)
		}
	}
	if reviews := a.wrong.Load() - before; reviews > 8*sources {
		t.Errorf("five scrapes of a known reader waited for %d reviews of wrong tokens", reviews)
	}
}

// TestReadersAreBounded: what is remembered of tokens does not grow, and ends with a token's right.
func TestReadersAreBounded(t *testing.T) {
	refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	f := &filter{readers: refuse, strangers: refuse, known: map[token]time.Time{}, asking: map[netip.Prefix]bool{}}
	for i := range 3 * maxReaders {
		f.remember(token{byte(i), byte(i >> 8)})
	}
	if len(f.known) != maxReaders {
		t.Errorf("%d tokens are remembered", len(f.known))
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	f.remember(tokenOf(r))
	for _, still := range []bool{true, false} {
		if _, known := f.known[tokenOf(r)]; known != still {
			t.Errorf("the token is known: %v, want %v", known, still)
		}
		f.ServeHTTP(httptest.NewRecorder(), r)
	}
}
