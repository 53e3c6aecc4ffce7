// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"github.com/fettle-dev/fettle/pkg/device"
)

// Holder has the newest snapshot, and a signal that there is a newer one. It is made of what the last look saw and of the devices'
// health, which come from different goroutines: a look that hangs holds up no bad news.
type Holder struct {
	mu       sync.Mutex
	seen     *Snapshot
	health   Health
	snapshot *Snapshot
	changed  chan struct{}
}

// NewHolder makes a holder without a snapshot.
func NewHolder() *Holder { return &Holder{changed: make(chan struct{})} }

// Get returns the newest snapshot, nil before the first look, and a channel that closes when it is replaced.
func (h *Holder) Get() (*Snapshot, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.snapshot, h.changed
}

// Await waits for the first look at the machine.
func (h *Holder) Await(ctx context.Context) (*Snapshot, error) {
	for {
		s, changed := h.Get()
		if s != nil {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the first look at the machine: %w", ctx.Err())
		case <-changed:
		}
	}
}

// Set replaces what was seen. It reports whether that differs, and wakes the goroutines that wait only then.
func (h *Holder) Set(s *Snapshot) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if reflect.DeepEqual(h.seen, s) {
		return false
	}
	h.seen = s
	h.compose()
	return true
}

// SetHealth replaces the devices' health, as Set does with what was seen.
func (h *Holder) SetHealth(health Health) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if reflect.DeepEqual(h.health, health) {
		return false
	}
	h.health = health
	if h.seen != nil {
		h.compose()
	}
	return true
}

func (h *Holder) compose() {
	h.snapshot = h.seen.With(h.health)
	close(h.changed)
	h.changed = make(chan struct{})
}

// GPUs returns the GPUs of the node. There are none before the first look.
func (s *Snapshot) GPUs() []device.Device {
	if s == nil {
		return nil
	}
	var out []device.Device
	for _, d := range s.Devices {
		if d.Kind == device.KindGPU {
			out = append(out, d)
		}
	}
	return out
}
