// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// seals make it impossible to change an image, for every process and for good.
const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL

// ErrDigest is returned if the bytes do not have the requested digest.
var ErrDigest = errors.New("wrong digest")

// Sealed is an Image: a copy in memory of the bytes whose digest was verified. No process can change it, not even this one.
type Sealed struct {
	file   *os.File
	size   int64
	digest string
}

// Seal copies size bytes of r, seals the copy, and then compares its SHA-256 with want, "sha256:" and 64 hexadecimal digits. Since the
// sealed copy is verified, the device gets exactly the verified bytes. r must end after size bytes.
func Seal(r io.Reader, size int64, want string) (_ *Sealed, err error) {
	if size <= 0 || size > math.MaxUint32 {
		return nil, fmt.Errorf("image of %d bytes: want 1 to %d, the width of the driver's field", size, uint32(math.MaxUint32))
	}
	f, err := memoryFile()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := copyExactly(f, r, size); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal the image: %w", err)
	}
	image := &Sealed{file: f, size: size}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, size)); err != nil {
		return nil, fmt.Errorf("digest the image: %w", err)
	}
	image.digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	if image.digest != want {
		return nil, fmt.Errorf("image of %d bytes: %w %s, want %s: fetch it again", size, ErrDigest, image.digest, want)
	}
	return image, nil
}

// memoryFile makes a file in memory that cannot be executed. Kernels before 6.3 do not know that flag.
func memoryFile() (*os.File, error) {
	const name = "fpga-image"
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("make memory for the image: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func copyExactly(w io.Writer, r io.Reader, size int64) error {
	n, err := io.Copy(w, io.LimitReader(r, size))
	if err != nil {
		return fmt.Errorf("copy the image: %w", err)
	}
	if n < size {
		return fmt.Errorf("image ends after %d bytes, want %d: fetch it again", n, size)
	}
	if n, err := io.ReadFull(r, make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		return errors.Join(fmt.Errorf("image is longer than %d bytes: fetch it again", size), err)
	}
	return nil
}

// ReadAt reads the sealed bytes.
func (i *Sealed) ReadAt(p []byte, off int64) (int, error) { return i.file.ReadAt(p, off) }

// Size returns the length of the image in bytes.
func (i *Sealed) Size() int64 { return i.size }

// Digest returns the verified digest.
func (i *Sealed) Digest() string { return i.digest }

// Close frees the memory. The caller must not program the image any more.
func (i *Sealed) Close() error { return i.file.Close() }

// Window maps the image for reading and returns the part that is programmed. Headers that do not go to the card come before it.
func (i *Sealed) Window(offset, size int64) (part []byte, unmap func() error, err error) {
	if offset < 0 || size <= 0 || offset > i.size || size > i.size-offset {
		return nil, nil, fmt.Errorf("bytes %d to %d of an image of %d bytes: want a part of it that is not empty", offset, offset+size, i.size)
	}
	// Private, because kernels before 6.7 refuse a shared mapping of a sealed file even for reading.
	mapped, err := unix.Mmap(int(i.file.Fd()), 0, int(i.size), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("map the image: %w", err)
	}
	return mapped[offset : offset+size], func() error { return unix.Munmap(mapped) }, nil
}
