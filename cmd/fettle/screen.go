// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"
	"time"

	"k8s.io/cli-runtime/pkg/printers"

	"github.com/fettle-dev/fettle/cmd/fettle/internal/terminal"
	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/artifact/push"
	"github.com/fettle-dev/fettle/pkg/artifact/registry"
	"github.com/fettle-dev/fettle/pkg/message"
)

// screen is where a verb prints. Only terminals show progress and colours: a pipe or file gets the same text without.
type screen struct {
	// stdout takes files byte by byte, people what is for people.
	stdout, people, stderr io.Writer
	endings                []func()
}

// newScreen looks at what the two outputs are. The returned context has the progress.
func newScreen(ctx context.Context, stdout, stderr io.Writer) (context.Context, *screen) {
	s := &screen{}
	var progress *terminal.Progress
	if printers.IsTerminal(stderr) && os.Getenv("TERM") != "dumb" {
		progress = terminal.NewProgress(stderr, time.Now)
		running, stop := context.WithCancel(context.WithoutCancel(ctx))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			progress.Run(running)
		}()
		s.endings = append(s.endings, func() {
			stop()
			<-ended
		})
	}
	s.stdout = stdout
	if printers.IsTerminal(stdout) {
		s.stdout = progress.Above(stdout)
	}
	s.people = message.Printable(s.coloured(s.stdout, stdout))
	s.stderr = message.Printable(s.coloured(progress.Above(stderr), stderr))
	return terminal.NewContext(ctx, progress), s
}

// coloured returns w, with colours if the output is a terminal for them: TERM is not dumb, and NO_COLOR is not set.
func (s *screen) coloured(w, output io.Writer) io.Writer {
	if !printers.AllowsColorOutput(output) {
		return w
	}
	c := terminal.NewColour(w)
	s.endings = append(s.endings, func() { _ = c.Flush() }) // there is nobody left to tell
	return c
}

// end clears the progress and writes what is left.
func (s *screen) end() {
	for _, end := range s.endings {
		end()
	}
}

// countedSource shows how much of an image was read.
type countedSource struct{ imageSource }

// Resolve asks the registry, which may take its time.
func (s countedSource) Resolve(ctx context.Context) (artifact.Descriptor, error) {
	if registry := s.Reference().Registry(); registry != "" {
		terminal.FromContext(ctx).Step("asking "+registry, 0)
	}
	return s.imageSource.Resolve(ctx)
}

// Direct is what trust asks where a mirror shows no good signature.
func (s countedSource) Direct() *registry.Source {
	if remote, ok := s.imageSource.(*registry.Source); ok {
		return remote.Direct()
	}
	return nil
}

// Open counts what is read of a blob.
func (s countedSource) Open(ctx context.Context, d artifact.Descriptor) (io.ReadCloser, error) {
	r, err := s.imageSource.Open(ctx, d)
	if err != nil {
		return nil, err
	}
	return terminal.FromContext(ctx).Reader(r, "reading", d.Size), nil
}

// countedTarget shows how much of an image was written.
type countedTarget struct{ push.Target }

// Blob counts what is read of a blob to be written. It says so before the registry is asked, which may have the blob, and may take its
// time.
func (t countedTarget) Blob(ctx context.Context, d artifact.Descriptor, open push.Opener) error {
	terminal.FromContext(ctx).Step("pushing", d.Size)
	return t.Target.Blob(ctx, d, func(ctx context.Context) (io.ReadCloser, error) {
		r, err := open(ctx)
		if err != nil {
			return nil, err
		}
		return terminal.FromContext(ctx).Reader(r, "pushing", d.Size), nil
	})
}

// countedPuller shows how much of a blob came into the store.
type countedPuller struct{ artifact.Puller }

// Pull counts what is written to the sink.
func (p countedPuller) Pull(ctx context.Context, d artifact.Descriptor, to artifact.Sink) error {
	progress := terminal.FromContext(ctx)
	progress.Step("pulling", d.Size)
	return p.Puller.Pull(ctx, d, countedSink{to, progress.Counter(to)})
}

type countedSink struct {
	artifact.Sink
	counted io.Writer
}

// Write counts.
func (s countedSink) Write(b []byte) (int, error) { return s.counted.Write(b) }
