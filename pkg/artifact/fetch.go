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

// Sink takes the bytes of a blob. It may hold the first bytes already.
type Sink interface {
	io.Writer
	// Size returns the number of bytes that it holds, and Sum their digest, unless that is compared elsewhere.
	Size() int64
	Sum() Digest
	// Reset drops all bytes.
	Reset() error
}

// Puller brings a blob into a sink, complete and compared with its digest. A registry.Source implements it.
type Puller interface {
	Pull(ctx context.Context, d Descriptor, to Sink) error
}

// referenced is a Puller that says what it reads.
type referenced interface{ Reference() Reference }

// Fetch brings a blob into the store. If it is there already, no request is made. When Fetch returns nil, the blob is complete, verified
// and durable. Calls for one digest, in this process and others, fetch it once: the others wait, and take over with their own source if
// the first one failed or its context ended. They do not wait long for another repository.
func (s *Store) Fetch(ctx context.Context, src Puller, d Descriptor) error {
	return s.fetchChecked(ctx, src, d, false)
}

// FetchOpportunistic fetches a blob that no claim needs yet. It evicts nothing: if the blob does not fit, the error is ErrNoSpace and no
// request is made. If the blob is there already, its last use is not updated.
func (s *Store) FetchOpportunistic(ctx context.Context, src Puller, d Descriptor) error {
	return s.fetchChecked(ctx, src, d, true)
}

func (s *Store) fetchChecked(ctx context.Context, src Puller, d Descriptor, opportunistic bool) error {
	err := d.Check()
	if err == nil {
		err = s.fetch(ctx, src, d, opportunistic)
	}
	if err != nil {
		return fmt.Errorf("fetch into the store: %w", err)
	}
	return nil
}

func (s *Store) fetch(ctx context.Context, src Puller, d Descriptor, opportunistic bool) error {
	if here, err := s.has(d, opportunistic); here || err != nil {
		return err
	}
	repository := ""
	if r, ok := src.(referenced); ok {
		repository = r.Reference().Repository()
	}
	unfinished, unlock, err := lockFetch(ctx, s, d.Digest, repository)
	if err != nil {
		return err
	}
	defer unlock()
	if here, err := s.has(d, opportunistic); here || err != nil { // while we waited
		return err
	}
	p, err := s.reserveBlob(ctx, d, unfinished, opportunistic)
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

// has reports whether the blob is there, and updates its last use unless the fetch is opportunistic.
func (s *Store) has(d Descriptor, opportunistic bool) (bool, error) {
	info, err := s.root.Lstat(blobName(d.Digest))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, onDisk(err)
	case info.Size() != d.Size:
		return false, fmt.Errorf("the size of %s in the manifest is %w: it says %d, the blob has %d", d.Digest, ErrMismatch, d.Size, info.Size())
	}
	if !opportunistic {
		s.touch(d.Digest)
	}
	return true, nil
}

// partial is a blob that is being fetched, the Sink of a pull. Its name reserves the space that it needs.
type partial struct {
	store  *Store
	want   Descriptor
	name   string
	file   disk.File
	hash   hash.Hash
	size   int64
	broken bool // the content of the file is unknown after a failed write
}

func partialName(d Digest, size int64) string { return fmt.Sprintf("%s/%s.%d", tmpDir, d.Hex(), size) }

func parsePartial(name string) (d Digest, size int64, ok bool) {
	digits, number, _ := strings.Cut(name, ".")
	size, err := strconv.ParseInt(number, 10, 64)
	return d, size, parseHex(&d, digits) && err == nil && size >= 0 && name == fmt.Sprintf("%s.%d", digits, size)
}

// parsePartialTree reads the name that partialTree made.
func parsePartialTree(name string) (d Digest, room int64, namespace string, ok bool) {
	name, tree := strings.CutSuffix(name, treeSuffix)
	if parts := strings.SplitN(name, ".", 3); len(parts) == 3 {
		name, namespace = parts[0]+"."+parts[1], parts[2]
		tree = tree && validNamespace(namespace)
	}
	d, room, ok = parsePartial(name)
	return d, room, namespace, tree && ok
}

// partial opens the partial file of a blob, which may hold its first bytes. The caller holds the locks of the unfinished fetch and of the
// names.
func (s *Store) partial(d Descriptor, unfinished Digest) (*partial, error) {
	p := &partial{store: s, want: d, name: partialName(unfinished, d.Size), hash: sha256.New()}
	f, err := s.fs.OpenFile(s.path(p.name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	p.file = f
	return p, onDisk(err)
}

// load hashes what an earlier fetch left, since only bytes that are read now are trusted.
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

// abandon closes the file, and deletes it unless another fetch can continue it.
func (p *partial) abandon(err error) error {
	_ = p.file.Close()
	if p.size == 0 || p.broken || !IsRetryable(err) {
		err = errors.Join(err, p.store.remove(p.name))
	}
	return err
}

// complete gives the blob its name in the store, on the disk too after its content.
func (p *partial) complete(ctx context.Context) error {
	s := p.store
	if err := errors.Join(p.file.Sync(), p.file.Close()); err != nil {
		// After a failed sync the content on the disk is unknown.
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

// remove deletes a file that may be gone already.
func (s *directory) remove(name string) error {
	return onDisk(disk.RemoveIfThere(s.fs, s.path(name)))
}
