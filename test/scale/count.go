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

// tooMany is the verb of requests that the API server answered with 429. They are counted by their own verb, too.
const tooMany = "too-many"

// unlisted is the verb of lists that the API server refused, as when it has just started.
const unlisted = "unlisted"

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
	if c.refuses(kind) {
		c.add(kind, 1)
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return forbidden(r), nil
	}
	resp, err := c.inner.RoundTrip(r)
	switch {
	case err != nil: // no API server had any work with it
	case kind.verb == "list" && resp.StatusCode != http.StatusOK:
		c.add(call{unlisted, kind.resource}, 1)
	default:
		c.add(kind, 1)
	}
	if err == nil && resp.StatusCode == http.StatusTooManyRequests {
		c.add(call{tooMany, kind.resource}, 1)
	}
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

func (c *counter) refuses(kind call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refuse != nil && c.refuse(kind)
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

// watched counts the events in the answer to a watch: lines of JSON, or frames of protobuf, each after its length in four bytes. Bookmarks,
// which an API server sends about once a minute whatever happens, are none.
type watched struct {
	io.ReadCloser
	lines bool
	count func(int)
	// length is what is there of a frame's length, left what is missing of its content.
	length []byte
	left   int
	// head is how the event under way begins: with its type.
	head []byte
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	for data := p[:n]; len(data) > 0; {
		if w.lines {
			data = w.line(data)
		} else {
			data = w.frame(data)
		}
	}
	return n, err
}

// line takes what belongs to one line, and returns the rest.
func (w *watched) line(data []byte) []byte {
	line, rest, ended := bytes.Cut(data, []byte{'\n'})
	w.begin(line)
	if ended {
		w.end()
	}
	return rest
}

// frame takes what belongs to the length of one frame, or to its content, and returns the rest.
func (w *watched) frame(data []byte) []byte {
	const prefix = 4
	if w.left > 0 {
		taken := min(w.left, len(data))
		w.begin(data[:taken])
		if w.left -= taken; w.left == 0 {
			w.end()
		}
		return data[taken:]
	}
	taken := min(prefix-len(w.length), len(data))
	if w.length = append(w.length, data[:taken]...); len(w.length) == prefix {
		w.left, w.length = int(binary.BigEndian.Uint32(w.length)), w.length[:0]
	}
	return data[taken:]
}

func (w *watched) begin(data []byte) {
	const enough = 32
	w.head = append(w.head, data[:min(len(data), enough-len(w.head))]...)
}

func (w *watched) end() {
	if len(w.head) > 0 && !bytes.Contains(w.head, []byte("BOOKMARK")) {
		w.count(1)
	}
	w.head = w.head[:0]
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
		if kind.verb != "watch" && kind.verb != "deliver" && kind.verb != tooMany {
			n += count
		}
	}
	return n
}

// writes are the calls that change something.
func (t tally) writes() int {
	return t.of("create", "update", "patch", "delete", "deletecollection")
}
