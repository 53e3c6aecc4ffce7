// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// network is a transport without sockets: handlers by the host of the URL. So tests of slow registries run in the time of a bubble.
type network map[string]http.Handler

// RoundTrip implements http.RoundTripper.
func (n network) RoundTrip(r *http.Request) (*http.Response, error) {
	handler := n[r.URL.Host]
	if handler == nil {
		return nil, fmt.Errorf("dial %s: connection refused", r.URL.Host)
	}
	from, to := io.Pipe()
	a := &streamedAnswer{header: http.Header{}, begun: make(chan struct{}), body: to}
	go func() {
		defer func() {
			broken := recover()
			a.WriteHeader(http.StatusOK)
			if broken != nil {
				_ = to.CloseWithError(io.ErrUnexpectedEOF)
			}
			_ = to.Close()
		}()
		handler.ServeHTTP(a, r)
	}()
	go func() {
		<-r.Context().Done()
		_ = from.CloseWithError(r.Context().Err())
	}()
	select {
	case <-a.begun:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	length, err := strconv.ParseInt(a.header.Get("Content-Length"), 10, 64)
	if err != nil {
		length = -1
	}
	return &http.Response{
		StatusCode: a.code, Status: http.StatusText(a.code), Header: a.header, Body: from, ContentLength: length, Request: r,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// streamedAnswer gives the client each piece when the handler writes it.
type streamedAnswer struct {
	header http.Header
	code   int
	once   sync.Once
	begun  chan struct{}
	body   *io.PipeWriter
}

func (a *streamedAnswer) Header() http.Header { return a.header }

func (a *streamedAnswer) WriteHeader(code int) {
	a.once.Do(func() {
		a.code = code
		close(a.begun)
	})
}

func (a *streamedAnswer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}
