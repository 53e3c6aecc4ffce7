// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"reflect"
	"sync"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/discover"
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

// latest is the newest view, and a signal that there is a newer one.
type latest struct {
	mu      sync.Mutex
	view    *view
	changed chan struct{}
}

func newLatest() *latest { return &latest{changed: make(chan struct{})} }

// get returns the newest view, nil before the first look, and a channel that closes when it is replaced.
func (l *latest) get() (*view, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.view, l.changed
}

// set replaces the view. It reports whether the new one differs and wakes everyone who waits only then.
func (l *latest) set(v *view) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if reflect.DeepEqual(l.view, v) {
		return false
	}
	l.view = v
	close(l.changed)
	l.changed = make(chan struct{})
	return true
}
