// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"maps"
	"reflect"
	"sync"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
	"github.com/fettle-dev/fettle/pkg/health"
)

// kinds are the pools that every node publishes, empty ones too: an empty pool says that the driver runs and found nothing.
func kinds() []device.Kind { return []device.Kind{device.KindFPGA, device.KindGPU, device.KindHost} }

// poolName is the pool of one kind of device on a node.
func poolName(node string, kind device.Kind) string { return node + "/" + string(kind) }

// view is what one look at the machine found. It is never changed after it was made.
type view struct {
	// devices are all that are whole, by name within their kind, in publishing order.
	devices []device.Device
	// withheld are the names of whole devices that must not be published now, with the reason for people.
	withheld map[string]string
	problems []discover.Problem
	// tenants are the free regions of chips that are held, with who may join there: see tenantTaint.
	tenants map[string]string
	// bindLate are the kinds of devices whose pods are bound only once the plugin has said that they can be.
	bindLate []device.Kind
	// health is the devices' health, from the ledger and not from the look.
	health verdicts
}

// verdicts are the health of the node's devices at one moment.
type verdicts struct {
	// statuses are the devices that are not healthy, by name. One that left the node is among them while a claim holds it.
	statuses map[string]health.Status
	// silent are the devices of whose health nothing is known now, with the reason.
	silent map[string]string
	// taintsKept: the API server keeps taints, so that a device in a bad state can stay published.
	taintsKept bool
	// noEviction: pods stay on a device that failed.
	noEviction bool
	// trouble is what is wrong with the ledger itself.
	trouble string
}

// with returns the view with another health. A device that the scheduler must not give out is withheld where a taint would be
// dropped.
func (v *view) with(h verdicts) *view {
	out := *v
	out.health = h
	if h.taintsKept || len(h.statuses)+len(v.tenants) == 0 {
		return &out
	}
	out.withheld = maps.Clone(v.withheld)
	for name, tenant := range v.tenants {
		if out.withheld[name] == "" {
			out.withheld[name] = "its chip is held by " + tenant + ", and this API server keeps no taint that would say so"
		}
	}
	for i := range v.devices {
		name := v.devices[i].Name
		if s, bad := h.statuses[name]; bad && out.withheld[name] == "" {
			out.withheld[name] = s.Message
		}
	}
	return &out
}

// withhold keeps a device from the scheduler and says why. It is for the making of a view.
func (v *view) withhold(name, subject, reason string, cause error) {
	v.withheld[name] = cause.Error()
	v.problems = append(v.problems, discover.Problem{Subject: subject, Reason: reason, Message: cause.Error()})
}

// Find returns a device by pool suffix and name.
func (v *view) Find(kind device.Kind, name string) (device.Device, bool) {
	for i := range v.devices {
		if v.devices[i].Kind == kind && v.devices[i].Name == name {
			return v.devices[i], true
		}
	}
	return device.Device{}, false
}

// All are the devices that are whole, published or not.
func (v *view) All() []device.Device { return v.devices }

// published are the devices of one kind that the scheduler may give out.
func (v *view) published(kind device.Kind) []device.Device {
	var out []device.Device
	for _, d := range v.devices {
		if _, held := v.withheld[d.Name]; d.Kind == kind && !held {
			out = append(out, d)
		}
	}
	return out
}

// latest is the newest view, and a signal that there is a newer one. It is made of what the last look saw and of the devices' health,
// which come from different goroutines: a look that hangs holds up no bad news.
type latest struct {
	// pulse is when the sources of health were last heard of.
	pulse *pulse

	mu      sync.Mutex
	seen    *view
	health  verdicts
	view    *view
	changed chan struct{}
}

func newLatest() *latest { return &latest{pulse: newPulse(), changed: make(chan struct{})} }

// get returns the newest view, nil before the first look, and a channel that closes when it is replaced.
func (l *latest) get() (*view, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.view, l.changed
}

// set replaces what was seen. It reports whether that differs and wakes everyone who waits only then.
func (l *latest) set(v *view) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if reflect.DeepEqual(l.seen, v) {
		return false
	}
	l.seen = v
	l.compose()
	return true
}

// setHealth replaces the devices' health, as set does with what was seen.
func (l *latest) setHealth(h verdicts) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if reflect.DeepEqual(l.health, h) {
		return false
	}
	l.health = h
	if l.seen != nil {
		l.compose()
	}
	return true
}

func (l *latest) compose() {
	l.view = l.seen.with(l.health)
	close(l.changed)
	l.changed = make(chan struct{})
}
