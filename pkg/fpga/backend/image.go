// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Image is exactly the bytes whose digest was verified, which nobody can change.
type Image interface {
	io.ReaderAt
	// Size is the length in bytes.
	Size() int64
	// Digest is "sha256:" and 64 hexadecimal digits, of these bytes.
	Digest() string
}

// HexDigest is the digest's hexadecimal part. It may become part of a file's name, so anything else is refused.
func HexDigest(digest string) (string, error) {
	digits, ok := strings.CutPrefix(digest, "sha256:")
	raw, err := hex.DecodeString(digits)
	if !ok || err != nil || len(raw) != 32 || digits != strings.ToLower(digits) {
		return "", fmt.Errorf("digest %q of the image: want sha256: and 64 hexadecimal digits", digest)
	}
	return digits, nil
}

// WriteCopy writes size bytes of the image from offset into a new file below root, for programs and drivers that only take a file, and
// compares what was written. Only the owner can read it, and nobody can write it. The name must be the caller's own, never a user's.
func WriteCopy(root *os.Root, name string, image Image, offset, size int64) (err error) {
	if offset < 0 || size <= 0 || offset > image.Size() || size > image.Size()-offset {
		return fmt.Errorf("bytes %d to %d of an image of %d bytes: want a part of it that is not empty", offset, offset+size, image.Size())
	}
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o400)
	if err != nil {
		return fmt.Errorf("copy the image: %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(fmt.Errorf("copy the image to %s: %w", f.Name(), err), root.Remove(name))
		}
	}()
	if _, err := io.Copy(f, io.NewSectionReader(image, offset, size)); err != nil {
		return err
	}
	return sameBytes(f, image, offset, size)
}

// sameBytes wants all of the copy to be that part of the image.
func sameBytes(written *os.File, image io.ReaderAt, offset, size int64) error {
	info, err := written.Stat()
	if err != nil {
		return err
	}
	if info.Size() != size {
		return fmt.Errorf("the copy has %d bytes, want %d: look at the disk", info.Size(), size)
	}
	const chunk = 256 << 10
	left, right := make([]byte, chunk), make([]byte, chunk)
	for at := int64(0); at < size; at += chunk {
		n := min(chunk, size-at)
		if _, err := io.ReadFull(io.NewSectionReader(written, at, n), left[:n]); err != nil {
			return err
		}
		if _, err := io.ReadFull(io.NewSectionReader(image, offset+at, n), right[:n]); err != nil {
			return err
		}
		if !bytes.Equal(left[:n], right[:n]) {
			return errors.New("the copy differs from the image: look at the disk")
		}
	}
	return nil
}
