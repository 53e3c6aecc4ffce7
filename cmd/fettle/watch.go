// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fettle-dev/fettle/pkg/preset/explain"
)

// watch declares --watch.
func (a *arguments) watch() *bool {
	return a.BoolP("watch", "w", false, "print again whenever the answer changes, until interrupted")
}

// settle is how long changes are collected before the next answer, so that many at once are one.
const settle = 500 * time.Millisecond

// follow shows an answer. With watching it shows the answer again whenever something changes that the cluster was asked for, until ctx
// ends. It waits for what is not there yet.
func (c *cluster) follow(ctx context.Context, watching bool, to *outputs, show func(stdout, stderr io.Writer) error) error {
	if !watching {
		return show(to.stdout, to.stderr)
	}
	for {
		var out, errs bytes.Buffer
		err := show(&out, &errs)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // a person ended it
		case pending(err):
			fmt.Fprintf(&errs, "waiting: %v\n", err)
			out.Reset()
		case err != nil:
			_, _ = errs.WriteTo(to.stderr)
			return err
		}
		if err := to.print(&out, &errs); err != nil {
			return err
		}
		if err := c.changed(ctx); ctx.Err() != nil || err != nil {
			return ended(ctx, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
	}
}

// changed waits for news of what was read.
func (c *cluster) changed(ctx context.Context) error {
	if c.reader == nil {
		return errors.New("nothing of a cluster was read")
	}
	return c.reader.changed(ctx)
}

// ended tells the end that a person wants from a failure.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // a person ended it
	}
	return fmt.Errorf("--watch: %w", err)
}

// notThereError is about objects that may come.
type notThereError struct{ error }

// pending reports whether an answer failed for what may come.
func pending(err error) bool {
	return errors.As(err, new(notThereError)) || errors.Is(err, explain.ErrNotAllocated)
}

// outputs are where answers are shown, and in which format.
type outputs struct {
	stdout, stderr io.Writer
	format         string
	// out and errs are what was shown last.
	out, errs string
}

// print shows what differs from the last answer. Answers for people have a line between them, documents in YAML their mark.
func (o *outputs) print(out, errs *bytes.Buffer) error {
	if text := errs.String(); text != o.errs {
		o.errs = text
		fmt.Fprint(o.stderr, text)
	}
	text := out.String()
	if text == o.out {
		return nil
	}
	separator := "\n"
	switch {
	case o.out == "" || o.format == "json":
		separator = ""
	case o.format == "yaml":
		separator = "---\n"
	}
	o.out = text
	_, err := io.WriteString(o.stdout, separator+text)
	return err
}
