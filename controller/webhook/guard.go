// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/subtle"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/fettle-dev/fettle/pkg/httpserver"
)

const (
	// maxReview is the size of a review's body. An API server sends objects of at most 3 MiB, the new one and the old one.
	maxReview = 7 << 20
	// maxInFlight is how many bytes of bodies are worked on at once. Decoding takes several times as much memory.
	maxInFlight = 8 << 20
	// leastReview is what a review counts at least.
	leastReview = 4 << 10
	// patience is how long a review waits for its turn, and then for the objects that it names: the API server waits for three seconds.
	patience = 2 * time.Second
)

// guard lets the API server's reviews through, and of these only as many as fit into memory. Any pod may reach the webhook. Most API
// servers show no client certificate, so the path has a secret in it that only the webhook's configuration says. The body of another
// request is not read, nothing is looked up for it, and no metric counts it.
type guard struct {
	// token returns the secret, empty while it is not known.
	token func() string
	turns *semaphore.Weighted
	// routes are the handlers by the beginning of their path.
	routes map[string]http.Handler
}

func newGuard(token func() string, routes map[string]http.Handler) *guard {
	return &guard{token: token, turns: semaphore.NewWeighted(maxInFlight), routes: routes}
}

// route returns the handler of a path, nil if there is none, and the rest of the path.
func (g *guard) route(path string) (next http.Handler, token string) {
	for prefix, handler := range g.routes {
		if token, found := strings.CutPrefix(path, prefix); found {
			return handler, token
		}
	}
	return nil, ""
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	next, token := g.route(r.URL.Path)
	secret := g.token()
	if next == nil || secret == "" || subtle.ConstantTimeCompare([]byte(token), []byte(secret)) != 1 {
		w.Header().Set("Connection", "close") // without reading the body
		http.NotFound(w, r)
		return
	}
	httpserver.Proven(r.Context())
	if r.ContentLength < 0 || r.ContentLength > maxReview {
		w.Header().Set("Connection", "close")
		http.Error(w, "a review has a length of at most 7 MiB", http.StatusRequestEntityTooLarge)
		return
	}
	size := max(r.ContentLength, leastReview)
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	if err := g.turns.Acquire(ctx, size); err != nil {
		http.Error(w, "too many reviews at once", http.StatusServiceUnavailable)
		return
	}
	defer g.turns.Release(size)
	next.ServeHTTP(w, r)
}
