// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/test/check"
)

// pseudoTerminal is a terminal of which the other end keeps what is written to it.
type pseudoTerminal struct {
	*os.File
	master *os.File
	ended  chan struct{}

	mu   sync.Mutex
	text []byte
	// more is closed, and replaced, when there is more text.
	more chan struct{}
}

// pty opens a terminal.
func pty(t *testing.T) *pseudoTerminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	check.Must(t, err)
	var number uint32
	check.Must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	check.Must(t, err)
	number = uint32(n)
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	check.Must(t, err)
	p := &pseudoTerminal{File: terminal, master: master, ended: make(chan struct{}), more: make(chan struct{})}
	go p.read()
	return p
}

// read keeps what is written until the terminal is closed.
func (p *pseudoTerminal) read() {
	defer close(p.ended)
	buffer := make([]byte, 4096)
	for {
		n, err := p.master.Read(buffer)
		p.mu.Lock()
		p.text = append(p.text, buffer[:n]...)
		close(p.more)
		p.more = make(chan struct{})
		p.mu.Unlock()
		if err != nil {
			return // EIO at the end
		}
	}
}

// written closes the terminal and returns all that was written to it.
func (p *pseudoTerminal) written() string {
	_ = p.Close()
	<-p.ended
	_ = p.master.Close()
	return strings.ReplaceAll(string(p.text), "\r\n", "\n")
}

// await waits until a text was written, for a minute at most.
func (p *pseudoTerminal) await(ctx context.Context, text string) bool {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	for {
		p.mu.Lock()
		found, more := bytes.Contains(p.text, []byte(text)), p.more
		p.mu.Unlock()
		if found {
			return true
		}
		select {
		case <-more:
		case <-ctx.Done():
			return false
		}
	}
}

// TestColours: a terminal has them, with the same words, and nothing else has.
func TestColours(t *testing.T) {
	t.Setenv("TERM", "xterm")
	args := []string{"devices", "--rot", "x"}
	const plain = "fettle: devices: unknown flag: --rot; did you mean --root? See fettle devices --help\n"
	terminal := pty(t)
	if status := run(t.Context(), args, io.Discard, terminal.File); status != 2 {
		t.Errorf("exit status %d, want 2", status)
	}
	if got, want := terminal.written(), strings.Replace(plain, "fettle:", "\x1b[31mfettle:\x1b[0m", 1); got != want {
		t.Errorf("a terminal gets %q, want %q", got, want)
	}
	for name, set := range map[string]func(t *testing.T){
		"NO_COLOR": func(t *testing.T) { t.Helper(); t.Setenv("NO_COLOR", "1") },
		"dumb":     func(t *testing.T) { t.Helper(); t.Setenv("TERM", "dumb") },
	} {
		t.Run(name, func(t *testing.T) {
			set(t)
			terminal := pty(t)
			run(t.Context(), args, io.Discard, terminal.File)
			if got := terminal.written(); got != plain {
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
// So it is too where the registry has every blob, and nothing is read.
func TestProgress(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	content, terminal := registry.New(registry.Logger(log.New(io.Discard, "", 0))), pty(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		slow := r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") && path.Base(r.URL.Path) != "first"
		if slow && !terminal.await(r.Context(), "pushing ") {
			http.Error(w, "the terminal shows nothing", http.StatusForbidden)
			return
		}
		content.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	dir := filepath.Join(t.TempDir(), "cache")
	check.Must(t, os.CopyFS(dir, os.DirFS(cacheDir(t))))
	push := func(tag string, stdout, stderr io.Writer) int {
		image := strings.TrimPrefix(server.URL, "http://") + "/team/kernels:" + tag
		return run(t.Context(), []string{"cache", "build", dir, "-t", image, "--plain-http"}, stdout, stderr)
	}
	if status := push("first", io.Discard, io.Discard); status != 0 {
		t.Fatalf("exit status %d", status)
	}
	var stdout, pipe bytes.Buffer
	status := make(chan int)
	go func() { status <- push("pipe", io.Discard, &pipe) }()
	if status := push("terminal", &stdout, terminal.File); status != 0 {
		t.Fatalf("exit status %d: %s", status, terminal.written())
	}
	// The pipe's push began before and was as slow.
	if status := <-status; status != 0 || strings.Contains(pipe.String(), "pushing") {
		t.Errorf("exit status %d; a pipe gets %q", status, &pipe)
	}
	got := terminal.written()
	if !strings.Contains(got, "\r\x1b[Kpushing ") || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("a terminal gets %q, want a line that says pushing, and that is cleared", got)
	}
	if strings.Contains(stdout.String(), "\x1b") {
		t.Errorf("the result has it: %q", &stdout)
	}
}
