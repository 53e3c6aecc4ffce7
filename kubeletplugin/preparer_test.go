// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/fettle-dev/fettle/cdi"
	"github.com/fettle-dev/fettle/pkg/claim"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/hostdir"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/pkg/step"
)

const keepContent = `{"apiVersion":"fettle.dev/v1alpha1","kind":"HostConfig","policy":{"onRelease":"Keep"}}`

// site is a preparer on a machine of two GPUs and two disks.
type site struct {
	*preparer
	t       *testing.T
	view    *view
	cdiRoot string
}

func newSite(t *testing.T) *site {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"ssd0", "ssd1"} {
		must(t, os.MkdirAll(filepath.Join(dir, "mnt", "disks", name), 0o755))
	}
	store, err := record.Open(filepath.Join(dir, "state"))
	must(t, err)
	s := &site{t: t, cdiRoot: filepath.Join(dir, "cdi"), view: viewWith(gpu("gpu0", 0), gpu("gpu1", 1), disk("ssd0"), disk("ssd1"))}
	specs, err := cdi.Open(s.cdiRoot)
	must(t, err)
	s.preparer = &preparer{
		node: testNode, hostRoot: dir, bootID: "boot-1", store: store, specs: specs,
		steps: step.Kinds{hostdir.StepKind: hostdir.Kind(dir)},
	}
	return s
}

func (s *site) prepare(c *resourceapi.ResourceClaim) *record.Record {
	s.t.Helper()
	r, err := s.preparer.prepare(s.t.Context(), s.view, c)
	must(s.t, err)
	for i := range r.Devices {
		if !s.specs.Has(r.Devices[i].CDIDevice) {
			s.t.Errorf("kubelet was told of %s, which is not there", r.Devices[i].CDIDevice)
		}
	}
	return r
}

func (s *site) unprepare(uid string) {
	s.t.Helper()
	_, err := s.preparer.unprepare(s.t.Context(), uid)
	must(s.t, err)
}

func (s *site) disk(name string) string { return filepath.Join(s.hostRoot, "mnt", "disks", name) }

func (s *site) uids() []string {
	s.t.Helper()
	uids, err := s.store.UIDs()
	must(s.t, err)
	return uids
}

func TestPrepareTwice(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", result("gpu", device.KindGPU, "gpu0"), result("disk", device.KindHost, "ssd0"))
	first := s.prepare(c)
	must(t, os.WriteFile(filepath.Join(s.disk("ssd0"), "data"), nil, 0o600))
	if diff := cmp.Diff(first, s.prepare(c)); diff != "" {
		t.Errorf("the second answer (-first +second):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(s.disk("ssd0"), "data")); err != nil {
		t.Errorf("the second call took the claim's data: %v", err)
	}
	want := []string{"gpu0", "ssd0"}
	if got := []string{first.Devices[0].Name, first.Devices[1].Name}; !cmp.Equal(want, got) {
		t.Errorf("devices %v, want %v", got, want)
	}
}

// TestAnswerDoesNotChange: what a claim was promised is what every restart of its containers gets, though the device changed.
func TestAnswerDoesNotChange(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", result("gpu", device.KindGPU, "gpu0"))
	first := s.prepare(c)
	s.view = viewWith(gpu("gpu0", 7))
	if got := s.prepare(c); got.Devices[0].CDIDevice != first.Devices[0].CDIDevice {
		t.Error("a prepared claim was given other edits")
	}
	s.view = viewWith()
	if got := s.prepare(c); got.Devices[0].CDIDevice != first.Devices[0].CDIDevice {
		t.Error("a prepared claim lost its edits when the device left the view")
	}
}

func TestAnotherAllocation(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", result("gpu", device.KindGPU, "gpu0"), result("disk", device.KindHost, "ssd0")))
	must(t, os.WriteFile(filepath.Join(s.disk("ssd0"), "data"), nil, 0o600))
	r := s.prepare(allocated("u1", result("gpu", device.KindGPU, "gpu1")))
	if len(r.Devices) != 1 || r.Devices[0].Name != "gpu1" || len(r.Steps) != 0 {
		t.Errorf("record %+v", r)
	}
	if s.store.Held(testNode+"/gpu", "gpu0") || s.store.Held(testNode+"/host", "ssd0") {
		t.Error("the former devices are still held")
	}
	if _, err := os.Stat(filepath.Join(s.disk("ssd0"), "data")); err == nil {
		t.Error("the former directory was not emptied")
	}
}

// TestReboot: after a reboot the numbers of device nodes are read anew, and a directory keeps its claim's content.
func TestReboot(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", result("gpu", device.KindGPU, "gpu0"), result("disk", device.KindHost, "ssd0"))
	before := s.prepare(c)
	data := filepath.Join(s.disk("ssd0"), "data")
	must(t, os.WriteFile(data, nil, 0o600))
	must(t, os.Chmod(s.disk("ssd0"), 0o700))
	must(t, os.RemoveAll(s.cdiRoot)) // /run is a tmpfs
	s.bootID = "boot-2"
	s.view.devices[0] = gpu("gpu0", 9)
	after := s.prepare(c)
	if after.BootID != "boot-2" || after.Devices[0].Edits.Nodes[0].Minor != 9 || after.Devices[0].CDIDevice == before.Devices[0].CDIDevice {
		t.Errorf("record %+v still has the numbers of the former boot", after)
	}
	if diff := cmp.Diff(before.Steps, after.Steps); diff != "" {
		t.Errorf("steps (-before +after):\n%s", diff)
	}
	if _, err := os.Stat(data); err != nil {
		t.Errorf("the reboot took the claim's data: %v", err)
	}
	if info, err := os.Stat(s.disk("ssd0")); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("mode %v (%v): the step was not applied again", info.Mode(), err)
	}
	stored, err := s.store.Load("u1")
	must(t, err)
	if diff := cmp.Diff(after, stored); diff != "" {
		t.Errorf("stored (-answered +stored):\n%s", diff)
	}
}

// TestRebootFails: a failure after a reboot undoes nothing, since the data is still the claim's, and the next call tries again.
func TestRebootFails(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", result("disk", device.KindHost, "ssd0"))
	s.prepare(c)
	data := filepath.Join(s.disk("ssd0"), "data")
	must(t, os.WriteFile(data, nil, 0o600))
	s.bootID = "boot-2"
	good := s.steps
	s.steps = step.Kinds{hostdir.StepKind: {Apply: fail, Undo: good[hostdir.StepKind].Undo}}
	if _, err := s.preparer.prepare(t.Context(), s.view, c); !errors.Is(err, errInjected) {
		t.Fatalf("error %v, want the step's", err)
	}
	if _, err := os.Stat(data); err != nil {
		t.Errorf("the failure took the claim's data: %v", err)
	}
	s.steps = good
	if r := s.prepare(c); r.BootID != "boot-2" {
		t.Errorf("boot %s", r.BootID)
	}
	if info, err := os.Stat(s.disk("ssd0")); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("mode %v (%v): the step was not applied", info.Mode(), err)
	}
}

var errInjected = errors.New("injected")

func fail(context.Context, json.RawMessage) error { return errInjected }

func TestDeviceGone(t *testing.T) {
	s := newSite(t)
	_, err := s.preparer.prepare(t.Context(), s.view, allocated("u1", result("gpu", device.KindGPU, "gpu7")))
	if !errors.Is(err, errDeviceGone) || !strings.Contains(err.Error(), "node-1/gpu/gpu7") {
		t.Errorf("error %v, want one that names the device", err)
	}
	if got := s.uids(); len(got) > 0 {
		t.Errorf("records %v", got)
	}
}

func TestInUse(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", result("gpu", device.KindGPU, "gpu0")))
	_, err := s.preparer.prepare(t.Context(), s.view,
		allocated("u2", result("a", device.KindGPU, "gpu1"), result("b", device.KindGPU, "gpu0"), result("c", device.KindHost, "ssd0")))
	inUse, ok := errors.AsType[*record.InUseError](err)
	if !ok || inUse.Owner.UID != "u1" {
		t.Fatalf("error %v, want an InUseError of u1", err)
	}
	if diff := cmp.Diff([]string{"u1"}, s.uids()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if s.store.Held(testNode+"/gpu", "gpu1") || s.store.Held(testNode+"/host", "ssd0") {
		t.Error("the refused claim holds devices")
	}
	s.unprepare("u1")
	s.prepare(allocated("u2", result("b", device.KindGPU, "gpu0")))
}

func TestSpecsWiped(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", result("gpu", device.KindGPU, "gpu0"))
	first := s.prepare(c)
	must(t, os.RemoveAll(s.cdiRoot))
	if diff := cmp.Diff(first, s.prepare(c)); diff != "" {
		t.Errorf("answer (-first +second):\n%s", diff)
	}
}

// TestSpecOfAnotherRelease: what an id means must not change, so a spec that is gone and would be written otherwise is an error.
func TestSpecOfAnotherRelease(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", result("gpu", device.KindGPU, "gpu0"))
	r := s.prepare(c)
	r.Devices[0].CDIDevice = "fettle.dev/common=xother"
	must(t, s.store.Save(r))
	_, err := s.preparer.prepare(t.Context(), s.view, c)
	if err == nil || !strings.Contains(err.Error(), "restart the pod") {
		t.Errorf("error %v, want the next step", err)
	}
}

// TestFailureRollsBack fails in each part of a Prepare, and wants nothing to be left of it.
func TestFailureRollsBack(t *testing.T) {
	tests := map[string]func(s *site){
		"step": func(s *site) {
			s.steps[hostdir.StepKind] = step.Kind{Apply: fail, Undo: s.steps[hostdir.StepKind].Undo}
		},
		"spec": func(s *site) {
			must(t, os.RemoveAll(s.cdiRoot))
			must(t, os.WriteFile(s.cdiRoot, nil, 0o600))
		},
	}
	for name, sabotage := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			sabotage(s)
			c := allocated("u1", result("gpu", device.KindGPU, "gpu0"), result("disk", device.KindHost, "ssd0"))
			if r, err := s.preparer.prepare(t.Context(), s.view, c); err == nil {
				t.Fatalf("prepared %+v", r)
			}
			if got := s.uids(); len(got) > 0 {
				t.Errorf("records %v", got)
			}
			if s.store.Held(testNode+"/gpu", "gpu0") || s.store.Held(testNode+"/host", "ssd0") {
				t.Error("devices are held")
			}
			if info, err := os.Stat(s.disk("ssd0")); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("mode %v (%v) was not restored", info.Mode(), err)
			}
		})
	}
}

// TestUndoFails: a record stays until its effects are undone.
func TestUndoFails(t *testing.T) {
	s := newSite(t)
	s.prepare(allocated("u1", result("disk", device.KindHost, "ssd0")))
	good := s.steps
	s.steps = step.Kinds{hostdir.StepKind: {Undo: fail}}
	if _, err := s.preparer.unprepare(t.Context(), "u1"); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	if got := s.uids(); len(got) != 1 || !s.store.Held(testNode+"/host", "ssd0") {
		t.Errorf("records %v: the claim was forgotten with its effects", got)
	}
	s.steps = good
	s.unprepare("u1")
}

func TestAdminAccessHoldsNothing(t *testing.T) {
	s := newSite(t)
	must(t, os.WriteFile(filepath.Join(s.disk("ssd0"), "data"), nil, 0o600))
	r := s.prepare(allocated("u1", look(result("gpu", device.KindGPU, "gpu0")), look(result("disk", device.KindHost, "ssd0"))))
	if len(r.Steps) > 0 {
		t.Errorf("steps %v", r.Steps)
	}
	if node := r.Devices[0].Edits.Nodes[0]; node.Permissions != "r" {
		t.Errorf("node %+v, want it read-only", node)
	}
	if mount := r.Devices[1].Edits.Mounts[0]; !mount.ReadOnly {
		t.Errorf("mount %+v, want it read-only", mount)
	}
	s.prepare(allocated("u2", result("gpu", device.KindGPU, "gpu0")))
	s.unprepare("u1")
	if _, err := os.Stat(filepath.Join(s.disk("ssd0"), "data")); err != nil {
		t.Errorf("the end of a look took data: %v", err)
	}
	if !s.store.Held(testNode+"/gpu", "gpu0") {
		t.Error("the end of a look freed the holder's device")
	}
}

func TestUnprepare(t *testing.T) {
	s := newSite(t)
	s.unprepare("never-seen")
	if _, err := s.preparer.unprepare(t.Context(), "../../etc"); err == nil {
		t.Error("a path was taken for a UID")
	}
	s.prepare(allocated("u1", result("gpu", device.KindGPU, "gpu0")))
	for range 2 {
		s.unprepare("u1")
	}
	if got := s.uids(); len(got) > 0 || s.store.Held(testNode+"/gpu", "gpu0") {
		t.Errorf("records %v", got)
	}
}

// TestDirectoryLifecycle: lent, emptied on release, and not lent again while anything that was moved aside waits to be deleted.
func TestDirectoryLifecycle(t *testing.T) {
	s := newSite(t)
	first, second := allocated("u1", result("disk", device.KindHost, "ssd0")), allocated("u2", result("disk", device.KindHost, "ssd0"))
	s.prepare(first)
	must(t, os.WriteFile(filepath.Join(s.disk("ssd0"), "data"), nil, 0o600))
	s.unprepare("u1")
	if _, err := os.Stat(filepath.Join(s.disk("ssd0"), "data")); err == nil {
		t.Fatal("the content stayed in its place")
	}
	// As a plugin leaves it that was killed, or had too much to delete at once.
	dir, err := hostdir.Open(s.disk("ssd0"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(s.disk("ssd0"), "data"), nil, 0o600))
	must(t, errors.Join(dir.SetAside("u1"), dir.Close()))
	if _, err := s.preparer.prepare(t.Context(), s.view, second); !errors.Is(err, hostdir.ErrDirty) {
		t.Fatalf("error %v, want ErrDirty", err)
	}
	if got := s.uids(); len(got) > 0 {
		t.Errorf("records %v", got)
	}
	must(t, purge(t.Context(), s.disk("ssd0")))
	s.prepare(second)
	entries, err := os.ReadDir(s.disk("ssd0"))
	if err != nil || len(entries) > 0 {
		t.Errorf("the next claim finds %v (%v)", entries, err)
	}
}

// TestCutOffPrepareIsFinished: a plugin that died after it wrote the record left neither the owner nor the effect.
func TestCutOffPrepareIsFinished(t *testing.T) {
	s := newSite(t)
	c := allocated("u1", result("disk", device.KindHost, "ssd0"))
	s.prepare(c)
	links, err := filepath.Glob(filepath.Join(filepath.Dir(s.cdiRoot), "state", "owners", "*"))
	must(t, err)
	for _, link := range links {
		must(t, os.Remove(link))
	}
	must(t, os.Chmod(s.disk("ssd0"), 0o700))
	s.prepare(c)
	if !s.store.Held(testNode+"/host", "ssd0") {
		t.Error("nobody holds the device")
	}
	info, err := os.Stat(s.disk("ssd0"))
	must(t, err)
	if info.Mode().Perm() != 0o777 {
		t.Errorf("mode %v, want it open to the pod", info.Mode())
	}
}

func TestDirectoryKept(t *testing.T) {
	s := newSite(t)
	data := filepath.Join(s.disk("ssd0"), "data")
	must(t, os.WriteFile(data, nil, 0o600))
	c := configured(allocated("u1", result("disk", device.KindHost, "ssd0")), resourceapi.AllocationConfigSourceClass, keepContent)
	if r := s.prepare(c); len(r.Steps) > 0 {
		t.Errorf("steps %v", r.Steps)
	}
	s.unprepare("u1")
	if _, err := os.Stat(data); err != nil {
		t.Errorf("kept content is gone: %v", err)
	}
}

func TestRefusedClaimLeavesNothing(t *testing.T) {
	s := newSite(t)
	c := configured(allocated("u1", result("gpu", device.KindGPU, "gpu0")), resourceapi.AllocationConfigSourceClaim,
		`{"apiVersion":"fettle.dev/v1alpha1","kind":"GPUConfig","colour":"red"}`)
	_, err := s.preparer.prepare(t.Context(), s.view, c)
	refused, ok := errors.AsType[*claim.RefusedError](err)
	if !ok || refused.Reason != claim.ReasonConfigInvalid || !strings.Contains(err.Error(), "colour") {
		t.Errorf("error %v, want a refusal that names the field", err)
	}
	if got := s.uids(); len(got) > 0 {
		t.Errorf("records %v", got)
	}
}

func TestPrepareHonoursDeadline(t *testing.T) {
	s := newSite(t)
	unlock, err := s.store.Lock(t.Context())
	must(t, err)
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.preparer.prepare(ctx, s.view, allocated("u1", result("gpu", device.KindGPU, "gpu0"))); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}
