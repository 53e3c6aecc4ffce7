// SPDX-License-Identifier: Apache-2.0

// Package metricsauth has the API server decide who may read the metrics of a program.
package metricsauth

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fettle-dev/fettle/pkg/httpserver"
)

// How many requests a second to the API server clients of the metrics can cause, and how many at once. Readers are clients that read
// metrics before, strangers all others.
const (
	readerQPS     = 10
	readerBurst   = 20
	strangerQPS   = 40
	strangerBurst = 40
)

// maxReaders is how many tokens are remembered.
const maxReaders = 64

// Filter returns a filter that answers only callers whose bearer token a TokenReview knows, and whom a SubjectAccessReview lets get the
// path. Any pod can send wrong tokens as often as it likes, so a token that was let in before is asked about by a client of its own, and of
// other tokens one of each source at once: whoever comes new waits for at most one review of each other source.
func Filter(config *rest.Config) (func(http.Handler) (http.Handler, error), error) {
	readers, err := reviewer(config, readerQPS, readerBurst)
	if err != nil {
		return nil, err
	}
	strangers, err := reviewer(config, strangerQPS, strangerBurst)
	if err != nil {
		return nil, err
	}
	return func(next http.Handler) (http.Handler, error) {
		f := &filter{known: map[token]time.Time{}, asking: map[netip.Prefix]bool{}}
		let := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f.remember(tokenOf(r))
			next.ServeHTTP(w, r)
		})
		// Any pod can send a wrong token, so there is no log of it.
		if f.readers, err = readers(klog.Logger{}, let); err != nil {
			return nil, err
		}
		f.strangers, err = strangers(klog.Logger{}, let)
		return f, err
	}, nil
}

func reviewer(config *rest.Config, qps float32, burst int) (server.Filter, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = qps, burst
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client that asks who reads metrics: %w", err)
	}
	filter, err := filters.WithAuthenticationAndAuthorization(config, client)
	if err != nil {
		return nil, fmt.Errorf("make a client that asks who reads metrics: %w", err)
	}
	return filter, nil
}

// token is the hash of the header with a token.
type token [sha256.Size]byte

func tokenOf(r *http.Request) token { return sha256.Sum256([]byte(r.Header.Get("Authorization"))) }

// filter asks about callers.
type filter struct {
	readers, strangers http.Handler

	mu sync.Mutex
	// known says when each token was let in last.
	known map[token]time.Time
	// asking has the sources about whose tokens a review is in progress.
	asking map[netip.Prefix]bool
}

func (f *filter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	sent, source := tokenOf(r), httpserver.Source(r.Context())
	f.mu.Lock()
	last, known := f.known[sent]
	busy := !known && f.asking[source]
	if !known && !busy {
		f.asking[source] = true
	}
	f.mu.Unlock()
	switch {
	case busy:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "another token of the same address is looked at", http.StatusTooManyRequests)
		return
	case known:
		f.readers.ServeHTTP(w, r)
	default:
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.asking, source)
		}()
		f.strangers.ServeHTTP(w, r)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known[sent].Equal(last) { // it was not let in this time
		delete(f.known, sent)
	}
}

// remember notes that a token was let in. Of too many tokens the one that was used last the longest ago is forgotten.
func (f *filter) remember(sent token) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known[sent] = time.Now()
	for len(f.known) > maxReaders {
		oldest := sent
		for other, last := range f.known {
			if last.Before(f.known[oldest]) {
				oldest = other
			}
		}
		delete(f.known, oldest)
	}
}
