// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/nvml"
	"github.com/fettle-dev/fettle/pkg/record"
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
	return record.Device{Pool: poolName(testNode, kind), Name: name, AdminAccess: admin}
}

// TestQuarantine: what a claim holds, and nothing that it only looks at, is nobody's until the claim is given back, in whichever process.
func TestQuarantine(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	v, _ := w.latest.get()
	held, watched := v.devices[0].Name, v.devices[1].Name
	r := &record.Record{Namespace: "team-a", Name: "train", UID: "u1", Devices: []record.Device{
		recorded(device.KindGPU, held, false), recorded(device.KindGPU, watched, true), recorded(device.KindHost, "ssd0", false),
	}}
	want := map[string]string{held: "gpu UndoFailed", "ssd0": "host UndoFailed"}

	w.quarantine(r, syscall.EBUSY)
	if diff := cmp.Diff(want, quarantined(w.ledger.Statuses())); diff != "" {
		t.Errorf("in quarantine (-want +got):\n%s", diff)
	}
	message := w.ledger.Statuses()[held].Message
	for _, part := range []string{"team-a/train", "u1", syscall.EBUSY.Error()} {
		if !strings.Contains(message, part) {
			t.Errorf("message %q does not say %q", message, part)
		}
	}
	w.quarantine(r, errors.New("still busy"))
	if diff := cmp.Diff(want, quarantined(w.ledger.Statuses())); diff != "" {
		t.Errorf("in quarantine after the second try (-want +got):\n%s", diff)
	}

	next := newHealthKeeper(w.config, nil, "boot-2", newLatest(), newRetirement(), newMetrics(), nil)
	if diff := cmp.Diff(want, quarantined(next.ledger.Statuses())); diff != "" {
		t.Errorf("in quarantine after a reboot (-want +got):\n%s", diff)
	}
	next.clear(r)
	for _, name := range []string{held, watched, "ssd0"} {
		if s, bad := w.ledger.Check(name); bad {
			t.Errorf("%s is %s after another process gave the claim back: %s", name, s.State, s.Message)
		}
	}
}

// TestClearIsNoPardon: what else is known against a device stays, and so does what it is in quarantine for as another claim's.
func TestClearIsNoPardon(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	v, _ := w.latest.get()
	worn, held, watched := v.devices[0].Name, v.devices[1].Name, v.devices[2].Name
	r := &record.Record{UID: "u1", Devices: []record.Device{
		recorded(device.KindGPU, worn, false), recorded(device.KindGPU, held, false), recorded(device.KindGPU, watched, true),
	}}
	w.quarantine(r, syscall.EBUSY)
	must(t, w.ledger.Happened(health.Xid(worn, nvml.Event{Xid: 94})))
	must(t, w.ledger.Quarantine(device.KindGPU, held, "FlashFailed", "not by the engine"))
	w.quarantine(&record.Record{UID: "u2", Devices: []record.Device{recorded(device.KindGPU, watched, false)}}, syscall.EBUSY)
	w.clear(r)
	got := map[string]string{}
	for name, s := range w.ledger.Statuses() {
		got[name] = string(s.State) + " " + s.Reason
	}
	want := map[string]string{worn: "Degraded Xid94", held: "Quarantined FlashFailed", watched: "Quarantined UndoFailed"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices that are not healthy (-want +got):\n%s", diff)
	}
}

// TestFailedUndoIsPublished: the engine's trouble with a directory reaches the scheduler, and is over when the claim was given back.
func TestFailedUndoIsPublished(t *testing.T) {
	root, dir := expand(t, "4xlocalssd"), t.TempDir()
	client := fake.NewClientset()
	p, err := New(Config{
		Node: testNode, Namespace: "fettle-system", HostRoot: root, PluginsDir: filepath.Join(dir, "p"), RegistryDir: filepath.Join(dir, "r"),
		CDIRoot: filepath.Join(dir, "cdi"), StateDir: filepath.Join(dir, "state"), HTTPAddress: "127.0.0.1:0", HealthPort: 1,
		File: nodeconfig.File{HostDevices: localSSD()}.WithDefaults(),
	}, Clients{Kube: client, Dynamic: noPresets(t)}, "boot-1")
	must(t, err)
	must(t, p.health.ledger.SetTaintsKept(true))
	t.Cleanup(p.engine.Stop)
	p.looker.look(t.Context())
	v, _ := p.latest.get()
	name := v.devices[0].Name
	taints := func() map[string][]resourceapi.DeviceTaint {
		p.health.show()
		v, _ := p.latest.get()
		out := map[string][]resourceapi.DeviceTaint{}
		for _, d := range resources(testNode, v).Pools[poolName(testNode, device.KindHost)].Slices[0].Devices {
			if len(d.Taints) > 0 {
				out[d.Name] = d.Taints
			}
		}
		return out
	}
	_, err = p.engine.Prepare(t.Context(), allocated("u1", result("disk", device.KindHost, name)), p.engine.Now())
	must(t, err)

	kind := p.engine.Kinds[hostdir.StepKind]
	broken := kind
	broken.Undo = func(context.Context, json.RawMessage) error { return syscall.EIO }
	p.engine.Kinds[hostdir.StepKind] = broken
	if _, err := p.engine.Unprepare(t.Context(), "u1", p.engine.Now()); !errors.Is(err, syscall.EIO) {
		t.Fatalf("error %v, want EIO", err)
	}
	want := map[string][]resourceapi.DeviceTaint{
		name: {{Key: TaintUnhealthy, Value: "UndoFailed", Effect: resourceapi.DeviceTaintEffectNoSchedule}},
	}
	if diff := cmp.Diff(want, taints()); diff != "" {
		t.Errorf("taints while it cannot be given back (-want +got):\n%s", diff)
	}
	p.engine.Kinds[hostdir.StepKind] = kind
	if _, err := p.engine.Unprepare(t.Context(), "u1", p.engine.Now()); err != nil {
		t.Fatal(err)
	}
	if left := taints(); len(left) > 0 {
		t.Errorf("taints %v after it was given back", left)
	}
	next := allocated("u2", result("disk", device.KindHost, name))
	must(t, client.Tracker().Add(next)) // read again where its device was not free at once
	_, err = p.engine.Prepare(t.Context(), next, p.engine.Now())
	must(t, err)
}
