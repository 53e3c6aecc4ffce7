// SPDX-License-Identifier: Apache-2.0

package signed

import (
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
)

// What a registry may do wrong, for Registry.Around: each is about the blobs that it is asked for of which sick is true.

// Tampered gives them with one byte in their middle changed.
func Tampered(sick func(digest string) bool) func(http.Handler) http.Handler {
	return onBlobs(sick, func(w http.ResponseWriter, answer *httptest.ResponseRecorder) {
		body := answer.Body.Bytes()
		if len(body) > 0 {
			body[len(body)/2] ^= 0x40
		}
		reply(w, answer, len(body))
	})
}

// BrokenOff ends the connection after some bytes of what was asked for, which cut says for the length. A negative number lets it pass.
func BrokenOff(sick func(digest string) bool, cut func(length int) int) func(http.Handler) http.Handler {
	return onBlobs(sick, func(w http.ResponseWriter, answer *httptest.ResponseRecorder) {
		if at := cut(answer.Body.Len()); at >= 0 && at < answer.Body.Len() {
			reply(w, answer, at)
			panic(http.ErrAbortHandler)
		}
		reply(w, answer, answer.Body.Len())
	})
}

// Held gives the first half of a blob and, when the channel is closed, the rest. Held.Waiting counts who waits.
type Held struct {
	Release chan struct{}
	Waiting atomic.Int64
}

// Around is for Registry.Around.
func (h *Held) Around(sick func(digest string) bool) func(http.Handler) http.Handler {
	return onBlobs(sick, func(w http.ResponseWriter, answer *httptest.ResponseRecorder) {
		body := answer.Body.Bytes()
		reply(w, answer, len(body)/2)
		h.Waiting.Add(1)
		<-h.Release
		_, _ = w.Write(body[len(body)/2:])
	})
}

func onBlobs(sick func(digest string) bool, act func(http.ResponseWriter, *httptest.ResponseRecorder)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") || !sick(path.Base(r.URL.Path)) {
				next.ServeHTTP(w, r)
				return
			}
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			act(w, answer)
		})
	}
}

// reply sends the head of an answer, that it has all of its length, and some of it.
func reply(w http.ResponseWriter, answer *httptest.ResponseRecorder, some int) {
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", strconv.Itoa(answer.Body.Len()))
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()[:some])
	if flusher, ok := w.(http.Flusher); ok {
		flusher.Flush()
	}
}
