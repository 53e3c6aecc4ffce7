// SPDX-License-Identifier: Apache-2.0

package cachemount

import (
	"fmt"
	"io/fs"
	"sync"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
)

// inspector remembers what trees hold, by the tree and the type that it is taken for.
type inspector struct {
	mu    sync.Mutex
	known map[string]*kernelcache.Cache
}

// maxFacts bounds what is remembered of trees. Each takes some hundred KiB at most, and is read again where it was forgotten.
const maxFacts = 64

// Inspect says what a tree holds.
func (m *Mounter) Inspect(store *artifact.Store, tree *artifact.Tree, as kernelcache.Type) (*kernelcache.Cache, error) {
	key := tree.Digest.String() + " " + string(as)
	m.inspector.mu.Lock()
	known := m.inspector.known[key]
	m.inspector.mu.Unlock()
	if known != nil {
		return known, nil
	}
	var found kernelcache.Cache
	err := store.ReadTree(tree, func(fsys fs.FS) error {
		var err error
		found, err = kernelcache.Inspect(fsys, kernelcache.Options{Type: as, Labels: tree.Labels})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", tree.Digest, err)
	}
	m.inspector.mu.Lock()
	defer m.inspector.mu.Unlock()
	if m.inspector.known == nil || len(m.inspector.known) >= maxFacts {
		m.inspector.known = map[string]*kernelcache.Cache{}
	}
	m.inspector.known[key] = &found
	return &found, nil
}
