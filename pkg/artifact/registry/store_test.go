// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/treesum"
)

// store is a store whose directory the tests look into.
type store struct {
	*artifact.Store
	dir string
}

func newStore(t testing.TB, config artifact.StoreConfig) *store {
	t.Helper()
	return openStore(t, filepath.Join(t.TempDir(), "store"), config)
}

func openStore(t testing.TB, dir string, config artifact.StoreConfig) *store {
	t.Helper()
	s, err := artifact.OpenStore(dir, config)
	check.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return &store{Store: s, dir: dir}
}

// again opens the same directory, as another process does.
func (s *store) again(t testing.TB) *store {
	t.Helper()
	return openStore(t, s.dir, artifact.StoreConfig{})
}

func (s *store) path(name string) string { return filepath.Join(s.dir, name) }

// partialName is the name below tmp of a blob that is being fetched.
func partialName(d artifact.Digest, size int64) string {
	return fmt.Sprintf("tmp/%s.%d", d.Hex(), size)
}

// wrong lists the blobs whose content is not that of their name, and counts the others. It looks at the directory only.
func wrong(dir string) (bad []string, good int) {
	blobs := filepath.Join(dir, "blobs", "sha256")
	entries, err := os.ReadDir(blobs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return []string{err.Error()}, 0
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(blobs, e.Name()))
		if sum := artifact.DigestOf(data).Hex(); err != nil || sum != e.Name() {
			bad = append(bad, fmt.Sprintf("%s is %d bytes with digest %s (%v)", e.Name(), len(data), sum, err))
			continue
		}
		good++
	}
	return bad, good
}

func checkStore(t testing.TB, s *store, blobs int) {
	t.Helper()
	bad, good := wrong(s.dir)
	if len(bad) > 0 || good != blobs {
		t.Errorf("%d good blobs, want %d; wrong: %v", good, blobs, bad)
	}
}

func partials(t testing.TB, s *store) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(s.path("tmp"))
	check.Must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func readBlob(t testing.TB, s *store, d artifact.Digest) []byte {
	t.Helper()
	b, err := s.Open(d)
	check.Must(t, err)
	defer func() { _ = b.Close() }()
	got, err := io.ReadAll(io.NewSectionReader(b, 0, b.Size()+1))
	check.Must(t, err)
	if int64(len(got)) != b.Size() || artifact.DigestOf(got) != d {
		t.Errorf("got %d bytes with digest %s, want %d with %s", len(got), artifact.DigestOf(got), b.Size(), d)
	}
	return got
}

// treeOf hashes all files of the tree of an image.
func treeOf(t testing.TB, s *store, d artifact.Digest) (is map[string]string) {
	t.Helper()
	tree, err := s.OpenTree(d)
	check.Must(t, err)
	check.Must(t, s.ReadTree(tree, func(fsys fs.FS) (err error) {
		is, err = treesum.Of(fsys)
		return err
	}))
	return is
}

// checkTrees fails unless the store has these trees, as treesum has them, and no other.
func checkTrees(t testing.TB, s *store, want map[artifact.Digest]map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(s.path("trees/sha256"))
	check.Must(t, err)
	if len(entries) != len(want) {
		t.Errorf("%d trees, want %d", len(entries), len(want))
	}
	for d, tree := range want {
		if diff := cmp.Diff(tree, treeOf(t, s, d)); diff != "" {
			t.Errorf("tree %s (-want +got):\n%s", d, diff)
		}
	}
}
