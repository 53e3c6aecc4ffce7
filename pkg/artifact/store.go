// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/utils/clock"
)

const (
	blobsDir = "blobs/sha256"
	treesDir = "trees/sha256"
	tmpDir   = "tmp"
	pinsDir  = "pins"
	trashDir = "trash"

	defaultPartialAge = 24 * time.Hour
	defaultPace       = 100 * time.Millisecond
	defaultGrowBy     = 64 << 20
	defaultKeepFrom   = 128 << 20

	// bufferSize is large enough that hashing and writing outweigh the calls.
	bufferSize = 128 << 10
)

// StoreConfig has the limits of a Store.
type StoreConfig struct {
	// MaxBytes is the quota of complete and reserved blobs and trees together. 0: none but the disk. The trash counts in addition until Sweep
	// deletes it.
	MaxBytes int64
	// NamespaceBytes is the most that trees made for objects of one namespace may take. 0: no limit.
	NamespaceBytes int64
	// Margin is the space of the disk that stays free for other programs.
	Margin int64
	// GrowBy is how much space is reserved at once for a tree that is being made. 0: 64 MiB.
	GrowBy int64
	// KeepFrom is the size from which KeepLayer keeps layers. 0: 128 MiB.
	KeepFrom int64
	// PartialAge is how long an interrupted fetch can be resumed. 0: a day.
	PartialAge time.Duration
	// Pace is the pause of Sweep between two deletions. 0: 100 ms.
	Pace time.Duration
	// InUse reports whether the tree of an image is mounted or about to be mounted. It is called before the tree is evicted, and again before
	// the evicted tree is deleted; Fetch and Unpack wait for it. Pins protect the trees of claims, and InUse those of mounts that are left
	// after a claim; it may unmount them. Nil: nothing is in use.
	InUse func(*Store, Digest) bool
	// Clock is the real clock if it is nil.
	Clock clock.Clock
}

// Store is a directory of blobs by digest. It is safe for concurrent use, also by several processes.
type Store struct {
	directory
	config StoreConfig
	// free returns the free bytes of the disk.
	free func() (int64, error)
}

// OpenStore opens the store in a directory. It makes the directory if necessary, and closes it to other users.
func OpenStore(dir string, config StoreConfig) (*Store, error) {
	s, err := storeAt(dir, config)
	if err == nil {
		if err = errors.Join(s.layOut(), s.clean()); err != nil {
			err = errors.Join(err, s.Close())
		}
	}
	if err != nil {
		if _, none := os.Lstat(filepath.Join(dir, pinsDir)); errors.Is(none, fs.ErrNotExist) {
			err = errors.Join(err, ErrNoStore)
		}
		return nil, fmt.Errorf("open the artifact store %s: %w", dir, err)
	}
	return s, nil
}

// ErrNoStore is about a store that could not be opened and that never kept anything for anybody.
var ErrNoStore = errors.New("nothing was ever kept in it")

// storeAt opens a store without making or cleaning what is in the directory.
func storeAt(dir string, config StoreConfig) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	if config.PartialAge <= 0 {
		config.PartialAge = defaultPartialAge
	}
	if config.Pace <= 0 {
		config.Pace = defaultPace
	}
	if config.GrowBy <= 0 {
		config.GrowBy = defaultGrowBy
	}
	if config.KeepFrom <= 0 {
		config.KeepFrom = defaultKeepFrom
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.InUse == nil {
		config.InUse = func(*Store, Digest) bool { return false }
	}
	s := &Store{directory: directory{dir: dir, root: root, fs: rootedFiles{root: root, dir: dir}}, config: config}
	s.free = s.statfs
	return s, nil
}

// Quota returns StoreConfig.MaxBytes.
func (s *Store) Quota() int64 { return s.config.MaxBytes }

// Close closes the directory. Open blobs stay open.
func (s *Store) Close() error { return s.root.Close() }

func blobName(d Digest) string { return blobsDir + "/" + d.Hex() }

// Open opens a blob that was fetched and updates its last use. If it is not there, the error is fs.ErrNotExist. An open blob can be read
// to the end even if it is evicted; a caller that needs it later pins it.
func (s *Store) Open(d Digest) (*Blob, error) {
	f, err := s.root.Open(blobName(d))
	if err != nil {
		return nil, fmt.Errorf("open the blob %s: %w: fetch it first", d, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: f.Name(), Err: errors.New("it is not a file")}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the blob %s: %w", d, err), f.Close())
	}
	s.touch(d)
	return &Blob{f: f, size: info.Size()}, nil
}

// touch updates the last use of a blob. If that fails, as on a read-only disk, only the order of eviction is affected.
func (s *Store) touch(d Digest) { s.touchName(blobName(d)) }

func (s *Store) touchName(name string) {
	now := s.config.Clock.Now()
	_ = s.root.Chtimes(name, now, now)
}

// Blob is an open blob. It is safe for concurrent use. Its bytes had the digest when they were fetched. A caller that does not trust the
// disk hashes what it reads.
type Blob struct {
	f    *os.File
	size int64
}

// Size returns the number of bytes.
func (b *Blob) Size() int64 { return b.size }

// ReadAt implements io.ReaderAt.
func (b *Blob) ReadAt(p []byte, off int64) (int, error) { return b.f.ReadAt(p, off) }

// Close closes the blob.
func (b *Blob) Close() error { return b.f.Close() }
