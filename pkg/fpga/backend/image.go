// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Image is the bytes whose digest was verified. They cannot change.
type Image interface {
	io.ReaderAt
	// Size returns the length in bytes.
	Size() int64
	// Digest returns the digest of these bytes, "sha256:" and 64 hexadecimal digits.
	Digest() string
}

// HexDigest returns the hexadecimal digits of a digest. They may become part of a file name, so it refuses every other form.
func HexDigest(digest string) (string, error) {
	digits, ok := strings.CutPrefix(digest, "sha256:")
	raw, err := hex.DecodeString(digits)
	if !ok || err != nil || len(raw) != 32 || digits != strings.ToLower(digits) {
		return "", fmt.Errorf("digest %q of the image: want sha256: and 64 hexadecimal digits", digest)
	}
	return digits, nil
}

// WriteCopy writes size bytes of the image from offset into a new file below root, and compares the file with the image. It is for programs
// and drivers that only take a file. Its owner can read the file, and no user can write it. The name must come from the caller, never from
// a user.
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

// sameBytes fails unless the copy is exactly that part of the image.
func sameBytes(written *os.File, image io.ReaderAt, offset, size int64) error {
	info, err := written.Stat()
	if err != nil {
		return err
	}
	if info.Size() != size {
		return fmt.Errorf("the copy has %d bytes, want %d: check the disk", info.Size(), size)
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
			return errors.New("the copy differs from the image: check the disk")
		}
	}
	return nil
}

// SweepCopies removes copies of images from a directory below root. Their names are PREFIX, the digits of a digest, and SUFFIX. The caller
// must hold the lock of the device that the copies are for.
func SweepCopies(root *os.Root, directory, prefix, suffix string) error {
	dir, err := root.OpenFile(directory, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("list the directory of images: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("list the directory of images: %w", err)
	}
	var errs []error
	for _, name := range names {
		digits, ok := strings.CutPrefix(strings.TrimSuffix(name, suffix), prefix)
		if _, err := HexDigest("sha256:" + digits); !ok || err != nil || !strings.HasSuffix(name, suffix) {
			continue
		}
		if err := root.Remove(path.Join(directory, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove the copy of an image: %w", err))
		}
	}
	return errors.Join(errs...)
}

// ValidID reports whether an interface or image id has the form that Fettle writes, 32 hexadecimal digits in lower case. All 0 and all f
// mean "none" and are not valid.
func ValidID(id string) bool {
	const digits = 32
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == digits/2 && id == strings.ToLower(id) && strings.Trim(id, "0") != "" && strings.Trim(id, "f") != ""
}

// CanonicalID converts a uuid as drivers print it, with dashes or in upper case, to the form that Fettle writes. It returns "" for other
// text.
func CanonicalID(text string) string {
	id := strings.ToLower(strings.ReplaceAll(strings.TrimSpace(text), "-", ""))
	if !ValidID(id) {
		return ""
	}
	return id
}
