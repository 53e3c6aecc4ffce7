// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Opener opens a layer, counted from 0, to be read once. Its reader is to fail when ctx ends.
type Opener func(ctx context.Context, layer int) (io.ReadCloser, error)

// Extract reads the layers of an image in their order, the lowest first, into a sink. What the sink holds after an error is to be thrown
// away.
func Extract(ctx context.Context, layers []Layer, open Opener, sink Sink, o Options) (*Tree, error) {
	o.Limits = o.Limits.withDefaults()
	x := &extraction{options: o, builder: newBuilder(sink), left: o.Limits.Total, entries: o.Limits.Entries, names: o.Limits.Names}
	for i, layer := range layers {
		x.begin(i + 1)
		if err := x.layer(ctx, layer, func(ctx context.Context) (io.ReadCloser, error) { return open(ctx, i) }); err != nil {
			return nil, x.at(i+1, err)
		}
	}
	t := x.tree()
	if err := sink.Finish(t); err != nil {
		return nil, fmt.Errorf("finish the tree: %w", err)
	}
	return t, nil
}

type extraction struct {
	options Options
	*builder
	// left is how many plain bytes may come, entries how many entries with how many bytes of names.
	left    int64
	entries int
	names   int64
	// entry is the name that is being looked at, as the layer has it.
	entry string
}

// at says where an error happened.
func (x *extraction) at(layer int, err error) error {
	var own *Error
	if !errors.As(err, &own) {
		return fmt.Errorf("unpack layer %d: %w", layer, err)
	}
	located := *own
	located.Layer, located.Entry = layer, x.entry
	return &located
}

func (x *extraction) layer(ctx context.Context, layer Layer, source func(context.Context) (io.ReadCloser, error)) (err error) {
	x.entry = ""
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := source(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	s, err := open(ctx, layer, r, x.options.Limits, x.left)
	if err != nil {
		return err
	}
	defer s.close()
	defer cancel() // first: what is read ahead must not wait for bytes that nobody wants
	if err := x.tar(s); err != nil {
		return x.blame(s, cancel, err)
	}
	if err := s.finish(); err != nil {
		return x.blame(s, cancel, err)
	}
	x.left -= s.plainBytes()
	return x.end()
}

// blamePatience is how long a layer that is refused anyway is read on.
const blamePatience = 3 * time.Second

// blame finds out whether a layer that is refused for what it holds is the declared one at all: whoever reads that a tar is broken looks
// at who packed it, and not at the registry that gave other bytes. What is left is read for that, as it would have been had the fault
// come last; not what is too large, nor what comes slowly.
func (x *extraction) blame(s *stream, cancel context.CancelFunc, err error) error {
	if !errors.Is(err, ErrRefused) {
		return err
	}
	timer := time.AfterFunc(blamePatience, cancel)
	defer timer.Stop()
	if other := s.drain(); errors.Is(other, ErrMismatch) {
		x.entry = ""
		return other
	}
	return err
}

// tar reads the entries.
func (x *extraction) tar(s *stream) error {
	r := tar.NewReader(s)
	for {
		x.entry = ""
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return badTar(err)
		}
		x.entry = h.Name
		if err := x.one(h, r); err != nil {
			return badTar(err)
		}
	}
}

// badTar turns errors of the tar reader into an Error. One that is an Error already says more than the tar reader could.
func badTar(err error) error {
	var own *Error
	switch {
	case errors.As(err, &own):
		return err
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong):
		return broke(RuleTar, "a header is not one: %w", err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return broke(RuleTar, "it ends before the content that a header declares")
	}
	return err
}

// one looks at an entry and makes it.
func (x *extraction) one(h *tar.Header, r io.Reader) error {
	if x.entries--; x.entries < 0 {
		return broke(RuleEntries, "expected at most %d", x.options.Limits.Entries)
	}
	if x.names -= int64(len(h.Name)); x.names < 0 {
		return broke(RuleNames, "expected at most %d bytes", x.options.Limits.Names)
	}
	name, err := x.check(h)
	if err != nil {
		return err
	}
	switch {
	case isLayerIndex(h):
		return nil // the tar reader reads on to the next header
	case strings.HasPrefix(name[strings.LastIndexByte(name, '/')+1:], whiteout):
		if h.Typeflag != tar.TypeReg || h.Size != 0 {
			return broke(RuleWhiteout, "it has a type or a content: expected an empty file")
		}
		return x.hide(name)
	case h.Typeflag == tar.TypeDir:
		_, failed := x.dir(name, true)
		return failed
	}
	return x.file(name, h.Mode&0o111 != 0, h.Size, r)
}

// check holds a header against the rules.
func (x *extraction) check(h *tar.Header) (string, error) {
	dir := h.Typeflag == tar.TypeDir
	for _, check := range []func(*tar.Header) *Error{checkPAX, checkType, checkMode} {
		if err := check(h); err != nil {
			return "", err
		}
	}
	name, broken := checkName(h.Name, dir)
	switch {
	case broken != nil:
		return "", broken
	case len(x.options.Paths) > 0 && !isLayerIndex(h) && !allowed(x.options.Paths, name, dir):
		return "", broke(RulePath, "it is not part of a kernel cache: expected one of %s", strings.Join(x.options.Paths, ", "))
	case h.Size < 0 || dir && h.Size != 0:
		return "", broke(RuleTar, "it declares %d bytes", h.Size)
	case h.Size > x.options.Limits.File:
		return "", broke(RuleFileSize, "it declares %d bytes, expected at most %d", h.Size, x.options.Limits.File)
	}
	return name, nil
}

// isLayerIndex reports whether an entry belongs to the format of the layer and not to its content. Tools that convert an image to eStargz
// add an index and a mark for prefetching to the tar (stargz-snapshotter, docs/estargz.md), and those for zstd:chunked may add the mark.
// Both are checked and counted as any entry, and left out of the tree: a converted image has the same tree as the original.
func isLayerIndex(h *tar.Header) bool {
	names := []string{"stargz.index.json", ".prefetch.landmark", ".no.prefetch.landmark"}
	return h.Typeflag == tar.TypeReg && slices.Contains(names, h.Name)
}

// checkPAX refuses what a header cannot say without an extension and this program would have to obey or ignore.
func checkPAX(h *tar.Header) *Error {
	// What a header itself has, too, or says about times, and the owner, which do not count here.
	known := []string{"path", "size", "mtime", "atime", "ctime", "uid", "gid", "uname", "gname", "LIBARCHIVE.creationtime"}
	var keys []string
	for key := range h.PAXRecords {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		switch {
		case h.Typeflag == tar.TypeXGlobalHeader:
			return broke(RulePAX, "it is a global header: expected none")
		case strings.HasPrefix(key, "SCHILY.xattr.") || strings.HasPrefix(key, "LIBARCHIVE.xattr."):
			return broke(RuleXattr, "it has %s: expected none", quote(key))
		case strings.HasPrefix(key, "GNU.sparse."):
			return broke(RuleSparse, "it has holes: expected its content in full")
		case !slices.Contains(known, key) && (key != "linkpath" || !isLink(h)):
			return broke(RulePAX, "it has the key %s: expected none but those for a header's fields", quote(key))
		}
	}
	return nil
}

func isLink(h *tar.Header) bool { return h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink }

func checkType(h *tar.Header) *Error {
	var what string
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir:
		return nil
	case tar.TypeSymlink:
		what = "a symbolic link to " + quote(h.Linkname)
	case tar.TypeLink:
		what = "a hard link to " + quote(h.Linkname)
	case tar.TypeChar, tar.TypeBlock:
		what = "a device"
	case tar.TypeFifo:
		what = "a named pipe"
	case tar.TypeGNUSparse:
		return broke(RuleSparse, "it has holes: expected its content in full")
	case tar.TypeXGlobalHeader:
		return broke(RulePAX, "it is a global header: expected none")
	default:
		what = fmt.Sprintf("of type %q", h.Typeflag)
	}
	return broke(RuleType, "it is %s: expected a directory or a regular file", what)
}

// checkMode refuses what a program that obeys the mode would give away. A directory may have it from the one that it was made in.
func checkMode(h *tar.Header) *Error {
	const setuid, setgid, known = 0o4000, 0o2000, 0o7777
	bits := h.Mode & known
	if h.Typeflag == tar.TypeReg && bits&(setuid|setgid) != 0 {
		return broke(RuleMode, "it has mode %04o, expected neither setuid nor setgid", bits)
	}
	if h.Mode&^(known|int64(0o170000)) != 0 {
		return broke(RuleMode, "it has mode %o: expected permissions", h.Mode)
	}
	return nil
}
