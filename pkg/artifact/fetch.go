// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// Sink is where the bytes of a blob go. It may hold the beginning of them already.
type Sink interface {
	io.Writer
	// Size is how many bytes it holds, and Sum their digest, unless that is compared elsewhere.
	Size() int64
	Sum() Digest
	// Reset drops them.
	Reset() error
}

// Puller brings a blob into a sink, whole and compared with its digest. A registry.Source is one.
type Puller interface {
	Pull(ctx context.Context, d Descriptor, to Sink) error
}

// Fetch brings a blob into the store, unless it is there already; then nothing is asked of the registry. When it returns nil, the
// blob is complete, verified and durable. Calls for one digest, in this process and others, fetch it once: the others wait, and take
// over with their own source where the first one failed or its context ended.
func (s *Store) Fetch(ctx context.Context, src Puller, d Descriptor) error {
	return s.fetchChecked(ctx, src, d, false)
}

// FetchSpare is Fetch of a blob that nobody needs yet. Nothing that is here has to make room for it: where it does not fit beside that, it
// is ErrNoSpace and no registry is asked. Nor is a blob that is here noted as used.
func (s *Store) FetchSpare(ctx context.Context, src Puller, d Descriptor) error {
	return s.fetchChecked(ctx, src, d, true)
}

func (s *Store) fetchChecked(ctx context.Context, src Puller, d Descriptor, spare bool) error {
	err := d.Check()
	if err == nil {
		err = s.fetch(ctx, src, d, spare)
	}
	if err != nil {
		return fmt.Errorf("fetch into the store: %w", err)
	}
	return nil
}

func (s *Store) fetch(ctx context.Context, src Puller, d Descriptor, spare bool) error {
	if here, err := s.has(d, spare); here || err != nil {
		return err
	}
	unlock, err := s.lockDigest(ctx, d.Digest)
	if err != nil {
		return err
	}
	defer unlock()
	if here, err := s.has(d, spare); here || err != nil { // while we waited
		return err
	}
	p, err := s.reserve(ctx, d, spare)
	if err != nil {
		return err
	}
	if err = p.load(); err == nil {
		err = src.Pull(ctx, d, p)
	}
	if err != nil {
		return p.abandon(err)
	}
	return p.complete(ctx)
}

// has says whether the blob is there. It notes the use, unless it is there to spare.
func (s *Store) has(d Descriptor, spare bool) (bool, error) {
	info, err := s.root.Lstat(blobName(d.Digest))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, onDisk(err)
	case info.Size() != d.Size:
		return false, fmt.Errorf("the size of %s in the manifest is %w: it says %d, the blob has %d", d.Digest, ErrMismatch, d.Size, info.Size())
	}
	if !spare {
		s.touch(d.Digest)
	}
	return true, nil
}

// partial is a blob that is being fetched: the Sink of a pull. Its name declares how much room it needs.
type partial struct {
	store  *Store
	want   Descriptor
	name   string
	file   disk.File
	hash   hash.Hash
	size   int64
	broken bool // what the file holds is not known
}

func partialName(d Digest, size int64) string { return fmt.Sprintf("%s/%s.%d", tmpDir, d.Hex(), size) }

func parsePartial(name string) (d Digest, size int64, ok bool) {
	digits, number, _ := strings.Cut(name, ".")
	size, err := strconv.ParseInt(number, 10, 64)
	return d, size, parseHex(&d, digits) && err == nil && size >= 0 && name == fmt.Sprintf("%s.%d", digits, size)
}

func parsePartialTree(name string) (d Digest, room int64, ok bool) {
	name, tree := strings.CutSuffix(name, ".tree")
	d, room, ok = parsePartial(name)
	return d, room, tree && ok
}

// partial opens the file of a blob, with what it may hold. The caller holds the digest and the names.
func (s *Store) partial(d Descriptor) (*partial, error) {
	p := &partial{store: s, want: d, name: partialName(d.Digest, d.Size), hash: sha256.New()}
	f, err := s.fs.OpenFile(s.path(p.name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	p.file = f
	return p, onDisk(err)
}

// load hashes what an earlier fetch left: only what is read now is believed.
func (p *partial) load() error {
	f, err := p.store.root.Open(p.name)
	if err != nil {
		return onDisk(err)
	}
	defer f.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{p.hash}, struct{ io.Reader }{f}, make([]byte, bufferSize))
	if p.size = n; err != nil || n > p.want.Size {
		return p.Reset()
	}
	return nil
}

func (p *partial) Write(b []byte) (int, error) {
	n, err := p.file.Write(b)
	_, _ = p.hash.Write(b[:n])
	p.size += int64(n)
	if err != nil {
		p.broken = true
	}
	return n, onDisk(err)
}

func (p *partial) Size() int64 { return p.size }

func (p *partial) Sum() Digest { return Digest(p.hash.Sum(nil)) }

func (p *partial) Reset() error {
	p.hash.Reset()
	p.size = 0
	err := p.file.Truncate(0)
	p.broken = p.broken || err != nil
	return onDisk(err)
}

// abandon keeps what another try can go on with.
func (p *partial) abandon(err error) error {
	_ = p.file.Close()
	if p.size == 0 || p.broken || !IsRetryable(err) {
		err = errors.Join(err, p.store.remove(p.name))
	}
	return err
}

// complete makes the blob one of the store. Its name comes after its content, on disk too.
func (p *partial) complete(ctx context.Context) error {
	s := p.store
	if err := errors.Join(p.file.Sync(), p.file.Close()); err != nil {
		// After a sync that failed nobody knows what is on the disk.
		return errors.Join(onDisk(err), s.remove(p.name))
	}
	unlock, err := s.lockNames(ctx)
	if err != nil {
		return err
	}
	err = s.fs.Rename(s.path(p.name), s.path(blobName(p.want.Digest)))
	unlock()
	if err != nil {
		return onDisk(err)
	}
	s.touch(p.want.Digest)
	return onDisk(s.fs.SyncDir(s.path(blobsDir)))
}

// remove removes what may be gone.
func (s *Store) remove(name string) error {
	if err := s.fs.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return onDisk(err)
	}
	return nil
}
