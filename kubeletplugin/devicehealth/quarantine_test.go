// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// quarantined are the devices of a view that are in quarantine, with the reason.
func quarantined(statuses map[string]health.Status) map[string]string {
	out := map[string]string{}
	for name, s := range statuses {
		if s.State == health.Quarantined {
			out[name] = string(s.Kind) + " " + s.Reason
		}
	}
	return out
}

func recorded(kind device.Kind, name string, admin bool) record.Device {
	return record.Device{Pool: device.PoolName(nodefixture.Node, kind), Name: name, AdminAccess: admin}
}

// TestQuarantine: what a claim holds, and nothing that it only looks at, is nobody's until the claim is given back, in whichever process.
func TestQuarantine(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	v, _ := w.Holder.Get()
	held, watched := v.Devices[0].Name, v.Devices[1].Name
	r := &record.Record{Namespace: "team-a", Name: "train", UID: "u1", Devices: []record.Device{
		recorded(device.KindGPU, held, false), recorded(device.KindGPU, watched, true), recorded(device.KindHost, "ssd0", false),
	}}
	want := map[string]string{held: "gpu UndoFailed", "ssd0": "host UndoFailed"}

	w.Quarantine(r, syscall.EBUSY)
	if diff := cmp.Diff(want, quarantined(w.ledger.Statuses())); diff != "" {
		t.Errorf("in quarantine (-want +got):\n%s", diff)
	}
	status := w.ledger.Statuses()[held]
	message := status.Detail()
	for _, part := range []string{"team-a/train", "u1", syscall.EBUSY.Error()} {
		if !strings.Contains(message, part) {
			t.Errorf("message %q does not say %q", message, part)
		}
	}
	w.Quarantine(r, errors.New("still busy"))
	if diff := cmp.Diff(want, quarantined(w.ledger.Statuses())); diff != "" {
		t.Errorf("in quarantine after the second try (-want +got):\n%s", diff)
	}

	next := w.again("boot-2", inventory.NewHolder())
	if diff := cmp.Diff(want, quarantined(next.ledger.Statuses())); diff != "" {
		t.Errorf("in quarantine after a reboot (-want +got):\n%s", diff)
	}
	next.Clear(r)
	for _, name := range []string{held, watched, "ssd0"} {
		if s, bad := w.ledger.Check(name); bad {
			t.Errorf("%s is %s after another process gave the claim back: %s", name, s.State, s.Message)
		}
	}
}

// TestQuarantineNamesNoTenant: who is refused a device, or shares it, is not told whose claim cannot be released. Administrators are.
func TestQuarantineNamesNoTenant(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	v, _ := w.Holder.Get()
	name := v.Devices[0].Name
	w.Quarantine(&record.Record{
		Namespace: "alices-team", Name: "alices-claim", UID: "u1", Devices: []record.Device{recorded(device.KindGPU, name, false)},
	}, syscall.EBUSY)
	w.Refresh()
	v, _ = w.Holder.Get()
	r := nodefixture.Result("gpu", device.KindGPU, name)
	err := w.Check(nodefixture.Allocated("u2", r), &claim.Result{Request: "gpu", Kind: device.KindGPU, Pool: r.Pool, Device: name})
	if !errors.Is(err, ErrUnhealthy) {
		t.Fatalf("got %v", err)
	}
	told := []string{err.Error()}
	for _, d := range healthReport(w.Node, v, nil, map[kubeletplugin.DeviceHealth]bool{}, time.Unix(0, 0)).Devices {
		if d.DeviceName == name {
			told = append(told, d.Message)
		}
	}
	for _, text := range told {
		if strings.Contains(text, "alice") || !strings.Contains(text, syscall.EBUSY.Error()) {
			t.Errorf("told: %s", text)
		}
	}
	w.announce(t.Context())
	if last := w.events[len(w.events)-1]; !strings.Contains(last, "alices-team/alices-claim") {
		t.Errorf("the Event on the node does not say which claim it is: %s", last)
	}
}

// TestClearIsNoPardon: what else is known against a device stays, and so does what it is in quarantine for as another claim's.
func TestClearIsNoPardon(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	v, _ := w.Holder.Get()
	worn, held, watched := v.Devices[0].Name, v.Devices[1].Name, v.Devices[2].Name
	r := &record.Record{UID: "u1", Devices: []record.Device{
		recorded(device.KindGPU, worn, false), recorded(device.KindGPU, held, false), recorded(device.KindGPU, watched, true),
	}}
	w.Quarantine(r, syscall.EBUSY)
	check.Must(t, w.ledger.Happened(health.Xid(worn, nvml.Event{Xid: 94})))
	check.Must(t, w.ledger.Quarantine(device.KindGPU, held, health.Cause{Reason: "FlashFailed", Message: "not by the engine"}))
	w.Quarantine(&record.Record{UID: "u2", Devices: []record.Device{recorded(device.KindGPU, watched, false)}}, syscall.EBUSY)
	w.Clear(r)
	got := map[string]string{}
	for name, s := range w.ledger.Statuses() {
		got[name] = string(s.State) + " " + s.Reason
	}
	want := map[string]string{worn: "Degraded Xid94", held: "Quarantined FlashFailed", watched: "Quarantined UndoFailed"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices that are not healthy (-want +got):\n%s", diff)
	}
}
