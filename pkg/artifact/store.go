// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
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

	// bufferSize is large enough that hashing and writing outweigh the calls.
	bufferSize = 128 << 10
)

// StoreConfig is the limits of a Store.
type StoreConfig struct {
	// MaxBytes is how much complete and reserved blobs may take together. 0: as much as the disk gives. What lies in the trash comes
	// on top until Sweep.
	MaxBytes int64
	// Margin is how much of the disk stays free for others.
	Margin int64
	// PartialAge is how long a fetch that was broken off can be resumed, a day where it is 0.
	PartialAge time.Duration
	// Pace is the pause between two files that Sweep deletes, 100 ms where it is 0.
	Pace time.Duration
	// InUse says whether the tree of an image is mounted or about to be. It is asked before the tree is evicted, and once more before what
	// was evicted is deleted, and holds up Fetch and Unpack meanwhile. Pins are for claims; this is for what they left behind, and whoever is
	// asked may take it away. Nil: nothing is in use.
	InUse func(*Store, Digest) bool
	// Clock is the real one where it is nil.
	Clock clock.Clock
}

// Store is a directory of blobs by digest. It is safe for concurrent use, also by several processes.
type Store struct {
	dir  string
	root *os.Root
	fs   files
	// seen makes files go where tests see them. It is nil otherwise.
	seen   func(beneath) files
	config StoreConfig
	// free is how many bytes the disk has left for us.
	free func() (int64, error)
}

// OpenStore opens the store in a directory, which is made, and closed to other users, where that is necessary.
func OpenStore(dir string, config StoreConfig) (*Store, error) {
	s, err := storeAt(dir, config)
	if err == nil {
		if err = errors.Join(s.layOut(), s.clean()); err != nil {
			err = errors.Join(err, s.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the artifact store %s: %w", dir, err)
	}
	return s, nil
}

// storeAt changes nothing but the directory itself.
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
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.InUse == nil {
		config.InUse = func(*Store, Digest) bool { return false }
	}
	s := &Store{dir: dir, root: root, config: config, fs: beneath{root: root, dir: dir}}
	s.free = s.statfs
	return s, nil
}

// layOut makes the directories, and their names durable: what is synced inside them is worth nothing otherwise.
func (s *Store) layOut() error {
	info, err := s.root.Stat(".")
	if err == nil && info.Mode().Perm() != 0o700 {
		err = s.root.Chmod(".", 0o700)
	}
	if err != nil {
		return onDisk(err)
	}
	for _, d := range []string{"blobs", blobsDir, "trees", treesDir, tmpDir, pinsDir, trashDir} {
		if info, err := s.root.Lstat(d); err == nil && info.IsDir() {
			continue // which a full disk does not keep from being used
		}
		if err := s.fs.Mkdir(s.path(d), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return onDisk(err)
		}
	}
	return onDisk(errors.Join(s.fs.SyncDir(s.path("blobs")), s.fs.SyncDir(s.path("trees")), s.fs.SyncDir(s.dir)))
}

func (s *Store) statfs() (int64, error) {
	d, err := s.root.Open(".")
	if err != nil {
		return 0, err
	}
	defer d.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &st); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: s.dir, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// Quota is how much complete and reserved blobs may take together, 0 where there is no such limit.
func (s *Store) Quota() int64 { return s.config.MaxBytes }

// Close ends the use of the directory. Blobs that are open stay so.
func (s *Store) Close() error { return s.root.Close() }

// within is files with names relative to a directory of the store, which they cannot leave.
func (s *Store) within(dir string) (_ relative, _ *os.Root, closing func(), _ error) {
	root, err := s.root.OpenRoot(dir)
	if err != nil {
		return relative{}, nil, nil, onDisk(err)
	}
	below := beneath{root: root, dir: s.path(dir), last: &lastDir{}}
	closing = func() {
		below.last.close()
		_ = root.Close()
	}
	if s.seen != nil {
		return relative{files: s.seen(below), dir: below.dir}, root, closing, nil
	}
	return relative{files: below, dir: below.dir}, root, closing, nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

func blobName(d Digest) string { return blobsDir + "/" + d.Hex() }

// Open opens a blob that was fetched, and notes that it is used. One that is not here is fs.ErrNotExist. The caller has pinned it, if it
// must be here tomorrow; what is open can be read to the end whatever becomes of its name.
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

// touch notes the last use. Where that fails, as on a disk that became read-only, only the order of eviction suffers.
func (s *Store) touch(d Digest) { s.touchName(blobName(d)) }

func (s *Store) touchName(name string) {
	now := s.config.Clock.Now()
	_ = s.root.Chtimes(name, now, now)
}

// Blob is an open blob. It is safe for concurrent use. Its bytes had the digest when they were fetched; a caller that must know what the
// disk has made of them since hashes what it reads.
type Blob struct {
	f    *os.File
	size int64
}

// Size is the number of bytes.
func (b *Blob) Size() int64 { return b.size }

// ReadAt is io.ReaderAt.
func (b *Blob) ReadAt(p []byte, off int64) (int, error) { return b.f.ReadAt(p, off) }

// Close closes it.
func (b *Blob) Close() error { return b.f.Close() }
