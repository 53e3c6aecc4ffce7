// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fettle-dev/fettle/pkg/disk"
)

const (
	sparePrefix = ".spare-"
	// maxSpares is how many of one length are kept: as many as claims of a large node come and go at once.
	maxSpares = 64
	// maxSpareLength is enough for all but claims with very many devices or steps.
	maxSpareLength = 16 << 10
)

// spares are the files of released records, which the next records are written into: their inodes and blocks are there already, so that
// only what is written has to be made durable.
//
// A power loss may take a rename back that no sync of the directory followed. What was written into such a file would then have the name
// of the claim that had it before. So a spare is ripe once a sync began after it was named, and only then it is taken.
type spares struct {
	process string // two processes name theirs differently

	mu    sync.Mutex
	named int // so far, by this process
	green []spare
	ripe  []spare
}

type spare struct {
	path   string
	length int64
	number int
}

func newSpares() *spares { return &spares{process: fmt.Sprintf("%016x", rand.Uint64())} } //nolint:gosec // no secret

// next is a name for one more of a length, empty where there are enough.
func (s *spares) next(dir string, length int64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := 0
	for _, one := range slices.Concat(s.green, s.ripe) {
		if one.length == length {
			same++
		}
	}
	if same >= maxSpares || length > maxSpareLength {
		return ""
	}
	s.named++
	return filepath.Join(dir, fmt.Sprintf("%s%s-%d", sparePrefix, s.process, s.named))
}

// add is told of a spare that has its name now.
func (s *spares) add(path string, length int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := func(other spare) bool { return other.path == path }
	if slices.ContainsFunc(s.green, known) || slices.ContainsFunc(s.ripe, known) {
		return
	}
	s.named++
	s.green = append(s.green, spare{path: path, length: length, number: s.named})
}

// take gives a ripe one of a length away, empty where there is none.
func (s *spares) take(length int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.ripe, func(one spare) bool { return one.length == int64(length) })
	if i < 0 {
		return ""
	}
	path := s.ripe[i].path
	s.ripe = slices.Delete(s.ripe, i, i+1)
	return path
}

// ripen does what ends in a sync of the directory.
func (s *spares) ripen(sync func() error) error {
	s.mu.Lock()
	last := s.named
	s.mu.Unlock()
	if err := sync(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.green = slices.DeleteFunc(s.green, func(one spare) bool {
		if one.number <= last {
			s.ripe = append(s.ripe, one)
		}
		return one.number <= last
	})
	return nil
}

// replace makes a record's file, of a spare or a new one.
func (s *Store) replace(path string, whole []byte) error {
	return s.spares.ripen(func() error {
		for spare := s.spares.take(len(whole)); spare != ""; spare = s.spares.take(len(whole)) {
			err := disk.ReuseDurably(s.fs, spare, path, whole)
			if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			// Another process took it.
		}
		return disk.ReplaceDurably(s.fs, path, whole, 0o600)
	})
}

// discard takes the file of a released record away: it becomes a spare if there is use for it. As with a removal, that need not last.
func (s *Store) discard(path string, r *Record) error {
	known := r.valid > 0 && r.valid <= r.length // as long as it was made
	if spare := s.spares.next(filepath.Dir(path), r.length); known && spare != "" {
		if s.fs.Rename(path, spare) == nil {
			s.spares.add(spare, r.length)
			return nil
		}
		// It is not there, or the directory has no room for the name.
	}
	return disk.RemoveIfThere(s.fs, path)
}

// adoptSpare takes over what an earlier process left, or another that still runs knows as well.
func (s *Store) adoptSpare(entry fs.DirEntry) {
	if info, err := entry.Info(); err == nil && info.Mode().IsRegular() && strings.HasPrefix(entry.Name(), sparePrefix) {
		s.spares.add(filepath.Join(s.dir, claimsDir, entry.Name()), info.Size())
	}
}
