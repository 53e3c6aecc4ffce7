// SPDX-License-Identifier: Apache-2.0

package trustpolicies

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// Records keeps what policies said of images in memory, and in files so that it outlives the process. Each record has a key, which is a
// UID or a number in hexadecimal digits.
type Records[R any] struct {
	dir   string
	keyOf func(*R) string

	mu sync.Mutex
	// known has no key without a record: tenants choose which keys are asked for.
	known map[string]*R
}

// NewRecords returns the records of a directory, which the first record creates. keyOf returns the key that is part of a record.
func NewRecords[R any](dir string, keyOf func(*R) string) *Records[R] {
	return &Records[R]{dir: dir, keyOf: keyOf, known: map[string]*R{}}
}

// Get returns the record of a key, nil if there is none. A file that cannot be read counts as none, and is written again.
func (r *Records[R]) Get(key string) *R {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found, known := r.known[key]; known {
		return found
	}
	name, err := r.file(key)
	if err != nil {
		return nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	var found R
	if json.Unmarshal(data, &found) != nil || r.keyOf(&found) != key {
		return nil
	}
	r.known[key] = &found
	return &found
}

// Find returns a record in memory for which is returns true, nil if there is none.
func (r *Records[R]) Find(is func(*R) bool) *R {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, found := range r.known {
		if is(found) {
			return found
		}
	}
	return nil
}

// Save keeps a record. If its file cannot be written, the image is verified again after a restart.
func (r *Records[R]) Save(record *R) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := r.keyOf(record)
	r.known[key] = record
	name, err := r.file(key)
	if err != nil {
		return err
	}
	data, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode a verification: %w", err)
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return fmt.Errorf("save a verification: %w", err)
	}
	if err := disk.Replace(disk.OS{}, name, data, 0o600); err != nil {
		return fmt.Errorf("save a verification: %w", err)
	}
	return nil
}

// Keep forgets all records but those whose keys are to be kept.
func (r *Records[R]) Keep(keep func(key string) bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.known {
		if !keep(key) {
			delete(r.known, key)
		}
	}
	entries, err := r.entries()
	for _, entry := range entries {
		if !keep(strings.TrimSuffix(entry.Name(), ".json")) {
			err = errors.Join(err, os.Remove(filepath.Join(r.dir, entry.Name())))
		}
	}
	return err
}

// Trim forgets the oldest records until no more are left than the limit.
func (r *Records[R]) Trim(limit int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) > limit {
		clear(r.known) // those that are still needed are read again
	}
	entries, err := r.entries()
	if len(entries) <= limit {
		return err
	}
	modified := map[string]int64{}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			modified[entry.Name()] = info.ModTime().UnixNano()
		}
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int {
		return cmp.Or(cmp.Compare(modified[a.Name()], modified[b.Name()]), cmp.Compare(a.Name(), b.Name()))
	})
	for _, entry := range entries[:len(entries)-limit] {
		delete(r.known, strings.TrimSuffix(entry.Name(), ".json"))
		err = errors.Join(err, os.Remove(filepath.Join(r.dir, entry.Name())))
	}
	return err
}

// Destroy removes all records.
func (r *Records[R]) Destroy() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.known)
	return os.RemoveAll(r.dir)
}

// entries returns the files of the directory, none if there is no directory.
func (r *Records[R]) entries() ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}

// file returns the path of a record. It refuses a key that is not a plain name.
func (r *Records[R]) file(key string) (string, error) {
	if key == "" || strings.Trim(strings.ToLower(key), "0123456789abcdefghijklmnopqrstuvwxyz-") != "" {
		return "", fmt.Errorf("%q is no UID", key)
	}
	return filepath.Join(r.dir, key+".json"), nil
}
