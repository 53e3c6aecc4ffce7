// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/fettle-dev/fettle/test/check"
)

type answer func(*http.Request) *http.Response

func (a answer) RoundTrip(r *http.Request) (*http.Response, error) { return a(r), nil }

// TestCounter counts calls by what they are, and the events of watches in both encodings, however their bytes arrive.
func TestCounter(t *testing.T) {
	var frames bytes.Buffer
	for _, event := range []string{
		"\n\x05ADDED", "\n\x08BOOKMARK" + strings.Repeat("x", 100), "", "\n\x08MODIFIED" + strings.Repeat("x", 70_000),
	} {
		frames.Write(binary.BigEndian.AppendUint32(nil, uint32(len(event))))
		frames.WriteString(event)
	}
	c := newCounter(answer(func(r *http.Request) *http.Response {
		resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {r.Header.Get("Accept")}}}
		if strings.Contains(r.Header.Get("Accept"), "protobuf") {
			resp.Body = io.NopCloser(iotest.OneByteReader(bytes.NewReader(frames.Bytes())))
		} else {
			lines := []string{`{"type":"ADDED"}`, `{"type":"BOOKMARK","object":{}}`, `{"type":"DELETED"}`, ""}
			resp.Body = io.NopCloser(strings.NewReader(strings.Join(lines, "\n")))
		}
		return resp
	}))
	ask := func(method, url, accept string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "https://x"+url, http.NoBody)
		check.Must(t, err)
		r.Header.Set("Accept", accept)
		resp, err := c.RoundTrip(r)
		check.Must(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		check.Must(t, err)
		return resp.StatusCode
	}
	const slices = "/apis/resource.k8s.io/v1/resourceslices"
	ask(http.MethodGet, slices+"?watch=true", "application/vnd.kubernetes.protobuf;stream=watch")
	ask(http.MethodGet, slices+"?watch=true", "application/json")
	ask(http.MethodGet, slices, "application/json")
	ask(http.MethodPost, slices+"?dryRun=All", "application/json")
	ask(http.MethodGet, "/version", "application/json")
	before := c.seen()
	c.setRefuse(func(k call) bool { return k.resource == "acceleratornodes/status" })
	if code := ask(http.MethodPatch, "/apis/fettle.dev/v1alpha1/acceleratornodes/n/status", "application/json"); code != http.StatusForbidden {
		t.Errorf("a refused call is answered with %d", code)
	}
	want := tally{
		{"watch", "resourceslices"}: 2, {"deliver", "resourceslices"}: 4, {"list", "resourceslices"}: 1, {"dry-run", "resourceslices"}: 1,
		{"get", "/version"}: 1, {"patch", "acceleratornodes/status"}: 1,
	}
	got := c.seen()
	for kind, n := range want {
		if got[kind] != n {
			t.Errorf("%s: %d, want %d", kind, got[kind], n)
		}
	}
	if got.requests() != 4 || got.writes() != 1 || got.since(before).requests() != 1 {
		t.Errorf("%d requests, %d writes, %d since: %v", got.requests(), got.writes(), got.since(before).requests(), got)
	}
}
