// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// call is a kind of request: "list resourceslices", or "deliver resourceslices" for an event of a watch.
type call struct{ verb, resource string }

func (c call) String() string { return c.verb + " " + c.resource }

// counter counts the calls of one node, and can have some fail.
type counter struct {
	inner http.RoundTripper
	names *request.RequestInfoFactory

	mu    sync.Mutex
	calls map[call]int
	// refuse says which calls are answered with 403 instead of being sent. Nil: none.
	refuse func(call) bool
}

func newCounter(inner http.RoundTripper) *counter {
	return &counter{
		inner: inner, calls: map[call]int{},
		names: &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")},
	}
}

// RoundTrip implements http.RoundTripper.
func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	kind := c.kind(r)
	c.mu.Lock()
	c.calls[kind]++
	refused := c.refuse != nil && c.refuse(kind)
	c.mu.Unlock()
	if refused {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return forbidden(r), nil
	}
	resp, err := c.inner.RoundTrip(r)
	if err == nil && kind.verb == "watch" && resp.StatusCode == http.StatusOK {
		resp.Body = &watched{
			ReadCloser: resp.Body, lines: !strings.Contains(resp.Header.Get("Content-Type"), "protobuf"),
			count: func(n int) { c.add(call{"deliver", kind.resource}, n) },
		}
	}
	return resp, err
}

func (c *counter) kind(r *http.Request) call {
	info, err := c.names.NewRequestInfo(r)
	switch {
	case err != nil || !info.IsResourceRequest:
		return call{"get", r.URL.Path}
	case r.URL.Query().Has("dryRun"):
		return call{"dry-run", info.Resource}
	case info.Subresource != "":
		return call{info.Verb, info.Resource + "/" + info.Subresource}
	}
	return call{info.Verb, info.Resource}
}

func (c *counter) add(kind call, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[kind] += n
}

// setRefuse changes which calls are refused.
func (c *counter) setRefuse(refuse func(call) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = refuse
}

// seen returns what was counted so far.
func (c *counter) seen() tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}

func forbidden(r *http.Request) *http.Response {
	const text = `{"kind":"Status","apiVersion":"v1","status":"` + metav1.StatusFailure + `","reason":"Forbidden","code":403}`
	return &http.Response{
		Status: "403 Forbidden", StatusCode: http.StatusForbidden, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)),
	}
}

// watched counts the events in the answer to a watch: lines of JSON, or frames of protobuf, each after its length in four bytes.
type watched struct {
	io.ReadCloser
	lines bool
	count func(int)
	// length is what is there of a frame's length, left what is missing of its content.
	length []byte
	left   int
}

func (e *watched) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if e.lines {
		e.count(bytes.Count(p[:n], []byte{'\n'}))
		return n, err
	}
	for data := p[:n]; len(data) > 0; {
		if e.left > 0 {
			skipped := min(e.left, len(data))
			e.left, data = e.left-skipped, data[skipped:]
			continue
		}
		taken := min(4-len(e.length), len(data))
		e.length, data = append(e.length, data[:taken]...), data[taken:]
		if len(e.length) == 4 {
			e.left, e.length = int(binary.BigEndian.Uint32(e.length)), e.length[:0]
			e.count(1)
		}
	}
	return n, err
}

// tally is how often each kind of call was made.
type tally map[call]int

// since returns what came after an earlier tally.
func (t tally) since(before tally) tally {
	out := tally{}
	for kind, n := range t {
		if d := n - before[kind]; d > 0 {
			out[kind] = d
		}
	}
	return out
}

// of sums the calls of some verbs.
func (t tally) of(verbs ...string) (n int) {
	for kind, count := range t {
		if slices.Contains(verbs, kind.verb) {
			n += count
		}
	}
	return n
}

// requests are those that are neither a watch nor what comes by one.
func (t tally) requests() (n int) {
	for kind, count := range t {
		if kind.verb != "watch" && kind.verb != "deliver" {
			n += count
		}
	}
	return n
}

// writes are the calls that change something.
func (t tally) writes() int {
	return t.of("create", "update", "patch", "delete", "deletecollection")
}
