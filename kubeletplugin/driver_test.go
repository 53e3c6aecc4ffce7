// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/fettle-dev/fettle/kubeletplugin/devicehealth"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/retirement"
	"github.com/fettle-dev/fettle/kubeletplugin/status"
	"github.com/fettle-dev/fettle/pkg/nodeconfig"
	"github.com/fettle-dev/fettle/pkg/record"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// TestAnswer is what kubelet is told of a record: each device by its own request, share and name.
func TestAnswer(t *testing.T) {
	vendor, other := "NVIDIA", "a disk of the same name"
	device := nodefixture.GPU("same", 0)
	device.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"vendor": {StringValue: &vendor}}
	disk := nodefixture.SSD("same")
	disk.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"vendor": {StringValue: &other}}
	r := &record.Record{Devices: []record.Device{
		{Request: "a", Pool: testNode + "/gpu", Name: "same", ShareID: "s1", CDIDevice: "fettle.dev/common=x1"},
		{Request: "b/sub", Pool: testNode + "/gpu", Name: "gone", CDIDevice: "fettle.dev/claim=n2"},
	}}
	want := []kubeletplugin.Device{
		{
			Requests: []string{"a"}, PoolName: testNode + "/gpu", DeviceName: "same",
			CDIDeviceIDs: []string{"fettle.dev/gpu=same", "fettle.dev/common=x1"}, // kubelet shows the first in the pod's status
			ShareID:      new(types.UID("s1")),
		},
		{
			Requests: []string{"b/sub"}, PoolName: testNode + "/gpu", DeviceName: "gone",
			CDIDeviceIDs: []string{"fettle.dev/gpu=gone", "fettle.dev/claim=n2"},
		},
	}
	p := &Plugin{holder: inventory.NewHolder()}
	p.holder.Set(nodefixture.SnapshotWith(device, disk))
	if diff := cmp.Diff(want, p.kubeletDevices(r)); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	p.config.File.DeviceMetadata = true
	want[0].Metadata = &kubeletplugin.DeviceMetadata{Attributes: map[string]resourceapi.DeviceAttribute{"vendor": {StringValue: &vendor}}}
	want[1].Metadata = &kubeletplugin.DeviceMetadata{Attributes: map[string]resourceapi.DeviceAttribute{}}
	if diff := cmp.Diff(want, p.kubeletDevices(r)); diff != "" {
		t.Errorf("answer with metadata (-want +got):\n%s", diff)
	}
}

// TestMetadataVersions: Kubernetes' helper wants the newest version, and KubeVirt reads the oldest.
func TestMetadataVersions(t *testing.T) {
	var got []string
	for _, version := range metadataVersions() {
		got = append(got, version.String())
	}
	if diff := cmp.Diff([]string{"metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// failing is a plugin whose Events can be read.
func failing(t *testing.T) (*Plugin, *events.FakeRecorder) {
	t.Helper()
	recorder := events.NewFakeRecorder(10)
	p := &Plugin{metrics: newMetrics(), holder: inventory.NewHolder(), node: &status.NodeEvents{Node: testNode, Events: recorder}}
	p.readiness = &readiness{holder: p.holder}
	file := nodeconfig.File{}.WithDefaults()
	p.health = devicehealth.New(devicehealth.Config{
		Node: testNode, StateDir: t.TempDir(), BootID: "boot-1", File: &file, Holder: p.holder, Retirement: retirement.New(),
		Registry: p.metrics.registry, Errors: p.metrics.backgroundErrors,
	})
	p.parts = parts{p.health}
	return p, recorder
}

// TestRejectedSliceIsTold. Seen elsewhere: the API server refused the slices, which only a log line said, and the node looked healthy
// and empty.
func TestRejectedSliceIsTold(t *testing.T) {
	p, recorder := failing(t)
	p.HandleError(t.Context(), errors.New("spec.devices: Too many: 129"), "create ResourceSlice")
	if event := receive(t, recorder.Events); !strings.Contains(event, "PublishFailed") || !strings.Contains(event, "Too many") {
		t.Errorf("event %q", event)
	}
	if got := testutil.ToFloat64(p.metrics.backgroundErrors.WithLabelValues("publish")); got != 1 {
		t.Errorf("counted %v errors, want 1", got)
	}
	if p.readiness.publishErr == nil {
		t.Error("the plugin would be ready")
	}
}

// TestOlderAPIServerIsServed. Seen elsewhere: an API server that does not know a field yet made the plugin crash, or drop the device
// without a word.
func TestOlderAPIServerIsServed(t *testing.T) {
	p, recorder := failing(t)
	device := resourceapi.Device{Name: "a", Taints: []resourceapi.DeviceTaint{{Key: "k"}}}
	slice := func(d resourceapi.Device) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{d}}}
	}
	dropped := &resourceslice.DroppedFieldsError{PoolName: "p", DesiredSlice: slice(device), ActualSlice: slice(resourceapi.Device{Name: "a"})}
	p.HandleError(t.Context(), dropped, "update ResourceSlice")
	if event := receive(t, recorder.Events); !strings.Contains(event, "FeatureMissing") || !strings.Contains(event, "DRADeviceTaints") {
		t.Errorf("event %q", event)
	}
	if got := testutil.ToFloat64(p.metrics.droppedFeatures.WithLabelValues("DRADeviceTaints")); got != 1 {
		t.Errorf("metric %v, want 1", got)
	}
	if p.readiness.publishErr != nil {
		t.Errorf("not ready (%v), although the rest is published", p.readiness.publishErr)
	}
}
