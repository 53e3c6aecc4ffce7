// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/filelock"
)

// Create makes the directory a layout, unless it is one. It refuses a directory with other content.
func (l *Layout) Create() error {
	err := l.create()
	if err != nil {
		return l.wrap(err)
	}
	return nil
}

func (l *Layout) create() error {
	if _, err := l.index(); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return err
	}
	return l.locked(func(root *os.Root) error {
		if _, err := l.index(); !errors.Is(err, fs.ErrNotExist) {
			return err // another writer was first
		}
		if err := checkEmpty(root); err != nil {
			return err
		}
		if err := root.MkdirAll(blobsDir, 0o755); err != nil {
			return err
		}
		data, err := newIndex().bytes()
		if err != nil {
			return err
		}
		if err := writeFile(root, versionFile, bytes.NewReader([]byte(`{"imageLayoutVersion":"`+version+`"}`))); err != nil {
			return err
		}
		return writeFile(root, indexFile, bytes.NewReader(data))
	})
}

// checkEmpty refuses a directory that has anything but leftovers of an interrupted Create.
func checkEmpty(root *os.Root) error {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); name != "blobs" && name != versionFile && !isTemporary(name) {
			return fmt.Errorf("it holds something else, %q: expected an OCI layout, an empty directory or none", name)
		}
	}
	return nil
}

// locked runs change for one writer at a time. It locks the directory itself, so no lock file is left behind.
func (l *Layout) locked(change func(root *os.Root) error) error {
	root, err := os.OpenRoot(l.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := filelock.Flock(dir, filelock.Exclusive); err != nil {
		return fmt.Errorf("wait for other writers: %w", err)
	}
	if err := change(root); err != nil {
		return err
	}
	return dir.Sync()
}

const temporary = ".fettle-"

func isTemporary(name string) bool { return strings.Contains(name, temporary) }

// writeFile writes and syncs a file under another name and then renames it, so no reader sees half of it.
func writeFile(root *os.Root, name string, content io.Reader) error {
	other := name + temporary + rand.Text()
	f, err := root.OpenFile(other, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(other, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(other))
	}
	return nil
}

// Blob writes a blob, unless the layout has it with the digest and size of d.
func (l *Layout) Blob(ctx context.Context, d artifact.Descriptor, open func(context.Context) (io.ReadCloser, error)) error {
	if l.has(d) {
		return nil
	}
	from, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	root, err := os.OpenRoot(l.dir)
	if err != nil {
		return l.wrap(err)
	}
	defer root.Close()
	if err := writeFile(root, blobPath(d.Digest), Verified(from, d)); err != nil {
		return l.wrap(fmt.Errorf("write the blob %s: %w", d.Digest, err))
	}
	return nil
}

// has says whether the blob is there with the digest and size of d.
func (l *Layout) has(d artifact.Descriptor) bool {
	f, size, err := l.open(blobPath(d.Digest))
	if err != nil {
		return false
	}
	defer f.Close()
	if size != d.Size {
		return false
	}
	_, err = io.Copy(io.Discard, Verified(f, d))
	return err == nil
}

// Verified returns a reader of the same bytes that ends with an error unless they have the size and digest of d.
func Verified(from io.Reader, d artifact.Descriptor) io.Reader {
	return &verified{from: io.LimitReader(from, d.Size+1), want: d, hash: sha256.New()}
}

type verified struct {
	from io.Reader
	want artifact.Descriptor
	size int64
	hash interface {
		io.Writer
		Sum(b []byte) []byte
	}
}

func (c *verified) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	_, _ = c.hash.Write(p[:n]) // a hash never fails
	c.size += int64(n)
	if c.size > c.want.Size || errors.Is(err, io.EOF) {
		if got := artifact.Digest(c.hash.Sum(nil)); c.size != c.want.Size || got != c.want.Digest {
			return n, fmt.Errorf("the blob is %w: %d bytes with digest %s, expected %d with %s",
				artifact.ErrMismatch, c.size, got, c.want.Size, c.want.Digest)
		}
	}
	return n, err
}

// PutManifest writes a manifest. If it has a subject, it is also listed in index.json, where readers look for referrers.
func (l *Layout) PutManifest(_ context.Context, m *artifact.Manifest) error {
	return l.putManifest(m, !m.Subject.Digest.IsZero(), "")
}

// Tag writes a manifest and lists it in index.json with the tag, or without one. It replaces the entry that had the tag, or the image that
// had none.
func (l *Layout) Tag(_ context.Context, m *artifact.Manifest, tag string) error {
	return l.putManifest(m, true, tag)
}

func (l *Layout) putManifest(m *artifact.Manifest, list bool, tag string) error {
	err := l.locked(func(root *os.Root) error {
		if err := writeFile(root, blobPath(m.Digest), bytes.NewReader(m.Raw)); err != nil || !list {
			return err
		}
		x, err := l.index()
		if err != nil {
			return err
		}
		if err := l.replace(x, m, tag); err != nil {
			return err
		}
		data, err := x.bytes()
		if err != nil {
			return err
		}
		if err := syncBlobs(root); err != nil {
			return err
		}
		return writeFile(root, indexFile, bytes.NewReader(data))
	})
	if err != nil {
		return l.wrap(fmt.Errorf("write the manifest %s: %w", m.Digest, err))
	}
	return nil
}

// syncBlobs makes the names of all blobs durable, before the index names some.
func syncBlobs(root *os.Root) error {
	dir, err := root.Open(blobsDir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// replace lists a manifest in the index, in the place of the one that had the tag.
func (l *Layout) replace(x *index, m *artifact.Manifest, tag string) error {
	about := !m.Subject.Digest.IsZero()
	var failed error
	x.drop(func(d artifact.Descriptor) bool {
		switch name := d.Annotations[refName]; {
		case name != tag:
			return false
		case tag != "" || d.Digest == m.Digest:
			return true
		case about || !d.IsManifest():
			return false
		}
		subject, err := l.subjectOf(d)
		failed = errors.Join(failed, err)
		return err == nil && subject.IsZero()
	})
	if failed != nil {
		return failed
	}
	return x.add(m, tag)
}
