// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"

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
