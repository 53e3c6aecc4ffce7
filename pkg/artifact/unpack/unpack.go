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

// Opener opens a layer, counted from 0, to be read once. Its reader must fail when ctx ends.
type Opener func(ctx context.Context, layer int) (io.ReadCloser, error)

// Extract reads the layers of an image into a sink, the lowest layer first. After an error the caller discards what the sink holds.
func Extract(ctx context.Context, layers []Layer, open Opener, sink Sink, o Options) (*Tree, error) {
	o.Limits = o.Limits.withDefaults()
	x := &extraction{options: o, builder: newBuilder(sink, o.Limits), left: o.Limits.Total}
	for i, layer := range layers {
		x.beginLayer(i + 1)
		if err := x.layer(ctx, layer, func(ctx context.Context) (io.ReadCloser, error) { return open(ctx, i) }); err != nil {
			return nil, x.locate(i+1, err)
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
	// left is the number of plain bytes that may still come.
	left int64
	// entry is the name of the current entry, as the layer has it.
	entry string
}

// locate adds the layer and the current entry to an error.
func (x *extraction) locate(layer int, err error) error {
	var own *Error
	if !errors.As(err, &own) {
		return fmt.Errorf("unpack layer %d: %w", layer, err)
	}
	located := *own
	located.Layer, located.Entry = layer, x.entry
	return &located
}

// layer reads one layer to its end.
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
	s.arrived = x.options.Arrived
	defer s.close()
	defer cancel() // before close, which waits for reads that are under way
	if err := x.tar(s); err != nil {
		return x.preferMismatch(s, cancel, err)
	}
	if err := s.finish(); err != nil {
		return x.preferMismatch(s, cancel, err)
	}
	x.left -= s.read
	return x.applyWhiteouts()
}

// drainTime bounds how long a refused layer is read on.
const drainTime = 3 * time.Second

// preferMismatch returns the digest's mismatch in place of a refusal if a registry gave other bytes than were declared. Otherwise the user
// would look for the fault in how the image was packed. The rest of the layer is read for that, unless it is too large or comes slowly.
func (x *extraction) preferMismatch(s *stream, cancel context.CancelFunc, err error) error {
	if !errors.Is(err, ErrRefused) {
		return err
	}
	timer := time.AfterFunc(drainTime, cancel)
	defer timer.Stop()
	if mismatch := s.drain(); errors.Is(mismatch, ErrMismatch) {
		x.entry = ""
		return mismatch
	}
	return err
}

// tar reads the entries of a layer.
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
		if err := x.addEntry(h, r); err != nil {
			return badTar(err)
		}
	}
}

// badTar turns errors of the tar reader into an Error. An Error from below the tar reader stays as it is.
func badTar(err error) error {
	var own *Error
	switch {
	case errors.As(err, &own):
		return err
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong):
		return violation(RuleTar, "a header is not one: %w", err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return violation(RuleTar, "it ends before the content that a header declares")
	}
	return err
}

// addEntry checks an entry and adds it to the tree.
func (x *extraction) addEntry(h *tar.Header, r io.Reader) error {
	if err := x.budget.take(h.Name); err != nil {
		return err
	}
	name, err := x.check(h)
	if err != nil {
		return err
	}
	switch {
	case isLayerIndex(h):
		return nil // the tar reader skips the content
	case strings.HasPrefix(name[strings.LastIndexByte(name, '/')+1:], whiteoutPrefix):
		if h.Typeflag != tar.TypeReg || h.Size != 0 {
			return violation(RuleWhiteout, "it has a type or a content: expected an empty file")
		}
		return x.addWhiteout(name)
	case h.Typeflag == tar.TypeDir:
		_, err := x.dir(name, true)
		return err
	}
	return x.file(name, h.Mode&0o111 != 0, h.Size, r)
}

// check compares a header with the rules and returns the name without a directory's slash.
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
		return "", violation(RulePath, "it is not part of a kernel cache: expected one of %s", strings.Join(x.options.Paths, ", "))
	case h.Size < 0 || dir && h.Size != 0:
		return "", violation(RuleTar, "it declares %d bytes", h.Size)
	case h.Size > x.options.Limits.File:
		return "", violation(RuleFileSize, "it declares %d bytes, expected at most %d", h.Size, x.options.Limits.File)
	}
	return name, nil
}

// isLayerIndex reports whether an entry belongs to the format of the layer and not to its content. Tools that convert an image to eStargz
// add an index and a prefetch landmark to the tar (stargz-snapshotter, docs/estargz.md), and tools for zstd:chunked may add the landmark.
// Both are checked and counted as any entry, and left out of the tree, so a converted image has the same tree as the original.
func isLayerIndex(h *tar.Header) bool {
	names := []string{"stargz.index.json", ".prefetch.landmark", ".no.prefetch.landmark"}
	return h.Typeflag == tar.TypeReg && slices.Contains(names, h.Name)
}

// checkPAX refuses extended headers, except for fields that a plain header has too. This program would have to obey or ignore all others.
func checkPAX(h *tar.Header) *Error {
	// Fields of a plain header, times and the owner. Times and owner are not used.
	known := []string{"path", "size", "mtime", "atime", "ctime", "uid", "gid", "uname", "gname", "LIBARCHIVE.creationtime"}
	var keys []string
	for key := range h.PAXRecords {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		switch {
		case h.Typeflag == tar.TypeXGlobalHeader:
			return violation(RulePAX, "it is a global header: expected none")
		case strings.HasPrefix(key, "SCHILY.xattr.") || strings.HasPrefix(key, "LIBARCHIVE.xattr."):
			return violation(RuleXattr, "it has %s: expected none", quote(key))
		case strings.HasPrefix(key, "GNU.sparse."):
			return violation(RuleSparse, "it has holes: expected its content in full")
		case !slices.Contains(known, key) && (key != "linkpath" || !isLink(h)):
			return violation(RulePAX, "it has the key %s: expected none but those for a header's fields", quote(key))
		}
	}
	return nil
}

func isLink(h *tar.Header) bool { return h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink }

func checkType(h *tar.Header) *Error {
	var is string
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir:
		return nil
	case tar.TypeSymlink:
		is = "a symbolic link to " + quote(h.Linkname)
	case tar.TypeLink:
		is = "a hard link to " + quote(h.Linkname)
	case tar.TypeChar, tar.TypeBlock:
		is = "a device"
	case tar.TypeFifo:
		is = "a named pipe"
	case tar.TypeGNUSparse:
		return violation(RuleSparse, "it has holes: expected its content in full")
	case tar.TypeXGlobalHeader:
		return violation(RulePAX, "it is a global header: expected none")
	default:
		is = fmt.Sprintf("of type %q", h.Typeflag)
	}
	return violation(RuleType, "it is %s: expected a directory or a regular file", is)
}

// checkMode refuses files with setuid or setgid. A directory may have setgid, which it inherits from the one that it was made in.
func checkMode(h *tar.Header) *Error {
	const setuid, setgid, known = 0o4000, 0o2000, 0o7777
	bits := h.Mode & known
	if h.Typeflag == tar.TypeReg && bits&(setuid|setgid) != 0 {
		return violation(RuleMode, "it has mode %04o, expected neither setuid nor setgid", bits)
	}
	if h.Mode&^(known|int64(0o170000)) != 0 {
		return violation(RuleMode, "it has mode %o: expected permissions", h.Mode)
	}
	return nil
}
