// SPDX-License-Identifier: Apache-2.0

// Package inventory looks at the node's hardware and keeps the newest snapshot of it.
//
//	Scanner   looks at the host tree, again whenever the kernel or the clock says so
//	Reviewer  what a feature says of the devices: which are withheld, which attributes they have beside those of the look
//	Snapshot  what one look found, with the devices' health: never changed, shared by everything
//	Holder    has the newest snapshot
package inventory

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"sync"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/health"
)

// PoolName is the pool of one kind of device on a node.
func PoolName(node string, kind device.Kind) string { return node + "/" + string(kind) }

// Snapshot is what one look at the machine found. It is never changed after it was put into a Holder.
type Snapshot struct {
	// Devices are all that are whole, by name within their kind, in publishing order.
	Devices []device.Device
	// Withheld are the names of whole devices that must not be published now, with the reason for people.
	Withheld map[string]string
	Problems []discover.Problem
	// Tenants are the free regions of chips that are held, with the namespace or claim that may join there.
	Tenants map[string]string
	// BindLate are the kinds of devices whose pods are bound only once the plugin has said that they can be.
	BindLate []device.Kind
	// Health is the devices' health, from the ledger and not from the look.
	Health Health
}

// Health is the health of the node's devices at one moment.
type Health struct {
	// Statuses are the devices that are not healthy, by name. One that left the node is among them while a claim holds it.
	Statuses map[string]health.Status
	// Silent are the devices of whose health nothing is known now, with the reason.
	Silent map[string]string
	// TaintsKept: the API server keeps taints, so that a device in a bad state can stay published.
	TaintsKept bool
	// NoEviction: pods stay on a device that failed.
	NoEviction bool
	// Trouble is what is wrong with the ledger itself.
	Trouble string
}

// With returns the snapshot with another health. A device that the scheduler must not give out is withheld where a taint would be
// dropped.
func (s *Snapshot) With(h Health) *Snapshot {
	out := *s
	out.Health = h
	if h.TaintsKept || len(h.Statuses)+len(s.Tenants) == 0 {
		return &out
	}
	out.Withheld = maps.Clone(s.Withheld)
	for name, tenant := range s.Tenants {
		if out.Withheld[name] == "" {
			out.Withheld[name] = "its chip is held by " + tenant + ", and this API server keeps no taint that would say so"
		}
	}
	for i := range s.Devices {
		name := s.Devices[i].Name
		if s, bad := h.Statuses[name]; bad && out.Withheld[name] == "" {
			out.Withheld[name] = s.Message
		}
	}
	return &out
}

// Withhold keeps a device from the scheduler and says why. It is for the making of a snapshot.
func (s *Snapshot) Withhold(name, subject, reason string, cause error) {
	s.Withheld[name] = cause.Error()
	s.Problems = append(s.Problems, discover.Problem{Subject: subject, Reason: reason, Message: cause.Error()})
}

// Find returns a device by pool suffix and name.
func (s *Snapshot) Find(kind device.Kind, name string) (device.Device, bool) {
	for i := range s.Devices {
		if s.Devices[i].Kind == kind && s.Devices[i].Name == name {
			return s.Devices[i], true
		}
	}
	return device.Device{}, false
}

// All are the devices that are whole, published or not.
func (s *Snapshot) All() []device.Device { return s.Devices }

// Published returns the devices of one kind that the scheduler may give out.
func (s *Snapshot) Published(kind device.Kind) []device.Device {
	var out []device.Device
	for _, d := range s.Devices {
		if _, held := s.Withheld[d.Name]; d.Kind == kind && !held {
			out = append(out, d)
		}
	}
	return out
}

// TaintUnhealthy is the key of the taint on a device that is not healthy. Its value is the reason.
const TaintUnhealthy = "fettle.dev/unhealthy"

// Taint is the taint of a device that is not healthy. What a device can still do decides over its pods: they leave one that failed.
// Quarantine keeps other claims away; the claim that had the device when its step failed is told why it waits.
func Taint(s health.Status, noEviction bool) resourceapi.DeviceTaint {
	taint := resourceapi.DeviceTaint{Key: TaintUnhealthy, Value: s.Reason, Effect: resourceapi.DeviceTaintEffectNoSchedule}
	if s.State == health.Unhealthy && !noEviction {
		taint.Effect = resourceapi.DeviceTaintEffectNoExecute
	}
	return taint
}

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
