// SPDX-License-Identifier: Apache-2.0

package preset

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fettle-dev/fettle/api/v1alpha1"
)

// maxKept is the most that copies of the DevicePresets of all namespaces take, each at most MaxPresetsSize. Others are read when they are
// needed.
const maxKept = 32 << 20

// Shares bounds the memory of a process that has copies of all DevicePresets, which tenants make as many and as large as the API server
// takes them. It knows how large each is, and tells which are kept. The zero value knows none.
type Shares struct {
	mu         sync.Mutex
	namespaces map[string]*share
	kept       int
}

type share struct {
	presets map[types.UID]noted
	size    int
}

type noted struct {
	size int32
	kept bool
}

// Note notes a version of a preset, and says whether to keep it. If not, only its name is kept: its namespace has too many or too large
// presets, or all namespaces together.
func (s *Shares) Note(namespace string, uid types.UID, size int) (keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(namespace, uid)
	if s.namespaces == nil {
		s.namespaces = map[string]*share{}
	}
	of := s.namespaces[namespace]
	if of == nil {
		of = &share{presets: map[types.UID]noted{}}
		s.namespaces[namespace] = of
	}
	size = max(size, v1alpha1.MinPresetSize)
	of.size += size
	keep = len(of.presets) < v1alpha1.MaxPresets && of.size <= v1alpha1.MaxPresetsSize && s.kept+size <= maxKept
	if keep {
		s.kept += size
	}
	of.presets[uid] = noted{size: int32(size), kept: keep}
	return keep
}

// Forget forgets a deleted preset.
func (s *Shares) Forget(namespace string, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(namespace, uid)
}

// Retain forgets all presets but these.
func (s *Shares) Retain(there map[types.UID]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for namespace, of := range s.namespaces {
		for uid := range of.presets {
			if !there[uid] {
				s.forget(namespace, uid)
			}
		}
	}
}

// Over returns the namespaces that have too many or too large presets.
func (s *Shares) Over() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]bool{}
	for namespace, of := range s.namespaces {
		if of.over() {
			out[namespace] = true
		}
	}
	return out
}

func (of *share) over() bool {
	return len(of.presets) > v1alpha1.MaxPresets || of.size > v1alpha1.MaxPresetsSize
}

func (s *Shares) forget(namespace string, uid types.UID) {
	of := s.namespaces[namespace]
	if of == nil {
		return
	}
	p, known := of.presets[uid]
	if !known {
		return
	}
	of.size -= int(p.size)
	if p.kept {
		s.kept -= int(p.size)
	}
	if delete(of.presets, uid); len(of.presets) == 0 {
		delete(s.namespaces, namespace)
	}
}

// Check returns an *OverError for a namespace that has too many or too large presets.
func (s *Shares) Check(namespace string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.namespaces[namespace]
	if of == nil || !of.over() {
		return nil
	}
	return &OverError{Namespace: namespace, Presets: len(of.presets), Size: of.size}
}

// OverError refuses the presets of a namespace that has too many or too large ones.
type OverError struct {
	Namespace     string
	Presets, Size int
}

// Error says what is too much, and the remedy.
func (e *OverError) Error() string {
	return fmt.Sprintf("namespace %s has %d DevicePresets of %d bytes together: it may have at most %d presets and %d bytes, each preset "+
		"counted with at least %d: delete some or make them smaller", e.Namespace, e.Presets, e.Size, v1alpha1.MaxPresets,
		v1alpha1.MaxPresetsSize, v1alpha1.MinPresetSize)
}
