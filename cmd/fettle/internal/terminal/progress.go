// SPDX-License-Identifier: Apache-2.0

// Package terminal shows on a terminal what a pipe does not get: how far something is, and colours.
package terminal

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"
)

const (
	// quiet is how long something may take before anything is shown.
	quiet = time.Second
	// refresh is the time between two updates of the line.
	refresh = 200 * time.Millisecond
	// erase goes to the beginning of the line and clears it (ECMA-48, EL).
	erase = "\r\x1b[K"
)

// Progress is one line of a terminal that says what is being done and how far it is. A nil Progress shows nothing.
type Progress struct {
	terminal io.Writer
	now      func() time.Time

	mu          sync.Mutex
	what        string
	objects     bool // that done and total count, and not bytes
	done, total int64
	began       time.Time // of the first step
	shown       bool
}

// NewProgress returns a line on a terminal that shows nothing until Run is called.
func NewProgress(terminal io.Writer, now func() time.Time) *Progress {
	return &Progress{terminal: terminal, now: now}
}

// Run writes the line again and again until ctx ends, and clears it.
func (p *Progress) Run(ctx context.Context) {
	ticker := time.NewTicker(refresh)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			p.mu.Lock()
			defer p.mu.Unlock()
			p.clear()
			return
		case <-ticker.C:
			p.draw()
		}
	}
}

// draw writes the line, once the first step began long enough ago.
func (p *Progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := p.now().Sub(p.began)
	if p.what == "" || since < quiet {
		return
	}
	text, amount := p.what, Size
	if p.objects {
		amount = func(n int64) string { return strconv.FormatInt(n, 10) }
	}
	switch {
	case p.total > 0:
		text += fmt.Sprintf(" %s of %s", amount(p.done), amount(p.total))
	case p.done > 0:
		text += " " + amount(p.done)
	}
	fmt.Fprintf(p.terminal, "%s%s (%d s)", erase, text, int(since.Seconds()))
	p.shown = true
}

// clear removes the line. The caller holds the lock.
func (p *Progress) clear() {
	if p.shown {
		fmt.Fprint(p.terminal, erase)
		p.shown = false
	}
}

// Size is a number of bytes for people.
func Size(n int64) string {
	const kibi, mebi, gibi = 1 << 10, 1 << 20, 1 << 30
	switch {
	case n >= gibi:
		return fmt.Sprintf("%.1f GiB", float64(n)/gibi)
	case n >= mebi:
		return fmt.Sprintf("%.1f MiB", float64(n)/mebi)
	case n >= kibi:
		return fmt.Sprintf("%.1f KiB", float64(n)/kibi)
	}
	return fmt.Sprintf("%d bytes", n)
}

// Step begins a step with a number of bytes to come, 0 if that is unknown.
func (p *Progress) Step(what string, total int64) { p.set(what, false, 0, total) }

// Objects says how many objects of a step are done, of how many, 0 if that is unknown.
func (p *Progress) Objects(what string, done, total int64) { p.set(what, true, done, total) }

func (p *Progress) set(what string, objects bool, done, total int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.began.IsZero() {
		p.began = p.now()
	}
	p.what, p.objects, p.done, p.total = what, objects, done, total
}

func (p *Progress) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += int64(n)
}

// Reader begins a step and counts what is read.
func (p *Progress) Reader(r io.ReadCloser, what string, total int64) io.ReadCloser {
	if p == nil {
		return r
	}
	p.Step(what, total)
	return countedReader{r, p}
}

type countedReader struct {
	io.ReadCloser
	progress *Progress
}

func (r countedReader) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	r.progress.add(n)
	return n, err
}

// Counter counts what is written, as part of the step that was begun.
func (p *Progress) Counter(w io.Writer) io.Writer {
	if p == nil {
		return w
	}
	return countedWriter{w, p}
}

type countedWriter struct {
	io.Writer
	progress *Progress
}

func (w countedWriter) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	w.progress.add(n)
	return n, err
}

// Above returns a writer to the same terminal whose text replaces the line.
func (p *Progress) Above(w io.Writer) io.Writer {
	if p == nil {
		return w
	}
	return above{w, p}
}

type above struct {
	io.Writer
	progress *Progress
}

func (a above) Write(b []byte) (int, error) {
	a.progress.mu.Lock()
	defer a.progress.mu.Unlock()
	a.progress.clear()
	return a.Writer.Write(b)
}

type key struct{}

// NewContext returns a context with a progress.
func NewContext(ctx context.Context, p *Progress) context.Context {
	return context.WithValue(ctx, key{}, p)
}

// FromContext returns the progress of a context, nil if it has none.
func FromContext(ctx context.Context) *Progress {
	p, _ := ctx.Value(key{}).(*Progress)
	return p
}
