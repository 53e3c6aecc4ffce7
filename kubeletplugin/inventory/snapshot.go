// SPDX-License-Identifier: Apache-2.0

// Package inventory scans the node's hardware and keeps the newest snapshot of it.
//
//	Scanner   scans the host tree, after kernel events and at an interval
//	Reviewer  withholds devices for a feature, and adds attributes that the scan cannot find
//	Snapshot  is the result of one scan with the devices' health; it never changes and is shared
//	Holder    has the newest snapshot
package inventory

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/partition"
)

// Snapshot is the result of one scan of the machine. It never changes after it was put into a Holder.
type Snapshot struct {
	// Devices has all whole devices and the parts of divided ones. Those that no other is a part of are by name within their kind.
	Devices []device.Device
	// Withheld maps the names of whole devices that must not be published now to the reason.
	Withheld map[string]string
	Problems []discover.Problem
	// Physical are the GPUs, divided or not, by name. Cards have the counters of those whose parts are among Devices.
	Physical []discover.Physical
	Cards    []device.Card
	// Counters is the form of slices in which the API server keeps counters, empty if it keeps none. There are no cards then.
	Counters partition.Form
	// PartitionPolicies say what became of the policies that select the node, sorted by name.
	PartitionPolicies []v1alpha1.NodePartitionPolicy
	// Tenants maps the free regions of chips that claims hold to the namespace or claim that may join there.
	Tenants map[string]string
	// HiddenRegions are regions of FPGAs that the machine has shown and does not show now, with the card of each.
	HiddenRegions map[string]string
	// ForVMs are the names of whole GPUs that a claim has for a virtual machine. VFIO has them, and no library of a driver sees them.
	ForVMs map[string]bool
	// Unbinding are the vendors of which a GPU is about to leave its driver for a claim's virtual machine. It cannot while a program has it
	// open, and the vendor's library opens all GPUs.
	Unbinding map[string]bool
	// Foreign has the whole devices that the node's configuration leaves to another driver, by name. Those that no claim holds are not among
	// Devices. They stay in Physical, since other tools count GPUs by what the machine has.
	Foreign map[string]Foreign
	// HeldByDeleted are the names of devices whose holder was deleted while its pod runs. The scheduler would take them for free.
	HeldByDeleted map[string]bool
	// Upgrade is the effect of the taint that every device has while a driver of the node is changed. Empty: there is none.
	Upgrade resourceapi.DeviceTaintEffect
	// Draining: pods are to go from all devices for that.
	Draining bool
	// BindLate lists the kinds of devices whose pods are bound only after the plugin has confirmed it.
	BindLate []device.Kind
	// Health is the devices' health, from the ledger and not from the scan.
	Health Health
}

// Foreign is a device that is left to another driver.
type Foreign struct {
	Kind device.Kind
	// Vendor is who made it, and Owner the driver that it is left to.
	Vendor, Owner string
	// Held: a claim has the device, or a part of it, and keeps it until it ends.
	Held bool
}

// ForeignOf says to which driver a device, or what it is a part of, is left.
func (s *Snapshot) ForeignOf(d *device.Device) (Foreign, bool) {
	if of, ok := s.Foreign[d.Name]; ok && of.Kind == d.Kind {
		return of, true
	}
	of, ok := s.Foreign[d.Parent]
	return of, ok && of.Kind == d.Kind
}

// withholdForeign withholds what claims hold of devices that are left to other drivers, and its neighbours on them.
func (s *Snapshot) withholdForeign() {
	for i := range s.Devices {
		if of, ok := s.ForeignOf(&s.Devices[i]); ok {
			s.Withheld[s.Devices[i].Name] = "is left to " + of.Owner + ": claims that have it keep it until they end"
		}
	}
}

// Health is the health of the node's devices at one moment.
type Health struct {
	// Statuses has the devices that are not healthy, by name. A device that left the node is among them while a claim holds it.
	Statuses map[string]health.Status
	// Unknown maps the devices whose health is not known now to the reason.
	Unknown map[string]string
	// TaintsKept: the API server keeps taints, so that a device in a bad state can stay published.
	TaintsKept bool
	// NoEviction: pods stay on a device that failed.
	NoEviction bool
	// LedgerProblem is a problem of the ledger itself, empty if there is none.
	LedgerProblem string
}

// With returns the snapshot with another health. If the API server drops taints, devices that need one are withheld.
func (s *Snapshot) With(h Health) *Snapshot {
	out := *s
	h.Statuses = s.withParts(h.Statuses)
	out.Health = h
	if h.TaintsKept || len(h.Statuses)+len(s.Tenants)+len(s.HeldByDeleted) == 0 && !s.Draining {
		return &out
	}
	out.Withheld = maps.Clone(s.Withheld)
	if out.Withheld == nil {
		out.Withheld = map[string]string{}
	}
	for i := range s.Devices {
		if name := s.Devices[i].Name; s.Draining && out.Withheld[name] == "" {
			out.Withheld[name] = "is withheld until no pod has a device of the node, whose driver is to be changed, since this API server " +
				"drops the taint that would keep other pods away"
		}
	}
	for name, tenant := range s.Tenants {
		if out.Withheld[name] == "" {
			out.Withheld[name] = "its chip is held by " + tenant + ", and this API server drops the taint that would keep other claims away"
		}
	}
	for name := range s.HeldByDeleted {
		if out.Withheld[name] == "" {
			out.Withheld[name] = "is held by a claim that was deleted, and this API server drops the taint that would keep other claims away"
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

// withParts adds to the devices that are not healthy the parts of them. A part has the worse of its own status and that of the whole.
func (s *Snapshot) withParts(statuses map[string]health.Status) map[string]health.Status {
	own := true
	for i := range s.Devices {
		d := &s.Devices[i]
		parent := statuses[d.Parent]
		if d.Parent == "" || !parent.State.WorseThan(statuses[d.Name].State) {
			continue
		}
		if own {
			statuses, own = maps.Clone(statuses), false
		}
		statuses[d.Name] = parent
	}
	return statuses
}

// Hardware returns what the machine has: the whole devices, and those that are published in parts only. What is left to other drivers, and
// no claim holds, is not among them.
func (s *Snapshot) Hardware() []device.Device {
	var out []device.Device
	whole := map[string]bool{}
	for i := range s.Devices {
		if s.Devices[i].Parent == "" {
			out, whole[s.Devices[i].Name] = append(out, s.Devices[i]), true
		}
	}
	for i := range s.Physical {
		if d := s.Physical[i].Device; !whole[d.Name] && (s.Foreign[d.Name].Owner == "" || s.Foreign[d.Name].Held) {
			out = append(out, d)
		}
	}
	return out
}

// Withhold keeps a device from the scheduler and adds a problem. Use it only while a snapshot is made.
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

// All returns the whole devices, published or not.
func (s *Snapshot) All() []device.Device { return s.Devices }

// Card returns the counters of a card whose parts are among the devices.
func (s *Snapshot) Card(name string) (device.Card, bool) {
	i := slices.IndexFunc(s.Cards, func(c device.Card) bool { return c.Name == name })
	if name == "" || i < 0 {
		return device.Card{}, false
	}
	return s.Cards[i], true
}

// RegionsOf returns the names of a card's regions, sorted, including those that the machine does not show now.
func (s *Snapshot) RegionsOf(card string) []string {
	var names []string
	for i := range s.Devices {
		if r := s.Devices[i].Region; r != nil && r.Card == card {
			names = append(names, s.Devices[i].Name)
		}
	}
	for name, on := range s.HiddenRegions {
		if on == card {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Published returns the devices of one kind that the scheduler may allocate.
func (s *Snapshot) Published(kind device.Kind) []device.Device {
	var out []device.Device
	for _, d := range s.Devices {
		if _, held := s.Withheld[d.Name]; d.Kind == kind && !held {
			out = append(out, d)
		}
	}
	return out
}

// TaintHeld is the key of the taint on a device that a deleted claim holds, and ReasonClaimDeleted its value.
const (
	TaintHeld          = "fettle.dev/held"
	ReasonClaimDeleted = "ClaimDeleted"
)

// TaintUnhealthy is the key of the taint on a device that is not healthy. Its value is the reason.
const TaintUnhealthy = "fettle.dev/unhealthy"

// Taint returns the taint of a device that is not healthy. A device that failed evicts its pods, unless eviction is disabled. A quarantined
// device only takes no other claims: the claim whose step failed reports why it waits.
func Taint(s health.Status, noEviction bool) resourceapi.DeviceTaint {
	taint := resourceapi.DeviceTaint{Key: TaintUnhealthy, Value: s.Reason, Effect: resourceapi.DeviceTaintEffectNoSchedule}
	if s.State == health.Unhealthy && !noEviction {
		taint.Effect = resourceapi.DeviceTaintEffectNoExecute
	}
	return taint
}

// Holder has the newest snapshot, and a signal that there is a newer one. The snapshot combines the last scan and the devices' health,
// which come from different goroutines, so that a scan that hangs delays no report of a failure.
type Holder struct {
	mu       sync.Mutex
	scanned  *Snapshot
	health   Health
	snapshot *Snapshot
	changed  chan struct{}
}

// NewHolder makes a holder without a snapshot.
func NewHolder() *Holder { return &Holder{changed: make(chan struct{})} }

// Get returns the newest snapshot, nil before the first scan, and a channel that closes when it is replaced.
func (h *Holder) Get() (*Snapshot, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.snapshot, h.changed
}

// Await waits for the first scan of the machine.
func (h *Holder) Await(ctx context.Context) (*Snapshot, error) {
	for {
		s, changed := h.Get()
		if s != nil {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the first scan of the machine: %w", ctx.Err())
		case <-changed:
		}
	}
}

// Set replaces the last scan. It reports whether the new one differs, and only then wakes the goroutines that wait.
func (h *Holder) Set(s *Snapshot) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if reflect.DeepEqual(h.scanned, s) {
		return false
	}
	h.scanned = s
	h.compose()
	return true
}

// SetHealth replaces the devices' health, as Set replaces the last scan.
func (h *Holder) SetHealth(health Health) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if reflect.DeepEqual(h.health, health) {
		return false
	}
	h.health = health
	if h.scanned != nil {
		h.compose()
	}
	return true
}

func (h *Holder) compose() {
	h.snapshot = h.scanned.With(h.health)
	close(h.changed)
	h.changed = make(chan struct{})
}

// GPUs returns the GPUs of the node. There are none before the first scan.
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
