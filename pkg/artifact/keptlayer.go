// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/fettle-dev/fettle/pkg/disk"
)

// KeptLayer has the bytes of a layer as they come from a registry, so that a later try need not read them again. It is a convenience: it
// is made only if nothing has to be evicted for it, any failure ends it, and what needs its space ends it, too, before anything complete is
// evicted. Its bytes may be wrong, as after a loss of power: who unpacks them compares the digest of the whole, and reads them again from
// the registry if that is another one.
type KeptLayer struct {
	store  *Store
	name   string
	unlock func()

	// mu guards the rest.
	mu   sync.Mutex
	file disk.File // nil after the end
	size int64
}

// keptBy returns the digest that names the kept layer of a repository and namespace. Others get nothing of it.
func keptBy(d Digest, repository, namespace string) Digest {
	return DigestOf(fmt.Appendf(nil, "layer %s %s %s", d, repository, namespace))
}

const layerSuffix = ".layer"

// keptName returns the name of a kept layer, which reserves the space for all of it.
func keptName(own Digest, size int64, namespace string) string {
	return strings.TrimSuffix(partialTree(own, size, namespace), treeSuffix) + layerSuffix
}

// parseKept reads the name that keptName made.
func parseKept(name string) (own Digest, size int64, namespace string, ok bool) {
	name, ok = strings.CutSuffix(name, layerSuffix)
	if !ok {
		return own, 0, "", false
	}
	return parsePartialTree(name + treeSuffix)
}

// KeepLayer opens what an earlier try of a namespace kept of a layer from a repository, or begins to keep it. It returns nil if the layer
// is small, if another fetch reads it now, or if there is no room.
func KeepLayer(ctx context.Context, s *Store, d Descriptor, repository, namespace string) *KeptLayer {
	if d.Check() != nil || d.Size < s.config.KeepFrom {
		return nil
	}
	own := keptBy(d.Digest, repository, namespace)
	k := &KeptLayer{store: s, name: keptName(own, d.Size, namespace), unlock: s.tryLock(digestOffset(own))}
	if k.unlock == nil {
		return nil
	}
	r := reservation{Descriptor: Descriptor{Digest: own, Size: d.Size}, opportunistic: true, keeps: true, namespace: namespace}
	err := s.reserve(ctx, r, func() (err error) {
		k.file, err = s.fs.OpenFile(s.path(k.name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		return onDisk(err)
	})
	if err != nil {
		k.unlock()
		return nil
	}
	info, err := s.root.Lstat(k.name)
	if err == nil && info.Size() > d.Size {
		err = k.file.Truncate(0)
	} else if err == nil {
		k.size = info.Size()
	}
	if err != nil {
		k.End()
	}
	return k
}

// Size returns how many bytes it has.
func (k *KeptLayer) Size() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.size
}

// Open opens what it has.
func (k *KeptLayer) Open() (io.ReadCloser, error) { return k.store.root.Open(k.name) }

// Write appends bytes. A failure ends it, and so does that its space was needed.
func (k *KeptLayer) Write(p []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file == nil {
		return
	}
	if _, err := k.store.root.Lstat(k.name); err != nil {
		k.end()
		return
	}
	n, err := k.file.Write(p)
	if k.size += int64(n); err != nil {
		k.end()
	}
}

// Reset drops all bytes.
func (k *KeptLayer) Reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file == nil {
		return
	}
	if k.size = 0; k.file.Truncate(0) != nil {
		k.end()
	}
}

// End removes it. What is written later is dropped.
func (k *KeptLayer) End() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.end()
}

func (k *KeptLayer) end() {
	if k.file == nil {
		return
	}
	// Sweep removes what is left if this fails.
	_ = errors.Join(k.file.Close(), k.store.remove(k.name))
	k.file, k.size = nil, 0
}

// Close leaves it to the next try. What was written is not synced.
func (k *KeptLayer) Close() {
	k.mu.Lock()
	if k.file != nil {
		_ = k.file.Close()
		k.file = nil
	}
	k.mu.Unlock()
	k.unlock()
}

// dropKept removes the file of a kept layer, also while it is kept: whoever keeps it, in this process or another, finds that it is gone.
// The caller holds the lock of the names. The space is free at once, although the file is open.
func dropKept(s *directory, name string) error {
	if f, err := s.fs.OpenFile(s.path(name), os.O_WRONLY|os.O_TRUNC, 0); err == nil {
		_ = f.Close()
	}
	return s.remove(name)
}

// DropKept removes what was kept of the layers of an image: the tree is there, or can never be made of them.
func DropKept(s *Store, layers []TreeLayer, repository, namespace string) {
	for i := range layers {
		own := keptBy(layers[i].Digest, repository, namespace)
		if unlock := s.tryLock(digestOffset(own)); unlock != nil {
			_ = s.remove(keptName(own, layers[i].Size, namespace)) // Sweep removes what is left
			unlock()
		}
	}
}
