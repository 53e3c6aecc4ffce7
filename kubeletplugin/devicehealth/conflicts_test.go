// SPDX-License-Identifier: Apache-2.0

package devicehealth

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/clock"

	"github.com/fettle-dev/fettle/api/v1alpha1"
	"github.com/fettle-dev/fettle/kubeletplugin/inventory"
	"github.com/fettle-dev/fettle/kubeletplugin/nodeview"
	"github.com/fettle-dev/fettle/kubeletplugin/publish"
	"github.com/fettle-dev/fettle/pkg/device"
	"github.com/fettle-dev/fettle/pkg/health"
	"github.com/fettle-dev/fettle/test/check"
	"github.com/fettle-dev/fettle/test/nodefixture"
)

// nodeWith is a node whose capacity has some resources, "NAME=QUANTITY".
func nodeWith(capacity ...string) *corev1.Node {
	node := &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: nodefixture.Node},
		Status: corev1.NodeStatus{Capacity: corev1.ResourceList{"cpu": resource.MustParse("16")}},
	}
	for _, one := range capacity {
		name, quantity, _ := strings.Cut(one, "=")
		node.Status.Capacity[corev1.ResourceName(name)] = resource.MustParse(quantity)
	}
	return node
}

// sliceOf is a driver's slice of devices at PCI addresses; an empty one has no such attribute.
func sliceOf(driver string, addresses ...string) resourceapi.ResourceSlice {
	slice := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: driver}}
	for _, address := range addresses {
		d := resourceapi.Device{Name: "d", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"vendor": {}}}
		if address != "" {
			d.Attributes[deviceattribute.StandardDeviceAttributePCIBusID] = resourceapi.DeviceAttribute{StringValue: &address}
		}
		slice.Spec.Devices = append(slice.Spec.Devices, d)
	}
	return slice
}

func addressOf(d device.Device) string {
	return device.StringOf(d.Attributes[deviceattribute.StandardDeviceAttributePCIBusID])
}

func TestRivalPlugins(t *testing.T) {
	tests := []struct {
		name     string
		capacity []string
		want     map[string]string
	}{
		{"none", nil, map[string]string{}},
		{"NVIDIA", []string{"nvidia.com/gpu=8"}, map[string]string{"nvidia": "nvidia.com/gpu"}},
		{"NVIDIA, shared in time", []string{"nvidia.com/gpu.shared=32"}, map[string]string{"nvidia": "nvidia.com/gpu.shared"}},
		{"NVIDIA, in parts", []string{"nvidia.com/mig-1g.10gb=7"}, map[string]string{"nvidia": "nvidia.com/mig-1g.10gb"}},
		{"one that left", []string{"nvidia.com/gpu=0", "amd.com/gpu=0"}, map[string]string{}},
		{"NVIDIA, in parts by now", []string{"nvidia.com/gpu=0", "nvidia.com/mig-7g=1"}, map[string]string{"nvidia": "nvidia.com/mig-7g"}},
		{"AMD", []string{"amd.com/gpu=8"}, map[string]string{"amd": "amd.com/gpu"}},
		{"Intel", []string{"gpu.intel.com/xe=2"}, map[string]string{"intel": "gpu.intel.com/xe"}},
		{"Intel, the first of two", []string{"gpu.intel.com/xe=2", "gpu.intel.com/i915=1"}, map[string]string{"intel": "gpu.intel.com/i915"}},
		{"Intel, for monitoring only", []string{"gpu.intel.com/i915_monitoring=1"}, map[string]string{}},
		{"two vendors", []string{"nvidia.com/gpu=1", "amd.com/gpu=1"}, map[string]string{"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}},
		{"not GPUs", []string{"nvidia.com/rdma=1", "intel.com/sgx=1", "example.com/gpu=1", "hugepages-2Mi=1Gi"}, map[string]string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := map[string]string{}
			for of, name := range conflictingPlugins(nodeWith(tt.capacity...)) {
				got[of.vendor] = name
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("plugins (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRivalDrivers(t *testing.T) {
	const one, other = "0000:1b:00.0", "0000:3b:00.0"
	tests := []struct {
		name   string
		slices []resourceapi.ResourceSlice
		want   map[string]string
	}{
		{"none", nil, map[string]string{}},
		{"ourselves", []resourceapi.ResourceSlice{sliceOf(v1alpha1.DriverName, one)}, map[string]string{}},
		{
			"a driver",
			[]resourceapi.ResourceSlice{sliceOf(v1alpha1.DriverName, one, other), sliceOf("gpu.example.com", other)},
			map[string]string{other: "gpu.example.com"},
		},
		{"a driver without addresses", []resourceapi.ResourceSlice{sliceOf("cpu.example.com", "", "")}, map[string]string{}},
		{
			"several drivers, whichever comes first",
			[]resourceapi.ResourceSlice{
				sliceOf("b.example.com", one), sliceOf("a.example.com", one), sliceOf("c.example.com", one),
			},
			map[string]string{one: "a.example.com"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, conflictingDrivers(tt.slices)); diff != "" {
				t.Errorf("drivers (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRivalReports: a device plugin is held against the GPUs of its vendor, a driver against the very device; and every report says both,
// so that what is over ends.
func TestRivalReports(t *testing.T) {
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	dev := func(kind device.Kind, name, vendor, address string) device.Device {
		d := device.Device{Kind: kind, Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			device.AttributeVendor: text(vendor),
		}}
		if address != "" {
			d.Attributes[deviceattribute.StandardDeviceAttributePCIBusID] = text(address)
		}
		return d
	}
	devices := []device.Device{
		dev(device.KindGPU, "nvidia", "nvidia", "0000:01:00.0"), dev(device.KindGPU, "amd", "amd", "0000:02:00.0"),
		dev(device.KindFPGA, "fpga", "intel", "0000:03:00.0"), dev(device.KindHost, "ssd", "host", ""),
		{Kind: device.KindGPU, Name: "bare"},
	}
	tests := []struct {
		name     string
		capacity []string
		slices   []resourceapi.ResourceSlice
		want     map[string]string
	}{
		{"nobody", nil, nil, map[string]string{}},
		{"a device plugin", []string{"nvidia.com/gpu=1"}, nil, map[string]string{
			"nvidia": "device-plugin: resource nvidia.com/gpu in the node's capacity",
		}},
		{"a device plugin of a vendor that makes FPGAs, too", []string{"gpu.intel.com/i915=1"}, nil, map[string]string{}},
		{
			"drivers", nil,
			[]resourceapi.ResourceSlice{
				sliceOf("a.example.com", "0000:03:00.0", ""), sliceOf("b.example.com", "0000:02:00.0", "0000:09:00.0"),
			},
			map[string]string{
				"fpga": "dra-driver: driver a.example.com publishes it in a ResourceSlice",
				"amd":  "dra-driver: driver b.example.com publishes it in a ResourceSlice",
			},
		},
		{"both", []string{"amd.com/gpu=1"}, []resourceapi.ResourceSlice{sliceOf("b.example.com", "0000:02:00.0")}, map[string]string{
			"amd": "device-plugin: resource amd.com/gpu in the node's capacity; dra-driver: driver b.example.com publishes it in a ResourceSlice",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reports := conflictReports(devices, nil, nodeWith(tt.capacity...), tt.slices)
			got := map[string]string{}
			for i, r := range reports {
				var codes, on []string
				for _, reading := range r.Readings {
					codes = append(codes, reading.Code)
					if reading.Kind != health.Level || (reading.Message == "") != (reading.Value == 0) {
						t.Errorf("%s: reading %+v", r.Device, reading)
					}
					if reading.Value != 0 {
						on = append(on, reading.Code+": "+reading.Message)
					}
				}
				if diff := cmp.Diff([]string{health.RivalPlugin, health.RivalDriver}, codes); diff != "" {
					t.Errorf("%s: codes (-want +got):\n%s", r.Device, diff)
				}
				if r.Source != health.SourceRival || r.Device != devices[i].Name {
					t.Errorf("report %+v of device %s", r, devices[i].Name)
				}
				if len(on) > 0 {
					got[r.Device] = strings.Join(on, "; ")
				}
			}
			if len(reports) != len(devices) {
				t.Errorf("%d reports of %d devices", len(reports), len(devices))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("rivals (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPluginsOfLeftDevices: a device plugin that one GPU is left to is no rival for the others, and one for the claim that still has that
// GPU. That it gives out more than it was left is said, and no more.
func TestPluginsOfLeftDevices(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	v, _ := w.Holder.Get()
	left := *v
	name := v.Devices[0].Name
	left.Foreign = map[string]inventory.Foreign{name: {Kind: device.KindGPU, Vendor: "nvidia", Owner: "NVIDIA device plugin", Held: true}}
	w.Holder.Set(&left)
	got := w.rivals(nodeWith("nvidia.com/gpu=1"))
	if diff := cmp.Diff(map[string]string{name: "RivalDevicePlugin NoSchedule"}, got); diff != "" {
		t.Errorf("taints with a claim that has the GPU (-want +got):\n%s", diff)
	}
	others := left
	others.Devices = slices.Clone(left.Devices[1:])
	others.Foreign = map[string]inventory.Foreign{name: {Kind: device.KindGPU, Vendor: "nvidia", Owner: "NVIDIA device plugin"}}
	w.Holder.Set(&others)
	if got := w.rivals(nodeWith("nvidia.com/gpu=1")); len(got) > 0 {
		t.Errorf("taints %v, want none", got)
	}
	if note := excess(others.Foreign, nodeWith("nvidia.com/gpu=1")); note != "" {
		t.Errorf("the plugin has what it was left, and is said to have more: %s", note)
	}
	if note := excess(others.Foreign, nodeWith("nvidia.com/gpu=8")); !strings.Contains(note, "nvidia.com/gpu: 8, and 1 of its nvidia GPUs") {
		t.Errorf("the plugin has all GPUs, and it is said: %q", note)
	}
	// Another vendor's plugin has nothing that was left to it.
	if note := excess(others.Foreign, nodeWith("amd.com/gpu=8")); note != "" {
		t.Error(note)
	}
}

// rivals takes in who else is on the node, and returns the taints of what is published then, "VALUE EFFECT" by device.
func (w *ward) rivals(node *corev1.Node, others ...resourceapi.ResourceSlice) map[string]string {
	w.t.Helper()
	v, _ := w.Holder.Get()
	check.Must(w.t, w.ledger.Report(conflictReports(v.Devices, v.Foreign, node, others)...))
	w.Refresh()
	v, _ = w.Holder.Get()
	out := map[string]string{}
	for _, d := range publish.Resources(nodefixture.Node, v).Pools[device.PoolName(nodefixture.Node, device.KindGPU)].Slices[0].Devices {
		for _, taint := range d.Taints {
			out[d.Name] = taint.Value + " " + string(taint.Effect)
		}
	}
	return out
}

func allOf(devices []device.Device, taint string) map[string]string {
	out := map[string]string{}
	for i := range devices {
		out[devices[i].Name] = taint
	}
	return out
}

// TestTwoDriversOnOneDevice. Seen: a device plugin, or another DRA driver, ran on the same node and knew nothing of the claims, so two
// pods got one GPU. Nobody new gets it from here while that is so; who has it keeps it, and says why it is not well.
func TestTwoDriversOnOneDevice(t *testing.T) {
	const plugin, driver = "RivalDevicePlugin NoSchedule", "RivalDraDriver NoSchedule"
	w := newWard(t, "8xh100-sxm", nil)
	v, _ := w.Holder.Get()
	gpus := v.Devices
	steps := []struct {
		name   string
		node   *corev1.Node
		slices []resourceapi.ResourceSlice
		want   map[string]string
	}{
		{"alone", nodeWith(), []resourceapi.ResourceSlice{sliceOf(v1alpha1.DriverName, addressOf(gpus[0]))}, map[string]string{}},
		{"with a device plugin", nodeWith("nvidia.com/gpu=8"), nil, allOf(gpus, plugin)},
		{"with another vendor's", nodeWith("nvidia.com/gpu=0", "amd.com/gpu=8"), nil, map[string]string{}},
		{"with a device plugin again", nodeWith("nvidia.com/gpu=8"), nil, allOf(gpus, plugin)},
		{"after it left", nodeWith("nvidia.com/gpu=0"), nil, map[string]string{}},
		{
			"with another driver", nodeWith(),
			[]resourceapi.ResourceSlice{sliceOf("gpu.example.com", addressOf(gpus[3]), "ffff:ff:1f.7")},
			map[string]string{gpus[3].Name: driver},
		},
		{"after that left", nodeWith(), nil, map[string]string{}},
	}
	for _, step := range steps {
		if diff := cmp.Diff(step.want, w.rivals(step.node, step.slices...)); diff != "" {
			t.Errorf("taints %s (-want +got):\n%s", step.name, diff)
		}
		for name, s := range w.ledger.Statuses() {
			if s.State != health.Worn {
				t.Errorf("%s: %s is %s", step.name, name, s.State)
			}
		}
	}
	w.rivals(nodeWith("nvidia.com/gpu=8"))
	s, _ := w.ledger.Check(gpus[0].Name)
	if !strings.Contains(s.Message, "nvidia.com/gpu") || !strings.Contains(s.Message, "remove one of the two") {
		t.Errorf("message %q does not say who it is and what to do", s.Message)
	}
}

// TestRivalsAreAllowed: who moves from one driver to another says that both are meant to be there.
func TestRivalsAreAllowed(t *testing.T) {
	w := newWard(t, "8xh100-sxm", func(c *Config) {
		c.File.Health.Rules = []health.Rule{{Source: health.SourceRival, Severity: health.Ignored}}
	})
	v, _ := w.Holder.Get()
	if taints := w.rivals(nodeWith("nvidia.com/gpu=8"), sliceOf("gpu.example.com", addressOf(v.Devices[3]))); len(taints) > 0 {
		t.Errorf("taints %v", taints)
	}
	if statuses := w.ledger.Statuses(); len(statuses) > 0 {
		t.Errorf("not healthy: %v", statuses)
	}
}

// asked is an API server that holds a node and slices, and what it was asked for. Without a node it answers nothing.
type asked struct {
	mu     sync.Mutex
	node   *corev1.Node
	slices resourceapi.ResourceSliceList
	paths  []string
}

func (a *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.paths = append(a.paths, r.URL.Path+"?"+r.URL.Query().Encode())
	w.Header().Set("Content-Type", "application/json")
	var answer any = a.slices
	if strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
		answer = a.node
	}
	if a.node == nil {
		w.WriteHeader(http.StatusForbidden)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// has replaces what the API server holds, and forgets what it was asked for.
func (a *asked) has(node *corev1.Node, others ...resourceapi.ResourceSlice) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.node, a.slices.Items, a.paths = node, others, nil
}

func (a *asked) questions() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.paths)
}

// server makes a ward ask an API server of the test's own.
func (w *ward) server() *asked {
	w.t.Helper()
	a := &asked{slices: resourceapi.ResourceSliceList{
		TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSliceList"},
	}}
	server := httptest.NewServer(a)
	w.t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	check.Must(w.t, err)
	view, err := nodeview.New(client, nodefixture.Node, 0, clock.RealClock{})
	check.Must(w.t, err)
	w.ReadNode, w.ReadSlices = view.Node, view.Slices
	return a
}

// TestReportRivals asks for its own node and what is published of it only, and what it cannot find out leaves all as it is.
func TestReportRivals(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	v, _ := w.Holder.Get()
	a := w.server()
	a.has(nodeWith("nvidia.com/gpu=8"))
	check.Must(t, w.reportConflicts(t.Context()))
	want := []string{
		"/api/v1/nodes/node-1?resourceVersion=0",
		"/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dnode-1",
	}
	if diff := cmp.Diff(want, a.questions()); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
	if got := len(w.ledger.Statuses()); got != len(v.Devices) {
		t.Errorf("%d devices are not healthy, want all", got)
	}

	a.has(nil)
	if err := w.reportConflicts(t.Context()); err == nil {
		t.Error("no error although nobody knows")
	}
	if got := len(w.ledger.Statuses()); got != len(v.Devices) {
		t.Errorf("%d devices are not healthy after it was not known, want all", got)
	}

	a.has(nodeWith(), sliceOf("gpu.example.com", addressOf(v.Devices[3])))
	check.Must(t, w.reportConflicts(t.Context()))
	if _, bad := w.ledger.Check(v.Devices[3].Name); !bad || len(w.ledger.Statuses()) != 1 {
		t.Errorf("not healthy: %v, want the other driver's device", w.ledger.Statuses())
	}

	a.has(nodeWith())
	w.Retirement.Set(v1alpha1.RetireByAdmin)
	check.Must(t, w.reportConflicts(t.Context()))
	w.Retirement.Set("")
	w.Holder.Set(nodefixture.SnapshotWith())
	check.Must(t, w.reportConflicts(t.Context()))
	if paths := a.questions(); len(paths) > 0 {
		t.Errorf("asked for %v where there is nothing to hand out", paths)
	}
}

// TestRivalsOff: a source that is switched off asks nobody, and what it said before is forgotten.
func TestRivalsOff(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	w.rivals(nodeWith("nvidia.com/gpu=8"))
	w.File.Health.DisabledSources = []string{health.SourceRival}
	off := w.again("boot-1", w.Holder)
	ended := make(chan struct{})
	go func() {
		off.watchConflicts(t.Context()) // it has no client
		close(ended)
	}()
	receive(t, ended)
	if statuses := off.ledger.Statuses(); len(statuses) > 0 {
		t.Errorf("not healthy: %v", statuses)
	}
}

// TestWatchRivals looks at once, and again when there is something else to hand out, which is long before the next minute.
func TestWatchRivals(t *testing.T) {
	w := newWard(t, "8xh100-sxm", nil)
	a := w.server()
	a.has(nodeWith())
	v, _ := w.Holder.Get()
	var watching sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	watching.Go(func() { w.watchConflicts(ctx) })
	defer watching.Wait()
	defer cancel()
	check.Eventually(t, "the first look", func() bool { return len(a.questions()) == 2 })
	a.has(nodeWith("nvidia.com/gpu=8"))
	w.Holder.Set(nodefixture.SnapshotWith(v.Devices[1:]...))
	check.Eventually(t, "the second look", func() bool { return len(w.ledger.Statuses()) == len(v.Devices)-1 })
}
