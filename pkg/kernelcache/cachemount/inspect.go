// SPDX-License-Identifier: Apache-2.0

package cachemount

import (
	"context"
	"fmt"
	"io/fs"
	"sync"

	"github.com/fettle-dev/fettle/pkg/artifact"
	"github.com/fettle-dev/fettle/pkg/kernelcache"
)

// inspector remembers what trees hold, by the tree and the type that it is taken for, and what was measured for claims.
type inspector struct {
	mu    sync.Mutex
	known map[string]*kernelcache.Cache
	// memory is what the known caches take together.
	memory int64
	fills  map[string]Fill
}

const (
	// maxKnown bounds how many caches are remembered, and maxMemory the bytes that they take together. What was forgotten is read again.
	maxKnown  = 64
	maxMemory = 16 << 20
	// maxFills bounds how many measures are remembered.
	maxFills = 1024
)

// Inspect says what a tree holds. A namespace takes its turn where the tree has to be looked through.
func (m *Mounter) Inspect(
	ctx context.Context, store *artifact.Store, tree *artifact.Tree, namespace string, as kernelcache.Type,
) (*kernelcache.Cache, error) {
	key := tree.Digest.String() + " " + string(as)
	if known := m.inspector.cache(key); known != nil {
		return known, nil
	}
	done, err := m.turn(ctx, namespace)
	if err != nil {
		return nil, err
	}
	defer done()
	if known := m.inspector.cache(key); known != nil { // read while this call waited
		return known, nil
	}
	var found kernelcache.Cache
	err = atLowPriority(func() error {
		return store.ReadTree(tree, func(fsys fs.FS) (err error) {
			found, err = kernelcache.Inspect(fsys, kernelcache.Options{Type: as, Labels: tree.Labels})
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", tree.Digest, err)
	}
	m.inspector.add(key, &found)
	return &found, nil
}

func (i *inspector) cache(key string) *kernelcache.Cache {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.known[key]
}

// add remembers a cache, unless it alone takes more than may be remembered.
func (i *inspector) add(key string, c *kernelcache.Cache) {
	memory := c.Memory()
	if memory > maxMemory {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.known == nil || len(i.known) >= maxKnown || i.memory+memory > maxMemory {
		i.known, i.memory = map[string]*kernelcache.Cache{}, 0
	}
	i.known[key] = c
	i.memory += memory
}

func (i *inspector) fill(key string) (Fill, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f, ok := i.fills[key]
	return f, ok
}

func (i *inspector) remember(key string, f Fill) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.fills == nil || len(i.fills) >= maxFills {
		i.fills = map[string]Fill{}
	}
	i.fills[key] = f
}
