// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"golang.org/x/sys/unix"
)

// pty opens a terminal. What is written to it can be read until it is closed.
func pty(t *testing.T) (terminal *os.File, written func() string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	must(t, err)
	var number uint32
	must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, err)
	number = uint32(n)
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	text := make(chan string)
	go func() {
		all, _ := io.ReadAll(master) // EIO at the end
		text <- string(all)
	}()
	return terminal, func() string {
		_ = terminal.Close()
		all := <-text
		_ = master.Close()
		return strings.ReplaceAll(all, "\r\n", "\n")
	}
}

// TestColours: a terminal has them, with the same words, and nothing else has.
func TestColours(t *testing.T) {
	t.Setenv("TERM", "xterm")
	args := []string{"devices", "--rot", "x"}
	const plain = "fettle: devices: unknown flag: --rot; did you mean --root? See fettle devices --help\n"
	terminal, written := pty(t)
	if status := run(t.Context(), args, io.Discard, terminal); status != 2 {
		t.Errorf("exit status %d, want 2", status)
	}
	if got, want := written(), strings.Replace(plain, "fettle:", "\x1b[31mfettle:\x1b[0m", 1); got != want {
		t.Errorf("a terminal gets %q, want %q", got, want)
	}
	for name, set := range map[string]func(t *testing.T){
		"NO_COLOR": func(t *testing.T) { t.Helper(); t.Setenv("NO_COLOR", "1") },
		"dumb":     func(t *testing.T) { t.Helper(); t.Setenv("TERM", "dumb") },
	} {
		t.Run(name, func(t *testing.T) {
			set(t)
			terminal, written := pty(t)
			run(t.Context(), args, io.Discard, terminal)
			if got := written(); got != plain {
				t.Errorf("got %q, want %q", got, plain)
			}
		})
	}
	var stderr bytes.Buffer
	run(t.Context(), args, io.Discard, &stderr)
	if stderr.String() != plain {
		t.Errorf("a pipe gets %q, want %q", &stderr, plain)
	}
}

// TestProgress: what takes longer than a second says on a terminal how far it is, and the line is gone at the end. A pipe has none of it.
func TestProgress(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	content := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") {
			select { // the registry is slow
			case <-time.After(1500 * time.Millisecond):
			case <-r.Context().Done():
			}
		}
		content.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	dir := filepath.Join(t.TempDir(), "cache")
	must(t, os.CopyFS(dir, os.DirFS(cacheDir(t))))
	args := []string{"cache", "build", dir, "-t", strings.TrimPrefix(server.URL, "http://") + "/team/kernels:v1", "--plain-http"}
	terminal, written := pty(t)
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), args, &stdout, terminal); status != 0 {
		t.Fatalf("exit status %d: %s", status, written())
	}
	got := written()
	if !strings.Contains(got, "\r\x1b[Kpushing ") || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("a terminal gets %q, want a line that says pushing, and that is cleared", got)
	}
	if strings.Contains(stdout.String(), "\x1b") {
		t.Errorf("the result has it: %q", &stdout)
	}
	stdout.Reset()
	if status := run(t.Context(), args, &stdout, &stderr); status != 0 || strings.Contains(stderr.String(), "pushing") {
		t.Errorf("exit status %d; a pipe gets %q", status, &stderr)
	}
}
