// SPDX-License-Identifier: Apache-2.0

package kubeletclaims

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/kubeletstate"
)

// newServer serves a file that does not exist yet, and returns its path and the socket's.
func newServer(t *testing.T) (file, socket string) {
	t.Helper()
	dir := t.TempDir()
	file, socket = filepath.Join(dir, "state"), filepath.Join(dir, "s")
	check.Must(t, os.WriteFile(socket, nil, 0o600)) // an earlier process left it
	listener, err := Listen(t.Context(), socket)
	check.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, listener, file) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return file, socket
}

// TestServe: each answer is the file as it is then, however kubelet replaces it.
func TestServe(t *testing.T) {
	file, socket := newServer(t)
	if known, err := Read(socket); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without a file: %v, %v", known, err)
	}
	for _, uids := range [][]string{{}, {"u1"}, {"u1", "u2"}, {"u2"}} {
		next := file + ".next"
		check.Must(t, os.WriteFile(next, kubeletstate.File(t, kubeletstate.Version, uids...), 0o600))
		check.Must(t, os.Rename(next, file))
		want := UIDs{}
		for _, uid := range uids {
			want[uid] = true
		}
		for _, path := range []string{socket, file} {
			known, err := Read(path)
			check.Must(t, err)
			if diff := cmp.Diff(want, known); diff != "" {
				t.Errorf("from %s (-want +got):\n%s", path, diff)
			}
		}
	}
	check.Must(t, os.Truncate(file, 10))
	if known, err := Read(socket); err == nil {
		t.Errorf("a torn file: %v", known)
	}
}

// TestManyClaims: an answer of some size arrives whole.
func TestManyClaims(t *testing.T) {
	file, socket := newServer(t)
	var uids []string
	for i := range 5000 {
		uids = append(uids, fmt.Sprintf("0b0d6d1c-5f0e-4b43-8a47-%012d", i))
	}
	check.Must(t, os.WriteFile(file, kubeletstate.File(t, kubeletstate.Version, uids...), 0o600))
	known, err := Read(socket)
	check.Must(t, err)
	if len(known) != len(uids) || !known[uids[4999]] {
		t.Errorf("%d of %d claims", len(known), len(uids))
	}
}

// TestOddAnswers: what is not a whole answer means that the claims are not known, never that there are none.
func TestOddAnswers(t *testing.T) {
	for _, text := range []string{
		"", "{", `{}`, `{"claims":null}`, `{"claims":["u1"`, `["u1"]`, `{"claims":[],"error":"no"}`, `{"claims":[]}{}`,
	} {
		socket := filepath.Join(t.TempDir(), "s")
		listener, err := net.Listen("unix", socket)
		check.Must(t, err)
		go func() {
			if client, err := listener.Accept(); err == nil {
				_, _ = io.WriteString(client, text)
				_ = client.Close()
			}
		}()
		if known, err := Read(socket); err == nil || known != nil {
			t.Errorf("%q: %v, %v", text, known, err)
		}
		check.Must(t, listener.Close())
	}
	if _, err := Read(filepath.Join(t.TempDir(), "nothing")); err == nil {
		t.Error("read what is not there")
	}
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	check.Must(t, err)
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	check.Must(t, listener.Close())
	if _, err := Read(socket); err == nil {
		t.Error("read from a server that ended")
	}
}

// TestUnreadableFiles: only a file of a sensible size is read.
func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	check.Must(t, os.WriteFile(large, nil, 0o600))
	check.Must(t, os.Truncate(large, maxFile+1))
	for _, path := range []string{dir, large} {
		if _, err := readFile(path); err == nil {
			t.Errorf("%s was read", path)
		}
	}
}
