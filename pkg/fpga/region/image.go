// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fettle-dev/fettle/pkg/fpga"
	"github.com/fettle-dev/fettle/pkg/fpga/backend"
)

// Image describes a bitstream that a step programs, as plain data.
type Image struct {
	// Digest and Size are those of the file. The digest was authorised.
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	// HostFile is the absolute path of a file on the host. If it is empty, the file is in the node's store.
	HostFile string `json:"hostFile,omitempty"`
	// InterfaceID and AFUID are the ids that the file must state. AFUID is empty where only the file states it: the digest stands for that.
	InterfaceID string `json:"interfaceID"`
	AFUID       string `json:"afuID"`
	// Config is the config of the artifact. For a raw file there is no other description.
	Config fpga.Config `json:"config,omitzero"`
	// Origin tells people where the image is from: "FPGABitstream a/b".
	Origin string `json:"origin"`
	// ClearTime is how long a blank image takes to clear all memory that the region reaches, once it is loaded. 0: it clears none.
	ClearTime time.Duration `json:"clearTime,omitempty"`
}

// Blob is a file of the node's store.
type Blob interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// ErrImage says that a file is not the requested image. Another try fails, too.
var ErrImage = errors.New("is not the image that was asked for")

// errTooLarge refuses an image for which the plugin has no memory.
var errTooLarge = errors.New("takes more memory than there is for images")

// sealed is an image whose bytes were verified and cannot change.
type sealed struct {
	file *backend.Sealed
	// payload is what goes to the card: the file itself, or the unpacked bytes of a part of it.
	payload *backend.Sealed
	load    Load
	about   fpga.Bitstream
	// room is what it takes of the memory for images, and leave gives that back.
	room  int64
	leave func()
}

func (s *sealed) Close() error {
	defer s.leave()
	if s.payload != s.file {
		return errors.Join(s.payload.Close(), s.file.Close())
	}
	return s.file.Close()
}

// seal copies an image into memory that no process can change, and verifies and reads that copy.
func (p *Programmer) seal(ctx context.Context, image *Image) (_ *sealed, err error) {
	blob, err := p.open(image)
	if err != nil {
		return nil, fmt.Errorf("open bitstream %s of %s: %w", image.Digest, image.Origin, err)
	}
	defer blob.Close()
	room, leave, err := p.makeRoom(ctx, image, blob)
	if err != nil {
		return nil, err
	}
	file, err := backend.Seal(&cancellable{ctx, io.NewSectionReader(blob, 0, blob.Size())}, blob.Size(), image.Digest)
	if err != nil {
		leave()
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, image.retryable("copy", cause)
	}
	if err != nil {
		return nil, fmt.Errorf("bitstream of %s %w: %w", image.Origin, ErrImage, err)
	}
	s := &sealed{file: file, payload: file, room: room, leave: leave}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.about, err = image.Config.Inspect(file, file.Size()); err != nil {
		return nil, fmt.Errorf("bitstream of %s %w: %w", image.Origin, ErrImage, err)
	}
	if err := image.checkMatches(&s.about); err != nil {
		return nil, err
	}
	return s, s.unpack()
}

// makeRoom waits until an image has room in the memory for images, packed and unpacked. It refuses one that has none however few others are
// programmed.
func (p *Programmer) makeRoom(ctx context.Context, image *Image, blob Blob) (room int64, leave func(), err error) {
	room = blob.Size()
	// What cannot be read here is refused once the bytes are known to be those that were asked for.
	if about, err := image.Config.Inspect(blob, blob.Size()); err == nil && about.Payload != nil && about.Payload.Gzip != nil {
		room += about.Payload.Length
	}
	if room > p.config.Memory {
		return 0, nil, fmt.Errorf("bitstream of %s %w: %d bytes, packed and unpacked, and images have at most %d: strip it",
			image.Origin, errTooLarge, room, p.config.Memory)
	}
	if err := p.memory.Acquire(ctx, room); err != nil {
		return 0, nil, image.retryable("wait for memory", context.Cause(ctx))
	}
	return room, func() { p.memory.Release(room) }, nil
}

// retryable says that an image was not read in time.
func (i *Image) retryable(op string, cause error) error {
	return &backend.Error{Kind: backend.Retryable, Device: "the bitstream of " + i.Origin, Op: op, Err: cause, Next: backend.NextRetry}
}

// checkMatches compares what the file states with what was authorised.
func (i *Image) checkMatches(b *fpga.Bitstream) error {
	switch {
	case b.InterfaceID != i.InterfaceID:
		return fmt.Errorf("bitstream of %s %w: its interface id is %q, want %q", i.Origin, ErrImage, b.InterfaceID, i.InterfaceID)
	case b.AFUID != i.AFUID && i.AFUID != "":
		return fmt.Errorf("bitstream of %s %w: its AFU id is %q, want %q", i.Origin, ErrImage, b.AFUID, i.AFUID)
	case b.Payload == nil:
		return fmt.Errorf("bitstream of %s %w: which of its bytes a card takes is not known for format %s", i.Origin, ErrImage, b.Format)
	}
	return nil
}

// unpack finds the bytes that go to the card. It seals packed bytes once more, with the digest that a first pass over the sealed file
// computed.
func (s *sealed) unpack() error {
	p := s.about.Payload
	s.load = Load{Image: s.file, Offset: p.Offset, Size: p.Length, AFU: s.about.AFUID}
	if p.Gzip == nil {
		return nil
	}
	if s.file.Size()+p.Length > s.room {
		return fmt.Errorf("bitstream %w: it unpacks to more bytes than before it was copied", ErrImage)
	}
	sum := sha256.New()
	r, err := p.Open(s.file)
	if err == nil {
		_, err = io.Copy(sum, r)
	}
	if err == nil {
		r, err = p.Open(s.file)
	}
	if err != nil {
		return fmt.Errorf("bitstream %w: %w", ErrImage, err)
	}
	payload, err := backend.Seal(r, p.Length, "sha256:"+hex.EncodeToString(sum.Sum(nil)))
	if err != nil {
		return fmt.Errorf("bitstream %w: %w", ErrImage, err)
	}
	s.payload = payload
	s.load.Image, s.load.Offset, s.load.Size = payload, 0, p.Length
	return nil
}

func (p *Programmer) open(image *Image) (Blob, error) {
	if image.HostFile != "" {
		return OpenHostFile(p.config.HostRoot, image.HostFile)
	}
	return p.config.Open(image.Digest)
}

// hostFile is a file that an admin staged on the host.
type hostFile struct {
	*os.File
	size int64
}

func (f hostFile) Size() int64 { return f.size }

// OpenHostFile opens a regular file below the host's root. It follows no link, so that it reads the very file that the object names.
func OpenHostFile(hostRoot, path string) (Blob, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return nil, fmt.Errorf("host file %q: want an absolute, clean path", path)
	}
	root, err := os.Open(hostRoot)
	if err != nil {
		return nil, fmt.Errorf("open the host's root: %w", err)
	}
	defer root.Close()
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	fd, err := unix.Openat2(int(root.Fd()), strings.TrimPrefix(path, "/"), &how)
	if err != nil {
		return nil, &os.PathError{Op: "open host file", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("host file %s: is %s, want a regular file", path, info.Mode())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return hostFile{File: f, size: info.Size()}, nil
}

// cancellable ends a long copy when its context ends.
type cancellable struct {
	ctx context.Context //nolint:containedctx // it lives for one copy
	r   io.Reader
}

func (c *cancellable) Read(b []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(b)
}
